"""`penstock stream list`, `categories`: what there is in the store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from apps.cli.commands import CommandCall
from apps.cli.options import OfCategory
from apps.cli.output import Columns, listing
from eventstore.service_reads import stream_names

_NO_STREAMS = "no such streams; the first event of a stream makes it: penstock append"


def list_(
    call: CommandCall,
    category: OfCategory = None,
    prefix: Annotated[str | None, typer.Option(help="Names that begin so only")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Streams at most")] = 100,
    after: Annotated[str | None, typer.Option(help="Go on behind this name")] = None,
) -> None:
    """List streams by name, deleted ones too, each with its last event."""
    with call.service() as client:
        answer = stream_names(client, limit, after=after, category=category, prefix=prefix)
    columns: Columns = {
        "stream": "stream",
        "version": "version",
        "position": "position",
        "recorded at": "recorded_at",
        "state": _state,
    }
    text = listing(answer["streams"], columns, nothing=_NO_STREAMS)
    if answer["next_after"] is not None:
        text += f"\nthere are more: --after {answer['next_after']}"
    call.answer(answer, text=text)


def categories(call: CommandCall) -> None:
    """List categories, each with its number of streams (counted up to 1,000) and its last event."""
    with call.service() as client:
        answer = client.get("/v1/categories")
    columns: Columns = {
        "category": "category",
        "streams": lambda each: f"{each['streams']}{'+' if each['more'] else ''}",
        "position": "position",
        "recorded at": "recorded_at",
    }
    call.answer(answer, text=listing(answer["categories"], columns, nothing=_NO_STREAMS))


def _state(stream: dict[str, Any]) -> str:
    if stream["tombstoned"]:
        return "gone for good"
    return "deleted" if stream["deleted"] else ""
