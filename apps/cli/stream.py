"""`penstock stream …`: what streams show, their end, and their way in and out of a store."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast
from urllib.parse import quote

import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.options import DeleteIt, StreamName
from apps.cli.output import shower, written_whole
from apps.cli.stream_list import categories, list_
from eventstore.archiving import MAX_EVENTS, ArchiveReport
from eventstore.recovery.checksums import checksum_file, refuse_damaged, write_checksum
from eventstore.recovery.stream_files import StreamFormat, import_lines, write_stream
from kernel import failpoints
from kernel.errors import EXIT_PARTIAL, InvalidRequest

_NDJSON = "application/x-ndjson"


def show(call: CommandCall, stream: StreamName) -> None:
    """Show a stream's version and what it shows of its events."""
    with call.service() as client:
        answer = client.get(f"{_path(stream)}/metadata")
    call.answer(answer, text=_told(answer))


def delete(
    call: CommandCall,
    stream: StreamName,
    tombstone: Annotated[bool, typer.Option(help="For good: nobody may append again.")] = False,
    expect: Annotated[int | None, typer.Option(min=0, help="Only at this version.")] = None,
    yes: DeleteIt = False,
) -> None:
    """Hide all events of a stream. The log keeps them; versions go on with the next append."""
    headers = None if expect is None else {"if-match": f'"{expect}"'}
    with call.service() as client:
        if not yes:
            client.get(f"{_path(stream)}/metadata")  # One that is not there wants no confirmation.
            ends = "be gone for good" if tombstone else "show nothing any more"
            call.refuse_unconfirmed(f"{stream} would {ends}")
        answer = client.delete(
            _path(stream), headers=headers, tombstone="true" if tombstone else None
        )
    call.answer(answer, text=_told(answer))


def truncate(
    call: CommandCall,
    stream: StreamName,
    before: Annotated[int, typer.Option(min=0, help="Hide events below this version.")],
) -> None:
    """Hide the events of a stream below a version. It cannot be taken back."""
    with call.service() as client:
        path = f"{_path(stream)}/metadata"
        present = client.get(path)
        kept = {name: present[name] for name in ("max_age_s", "max_count")}
        answer = client.put(path, kept | {"truncate_before": before})
    call.answer(answer, text=_told(answer))


def bound(
    call: CommandCall,
    stream: StreamName,
    max_age: Annotated[
        int | None, typer.Option(min=1, help="Hide events older than so many seconds.")
    ] = None,
    max_count: Annotated[
        int | None, typer.Option(min=1, help="Hide all but so many newest events.")
    ] = None,
) -> None:
    """Bound what a stream shows by age and number; without options it is not bounded any more."""
    with call.service() as client:
        policy = {"max_age_s": max_age, "max_count": max_count}
        answer = client.put(f"{_path(stream)}/metadata", policy)
    call.answer(answer, text=_told(answer))


def archive(
    call: CommandCall,
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

    failpoints.arm_from_environment()
    found = call.settings
    report = asyncio.run(
        run_archive(
            found,
            stream=stream,
            before=before,
            dry_run=dry_run,
            max_events=batch,
            show=shower(_archiving) if not call.as_json else lambda _report: None,
        )
    )
    call.answer(asdict(report) | {"dry_run": dry_run}, text=_archived(report, dry_run))
    if report.staying:
        raise typer.Exit(EXIT_PARTIAL)


def export(
    call: CommandCall,
    stream: StreamName,
    file: Annotated[Path | None, typer.Option(help="Where to; else standard output.")] = None,
    format_: Annotated[
        StreamFormat | None,
        typer.Option("--format", help="Lines of JSON or Avro (default: Avro for FILE.avro)."),
    ] = None,
) -> None:
    """Write the events that a stream shows in a form that `import` reads.

    It is one event a line, as JSON, or an Avro object container with a record for each. Beside a
    file lies its checksum, FILE.sha256, as sha256sum writes it; `import` compares it.
    """
    file = None if str(file) == "-" else file  # As where files are read.
    by_suffix = StreamFormat.AVRO if file and file.suffix == ".avro" else StreamFormat.NDJSON
    chosen = format_ or by_suffix
    if file is None and chosen is StreamFormat.AVRO and sys.stdout.isatty():
        raise InvalidRequest(
            "a terminal shows no Avro",
            remedy=f"Name a file: penstock stream export {stream} --file {stream}.avro",
        )
    with call.service() as client:

        def write(target: BinaryIO) -> tuple[int, str]:
            with client.lines(_path(stream), accept=_NDJSON) as lines:
                return write_stream(lines, stream, chosen, target)

        if file is None:
            write(sys.stdout.buffer)
            return
        with written_whole(file) as target:
            count, checksum = write(target)
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
    call.answer(answer, text=f"{stream}: {count} events in {file}")


def import_(
    call: CommandCall,
    file: Annotated[Path, typer.Argument(help="NDJSON or Avro; - is standard input")],
    stream: Annotated[
        str | None, typer.Option(help="Into this stream, whatever the events say.")
    ] = None,
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
    with source, call.service() as client:
        answer = client.send_lines("/v1/import", import_lines(source, str(file), stream))
    call.answer(
        answer,
        text=f"{answer['appended'] + answer['repeated']} events: {answer['appended']} appended, "
        f"{answer['repeated']} were there",
    )


def _path(stream: str) -> str:
    return f"/v1/streams/{quote(stream, safe='')}"


def _archiving(report: ArchiveReport) -> str:
    rate = report.events / report.seconds if report.seconds else 0.0
    left = (report.planned - report.events) / rate if rate else 0.0
    return f"{report.events:,} of {report.planned:,} events, {rate:,.0f}/s, {left:,.0f} s left"


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


register = commands(
    stream=[list_, categories, show, delete, truncate, bound, archive, export, import_]
)
