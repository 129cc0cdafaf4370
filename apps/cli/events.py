"""`penstock append`, `read`, `tail`: events, through the HTTP service."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

import orjson
import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.options import OfCategory, OfType, StreamName
from apps.cli.output import cell, folded, table
from eventstore.names import category_of
from eventstore.service_client import error_of
from eventstore.service_reads import messages, read_all, read_stream
from kernel.errors import InvalidRequest, Unavailable
from kernel.positions import position_of
from schemas import json_text
from schemas.json_values import uuid_of

_COLUMNS = ("position", "stream", "version", "type", "occurred_at", "data")
_EXAMPLE = "'{\"total\": 12}'"
_EXPECTATIONS = ("any", "no_stream", "stream_exists")


def append(
    call: CommandCall,
    stream: StreamName,
    type_: Annotated[str | None, typer.Argument(metavar="[TYPE]")] = None,
    data: Annotated[str | None, typer.Argument(help="JSON object")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="NDJSON, one event per line; - is standard input"),
    ] = None,
    expect: Annotated[str, typer.Option(help="A version, any, no_stream or stream_exists")] = "any",
    event_id: Annotated[
        str | None,
        typer.Option("--id", help="UUID of the event: makes a retry safe"),
    ] = None,
) -> None:
    """Append an event, or a file of events, to one stream."""
    events = _events(type_, data, file, event_id)
    expected = expected_version(expect)
    with call.service() as client:
        answer = client.post(
            f"/v1/streams/{quote(stream, safe='')}",
            {"expected_version": expected, "events": events},
        )
    call.answer(
        answer,
        text=f"{answer['stream']}: versions {answer['first_version']} to "
        f"{answer['last_version']}, positions {answer['first_position']} to "
        f"{answer['last_position']}, category {category_of(stream)}",
    )


def read(
    call: CommandCall,
    stream: Annotated[str | None, typer.Argument(help="A stream; none: all")] = None,
    after: Annotated[int, typer.Option(min=0, help="All events: behind this position")] = 0,
    from_version: Annotated[int | None, typer.Option(min=0, help="A stream: from here")] = None,
    backward: Annotated[bool, typer.Option(help="A stream: newest first")] = False,
    category: OfCategory = None,
    type_: OfType = None,
    tag: Annotated[str | None, typer.Option(help="All events: with this tag only")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Events at most")] = 100,
) -> None:
    """Print the events of a stream, or of the whole store."""
    _refuse_aside(
        stream,
        of_all={"--after": after != 0, "--category": category, "--type": type_, "--tag": tag},
        of_one={"--from-version": from_version is not None, "--backward": backward},
    )
    with call.service() as client:
        if stream is not None:
            answer = read_stream(client, stream, from_version, limit, backward=backward)
        else:
            answer = read_all(client, after, limit, category=category, type=type_, tag=tag)
    nothing = "no such events; append one: penstock append order-1 placed '{\"total\": 12}'"
    text = table(_COLUMNS, list(map(_row, answer["events"])), nothing=nothing)
    call.answer(answer, text=text)


def tail(
    call: CommandCall,
    after: Annotated[str, typer.Option(help="A position, or end")] = "end",
    category: OfCategory = None,
    type_: OfType = None,
    tag: Annotated[str | None, typer.Option(help="With this tag only")] = None,
    stream: Annotated[str | None, typer.Option(help="This stream only")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many")] = None,
    until_caught_up: Annotated[bool, typer.Option(help="Stop where history ends")] = False,
) -> None:
    """Follow events as they happen; with --json one JSON document per line."""
    seen, told = 0, after
    with (
        call.service() as client,
        client.lines(
            "/v1/events/subscribe",
            after=after,
            category=category,
            type=type_,
            tag=tag,
            stream=stream,
        ) as lines,
    ):
        for kind, document in messages(lines):
            if kind == "caught-up" and until_caught_up:
                return
            if kind == "failed":
                raise error_of(document["status"], orjson.dumps(document))
            told = document["position"]
            if kind == "evicted":
                break
            if kind:
                continue
            seen += 1
            if call.as_json:
                print(orjson.dumps(document).decode(), flush=True)
            else:
                print(folded("  ".join(map(cell, _row(document)))), flush=True)
            if seen == limit:
                return
    # A feed has no end of its own: the service stopped, or this was too slow for it.
    raise Unavailable(
        f"the feed ended at position {told}",
        remedy=f"Go on from there, with the same filters: penstock tail --after {told}",
    )


def _refuse_aside(
    stream: str | None, *, of_all: Mapping[str, object], of_one: Mapping[str, object]
) -> None:
    """Refuse options that the kind of reading does not take: they would be passed over."""
    given = [name for name, value in (of_all if stream else of_one).items() if value]
    if not given:
        return
    if stream is None:
        raise InvalidRequest(
            f"{given[0]} is about one stream, and none was named",
            remedy=f"Name it first: penstock read order-1 {given[0]}",
        )
    raise InvalidRequest(
        f"{given[0]} is about all events, and {stream} was named",
        remedy=f"Of one stream: penstock read {stream} --from-version VERSION. Of all events: "
        f"penstock read {given[0]} …",
    )


def _events(
    type_: str | None, data: str | None, file: Path | None, event_id: str | None
) -> list[object]:
    if file is not None:
        if type_ is not None or event_id is not None:
            raise InvalidRequest(
                "--file brings types and ids of its own",
                remedy="Leave TYPE, DATA and --id out: penstock append STREAM --file events.ndjson",
            )
        return _lines(sys.stdin.buffer if str(file) == "-" else file.open("rb"), str(file))
    if type_ is None or data is None:
        raise InvalidRequest(
            "no event was given",
            remedy=f"penstock append order-1 placed {_EXAMPLE}, or --file events.ndjson",
        )
    content = _json(data, "DATA")
    if not isinstance(content, dict):
        raise InvalidRequest("DATA is not a JSON object", remedy=f"Write it as {_EXAMPLE}")
    if event_id is not None:
        _require_uuid(event_id)
    event = {"type": type_, "data": content}
    return [event | ({"id": event_id} if event_id else {})]


def expected_version(text: str) -> int | str:
    """Read `--expect`: a version, or one of the words. Raises `InvalidRequest`."""
    version = position_of(text, "--expect")
    if version is not None:
        return version
    if text in _EXPECTATIONS:
        return text
    raise InvalidRequest(
        f"--expect {text!r} is neither a version nor one of {', '.join(_EXPECTATIONS)}",
        remedy="Give the version that the stream is at: penstock stream show STREAM",
    )


def _require_uuid(text: str) -> None:
    try:
        uuid_of(text)
    except ValueError:
        raise InvalidRequest(
            f"--id {text!r} is no UUID",
            remedy="Write it as 0190a2c4-7d6e-7b3a-9f00-5b1d2c3e4f50, or leave --id out.",
        ) from None


def _lines(source: BinaryIO, name: str) -> list[object]:
    with source:
        return [
            _json(line, f"{name} line {number}")
            for number, line in enumerate(source, start=1)
            if line.strip()
        ]


def _json(text: str | bytes, place: str) -> object:
    try:
        document: object = json_text.parse_at(place, text)
    except orjson.JSONDecodeError as error:
        if isinstance(text, bytes) and not _is_utf8(text):
            raise InvalidRequest(f"{place} is not UTF-8", remedy="Save it as UTF-8.") from None
        raise InvalidRequest(
            f"{place} is not JSON: {error}", remedy=f"Write an object, in quotes: {_EXAMPLE}"
        ) from None
    return document


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _row(event: dict[str, Any]) -> list[object]:
    row = [event[column] for column in _COLUMNS]
    row[-1] = orjson.dumps(row[-1]).decode()
    return row


register = commands(append, read, tail)
