"""`penstock stream list`, `categories`: what there is in the store."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from apps import settings
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, table
from apps.service_client import ServiceClient

_PAGE = 1_000
_NO_STREAMS = "no such streams; the first event of a stream makes it: penstock append"


def list_(
    category: Annotated[str | None, typer.Option(help="This category only")] = None,
    prefix: Annotated[str | None, typer.Option(help="Names that begin so only")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Streams at most")] = 100,
    after: Annotated[str | None, typer.Option(help="Go on behind this name")] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List streams by name, deleted ones too, each with its last event."""
    streams: list[dict[str, Any]] = []
    with ServiceClient(settings.load(workspace)) as client:
        while True:
            page = client.get(
                "/v1/streams",
                category=category,
                prefix=prefix,
                after=after,
                limit=min(limit - len(streams), _PAGE),
            )
            streams += page["streams"]
            after = page["next_after"]
            if after is None or len(streams) >= limit:
                break
    rows = [
        (each["stream"], each["version"], each["position"], each["recorded_at"], _state(each))
        for each in streams
    ]
    headings = ("stream", "version", "position", "recorded at", "state")
    text = table(headings, rows, nothing=_NO_STREAMS)
    if after is not None:
        text += f"\nthere are more: --after {after}"
    emit({"streams": streams, "next_after": after}, as_json=as_json, text=text)


def categories(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """List categories, each with its number of streams (counted up to 1,000) and its last event."""
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.get("/v1/categories")
    rows = [
        (
            each["category"],
            f"{each['streams']}{'+' if each['more'] else ''}",
            each["position"],
            each["recorded_at"],
        )
        for each in answer["categories"]
    ]
    headings = ("category", "streams", "position", "recorded at")
    emit(answer, as_json=as_json, text=table(headings, rows, nothing=_NO_STREAMS))


def _state(stream: dict[str, Any]) -> str:
    if stream["tombstoned"]:
        return "gone for good"
    return "deleted" if stream["deleted"] else ""
