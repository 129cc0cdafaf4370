"""`penstock trace`: the way of one event, with the parts up or down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from apps.calls import service_client
from apps.cli.commands import CommandCall, commands
from apps.cli.output import table
from kernel.errors import InvalidRequest
from lake.layout import Lake
from schemas.json_values import uuid_of

if TYPE_CHECKING:
    from projections.serve.event_trace import Hop


def trace(
    call: CommandCall,
    event_id: Annotated[str, typer.Argument(metavar="EVENT_ID", help="The event's id, a UUID.")],
) -> None:
    """Show the way of one event: store, Kafka, log, epoch, typed table, projections; and when.

    It works with parts stopped, and says which place could not be asked.
    """
    asked = str(_uuid(event_id))
    # Reading the lake takes a second to load, which `--help` and a wrong id should not pay.
    from projections.serve import event_trace

    found = call.settings

    def stored(event_id: str) -> Mapping[str, Any]:
        with service_client(found) as client:
            event: Mapping[str, Any] = client.get(f"/v1/events/{event_id}")
            return event

    hops = event_trace.trace(asked, Lake.named(found.lake), stored)
    rows = [
        [hop.place, hop.at, None if hop.after_s is None else f"+{hop.after_s:.3f} s", _told(hop)]
        for hop in hops
    ]
    text = table(["place", "at", "after", "what"], rows)
    document = {"event_id": asked, "hops": [asdict(hop) for hop in hops]}
    call.answer(document, text=text)


def _told(hop: Hop) -> str:
    if hop.missing is not None:
        return f"not seen: {hop.missing}"
    return ", ".join(f"{name} {value}" for name, value in hop.detail.items())


def _uuid(text: str) -> UUID:
    try:
        return uuid_of(text)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is no event id", remedy="It is a UUID: penstock read --json shows them."
        ) from None


register = commands(trace)
