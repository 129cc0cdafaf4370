"""`penstock stream …`: what streams show, their end, and their way in and out of a store."""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, cast
from urllib.parse import quote

import orjson
import typer

from apps import settings
from apps.cli.checksums import checksum_file, refuse_damaged, write_checksum
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, refuse_unconfirmed, written_whole
from apps.cli.stream_list import categories, list_
from apps.service_client import ServiceClient
from eventstore.archiving import MAX_EVENTS, ArchiveReport
from kernel import failpoints
from kernel.errors import EXIT_PARTIAL, InvalidRequest
from schemas import json_text

Stream = Annotated[str, typer.Argument(help="category-id, as order-1042")]
_NDJSON = "application/x-ndjson"
_GIVEN = frozenset({"category", "version", "position", "schema_id", "recorded_at"})
"""What a store gives an event, and `export` writes with it: another store gives its own."""
_AVRO_BEGINS = b"Obj\x01"


class StreamFormat(StrEnum):
    """What an exported stream is written as."""

    NDJSON = "ndjson"
    AVRO = "avro"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    stream = typer.Typer(
        cls=Group, help="What streams there are and show, their end, export and import."
    )
    stream.command("list")(list_)
    stream.command()(categories)
    stream.command()(show)
    stream.command()(delete)
    stream.command()(truncate)
    stream.command()(bound)
    stream.command()(archive)
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
    headers = None if expect is None else {"if-match": f'"{expect}"'}
    with ServiceClient(settings.load(workspace)) as client:
        if not yes:
            client.get(f"{_path(stream)}/metadata")  # One that is not there wants no confirmation.
            ends = "be gone for good" if tombstone else "show nothing any more"
            refuse_unconfirmed(f"{stream} would {ends}", as_json=as_json)
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


def archive(
    stream: Annotated[
        str | None, typer.Argument(help="One stream; without it all that hide events.")
    ] = None,
    before: Annotated[
        int | None, typer.Option(min=0, help="Of the stream also what it shows, below a version.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Count what would leave; change nothing.")] = False,
    batch: Annotated[
        int, typer.Option(min=1, max=5_000, help="Events moved at once; appends wait meanwhile.")
    ] = MAX_EVENTS,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move events that streams hide out of PostgreSQL, once they are in the lake's log.

    Everything reads as before; the log must be kept from then on. What is not in the log yet
    stays, with exit code 6. Repeat it after a crash: it goes on where it was.
    """
    if before is not None and stream is None:
        raise InvalidRequest(
            "--before is about one stream",
            remedy=f"Name it: penstock stream archive order-1 --before {before}",
        )
    # The log takes a second to load, which the other commands should not pay.
    import asyncio

    from apps.archiving import archive as run_archive
    from apps.archiving import shower

    failpoints.arm_from_environment()
    found = settings.load(workspace)
    report = asyncio.run(
        run_archive(
            found,
            stream=stream,
            before=before,
            dry_run=dry_run,
            max_events=batch,
            show=shower() if not as_json else lambda _report: None,
        )
    )
    emit(asdict(report) | {"dry_run": dry_run}, as_json=as_json, text=_archived(report, dry_run))
    if report.staying:
        raise typer.Exit(EXIT_PARTIAL)


def export(
    stream: Stream,
    file: Annotated[Path | None, typer.Option(help="Where to; else standard output.")] = None,
    format_: Annotated[
        StreamFormat | None,
        typer.Option("--format", help="Lines of JSON or Avro (default: Avro for FILE.avro)."),
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the events that a stream shows in a form that `import` reads.

    It is one event a line, as JSON, or an Avro object container with a record for each. Beside a
    file lies its checksum, FILE.sha256, as sha256sum writes it; `import` compares it.
    """
    by_suffix = StreamFormat.AVRO if file and file.suffix == ".avro" else StreamFormat.NDJSON
    chosen = format_ or by_suffix
    if file is None and chosen is StreamFormat.AVRO and sys.stdout.isatty():
        raise InvalidRequest(
            "a terminal shows no Avro",
            remedy=f"Name a file: penstock stream export {stream} --file {stream}.avro",
        )
    with ServiceClient(settings.load(workspace)) as client:
        if file is None:
            _write(client, stream, chosen, sys.stdout.buffer)
            return
        with written_whole(file) as target:
            count, checksum = _write(client, stream, chosen, target)
            # That of a file before this one would be of none.
            checksum_file(file).unlink(missing_ok=True)
        if file.is_file():
            write_checksum(file, checksum)
    answer = {
        "stream": stream,
        "events": count,
        "file": str(file),
        "format": chosen.value,
        "sha256": checksum,
    }
    emit(answer, as_json=as_json, text=f"{stream}: {count} events in {file}")


def import_(
    file: Annotated[Path, typer.Argument(help="NDJSON or Avro; - is standard input")],
    stream: Annotated[
        str | None, typer.Option(help="Into this stream, whatever the events say.")
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Append events as `export` writes them, keeping their ids. Repeating is safe.

    Whether they are lines or Avro is seen from the first bytes; a line that is refused is the
    record of that number. A file beside which lies its checksum, FILE.sha256, is refused when it
    is another one since.
    """
    if str(file) != "-":
        refuse_damaged(file)
    opened = sys.stdin.buffer if str(file) == "-" else file.open("rb")
    source = io.BufferedReader(cast("io.RawIOBase", opened))
    with source, ServiceClient(settings.load(workspace)) as client:
        answer = client.send_lines("/v1/import", _sent(source, str(file), stream))
    emit(
        answer,
        as_json=as_json,
        text=f"{answer['appended'] + answer['repeated']} events: {answer['appended']} appended, "
        f"{answer['repeated']} were there",
    )


class _Digested(io.RawIOBase):
    """Hands on what is written, and knows its SHA-256."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def write(self, part: Any) -> int:
        """Hand on bytes."""
        self.digest.update(part)
        return self._target.write(part)


def _write(
    client: ServiceClient, stream: str, chosen: StreamFormat, target: BinaryIO
) -> tuple[int, str]:
    """Write the events; return how many, and the SHA-256 of what was written."""
    digested = _Digested(target)
    with client.lines(_path(stream), accept=_NDJSON) as lines:
        if chosen is StreamFormat.AVRO:
            # It loads what reads Avro, which lines do without.
            from eventstore.recovery.event_containers import write_events

            events = (json_text.parse(line.encode()) for line in lines)
            count = write_events(cast("IO[bytes]", digested), stream, events)
        else:
            count = 0
            for line in lines:
                digested.write(line.encode() + b"\n")
                count += 1
    target.flush()
    return count, digested.digest.hexdigest()


def _sent(source: io.BufferedReader[Any], name: str, stream: str | None) -> Iterator[bytes]:
    """Yield the lines that the service gets of a file, whichever of the two it is."""
    begins = source.peek(len(_AVRO_BEGINS))[: len(_AVRO_BEGINS)]
    if not begins or not _AVRO_BEGINS.startswith(begins):
        return _lines(source, name, stream)
    from eventstore.recovery.event_containers import read_events

    return _redirected(read_events(source, name), stream)


def _lines(source: Iterable[bytes], name: str, stream: str | None) -> Iterator[bytes]:
    for number, line in enumerate(source, start=1):
        if not line.strip():
            yield b"\n"  # It counts, so that the service names lines by the file's numbers.
            continue
        try:
            document = json_text.parse_at(f"{name} line {number}", line)
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(
                f"{name} line {number}: not JSON: {error}",
                remedy="One JSON object a line, as penstock stream export writes it.",
            ) from None
        if not isinstance(document, dict):
            raise InvalidRequest(
                f"{name} line {number}: expected an object",
                remedy="Write one event a line, as penstock stream export does.",
            )
        event = {key: value for key, value in document.items() if key not in _GIVEN}
        yield from _redirected([event], stream)


def _redirected(events: Iterable[dict[str, Any]], stream: str | None) -> Iterator[bytes]:
    """Yield lines of events, which go into `stream` if one is named."""
    into = {"stream": stream} if stream else {}
    for event in events:
        yield json_text.dump(event | into) + b"\n"


def _path(stream: str) -> str:
    return f"/v1/streams/{quote(stream, safe='')}"


def _archived(report: ArchiveReport, dry_run: bool) -> str:
    if dry_run:
        return f"{report.planned:,} events of {report.streams:,} streams would leave PostgreSQL"
    rate = report.events / report.seconds if report.seconds else 0.0
    lines = [
        f"{report.events:,} events of {report.streams:,} streams are in the archive, "
        f"{report.bytes:,} bytes of data, {rate:,.0f}/s"
    ]
    if report.staying:
        lines.append(f"{report.staying:,} streams keep some for now; run it again later:")
        lines += [
            f"  {s.stream} from version {s.version}: {s.reason}" for s in report.first_staying
        ]
    return "\n".join(lines)


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
    if answer["archived_up_to"]:
        parts.append(f"below {answer['archived_up_to']} in the archive")
    return ", ".join(parts)
