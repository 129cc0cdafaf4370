"""`penstock stream …`: what streams show, their end, and their way in and out of a store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

import orjson
import typer

from apps import settings
from apps.cli.client import ServiceClient
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit
from kernel.errors import EXIT_NEEDS_CONFIRMATION, InvalidRequest

Stream = Annotated[str, typer.Argument(help="category-id, as order-1042")]
_NDJSON = "application/x-ndjson"
_CARRIED = ("id", "type", "data", "metadata", "tags", "occurred_at")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    stream = typer.Typer(help="What streams show, their end, export and import.")
    stream.command()(show)
    stream.command()(delete)
    stream.command()(truncate)
    stream.command()(bound)
    stream.command()(export)
    stream.command("import")(import_)
    app.add_typer(stream, name="stream")


def show(stream: Stream, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Show a stream's version and what it shows of its events."""
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.get(f"{_path(stream)}/metadata")
    emit(answer, as_json=as_json, text=_told(answer))


def delete(
    stream: Stream,
    tombstone: Annotated[bool, typer.Option(help="For good: nobody may append again.")] = False,
    expect: Annotated[int | None, typer.Option(min=0, help="Only at this version.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hide all events of a stream. The log keeps them; versions go on with the next append."""
    if not yes:
        what = f"{stream} would " + ("be gone for good" if tombstone else "show nothing any more")
        emit({"needs": "--yes", "reason": what}, as_json=as_json, text=what)
        if not as_json:
            option = " --tombstone" if tombstone else ""
            print(f"  fix: penstock stream delete {stream}{option} --yes", file=sys.stderr)
        raise typer.Exit(EXIT_NEEDS_CONFIRMATION)
    headers = None if expect is None else {"if-match": f'"{expect}"'}
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.delete(
            _path(stream), headers=headers, tombstone="true" if tombstone else None
        )
    emit(answer, as_json=as_json, text=_told(answer))


def truncate(
    stream: Stream,
    before: Annotated[int, typer.Option(min=0, help="Hide events below this version.")],
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hide the events of a stream below a version. It cannot be taken back."""
    with ServiceClient(settings.load(workspace)) as client:
        path = f"{_path(stream)}/metadata"
        present = client.get(path)
        kept = {name: present[name] for name in ("max_age_s", "max_count")}
        answer = client.put(path, kept | {"truncate_before": before})
    emit(answer, as_json=as_json, text=_told(answer))


def bound(
    stream: Stream,
    max_age: Annotated[
        int | None, typer.Option(min=1, help="Hide events older than so many seconds.")
    ] = None,
    max_count: Annotated[
        int | None, typer.Option(min=1, help="Hide all but so many newest events.")
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bound what a stream shows by age and number; without options it is not bounded any more."""
    with ServiceClient(settings.load(workspace)) as client:
        policy = {"max_age_s": max_age, "max_count": max_count}
        answer = client.put(f"{_path(stream)}/metadata", policy)
    emit(answer, as_json=as_json, text=_told(answer))


def export(
    stream: Stream,
    file: Annotated[Path | None, typer.Option(help="Where to; else standard output.")] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the events that a stream shows, one a line, in a form that `import` reads."""
    with ServiceClient(settings.load(workspace)) as client:
        path = _path(stream)
        if file is None:
            _write(client, path, sys.stdout.buffer)
            return
        with file.open("wb") as target:
            count = _write(client, path, target)
    answer = {"stream": stream, "events": count, "file": str(file)}
    emit(answer, as_json=as_json, text=f"{stream}: {count} events in {file}")


def import_(
    file: Annotated[Path, typer.Argument(help="NDJSON; - is standard input")],
    stream: Annotated[
        str | None, typer.Option(help="Into this stream, whatever the lines say.")
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append events from lines as `export` writes them, keeping their ids. Repeating is safe."""
    source = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    with source, ServiceClient(settings.load(workspace)) as client:
        answer = client.send_lines("/v1/import", _lines(source, str(file), stream))
    emit(
        answer,
        as_json=as_json,
        text=f"{answer['lines']} events: {answer['appended']} appended, "
        f"{answer['repeated']} were there",
    )


def _write(client: ServiceClient, path: str, target: BinaryIO) -> int:
    count = 0
    with client.lines(path, accept=_NDJSON) as lines:
        for line in lines:
            target.write(line.encode() + b"\n")
            count += 1
    target.flush()
    return count


def _lines(source: BinaryIO, name: str, stream: str | None) -> Iterator[bytes]:
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(
                f"{name} line {number}: not JSON: {error}",
                remedy="One JSON object a line, as penstock stream export writes it.",
            ) from None
        if not isinstance(document, dict):
            raise InvalidRequest(f"{name} line {number}: expected an object")
        event = {key: document[key] for key in _CARRIED if key in document}
        yield orjson.dumps({"stream": stream or document.get("stream"), **event}) + b"\n"


def _path(stream: str) -> str:
    return f"/v1/streams/{quote(stream, safe='')}"


def _told(answer: dict[str, Any]) -> str:
    parts = [f"{answer['stream']}: version {answer['version']}"]
    if answer["tombstoned"]:
        parts.append("gone for good")
    elif answer["deleted"]:
        parts.append("deleted")
    if answer["truncate_before"]:
        parts.append(f"shows versions from {answer['truncate_before']}")
    if answer["max_age_s"] is not None:
        parts.append(f"shows the last {answer['max_age_s']} s")
    if answer["max_count"] is not None:
        parts.append(f"shows the newest {answer['max_count']}")
    return ", ".join(parts)
