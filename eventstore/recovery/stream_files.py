"""The events of one stream as a file, which another store takes in: lines of JSON, or Avro.

What reads Avro is loaded where a file is Avro: lines do without.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import IO, Any, BinaryIO, cast

import orjson

from kernel.errors import InvalidRequest
from schemas import json_text

_GIVEN = frozenset({"category", "version", "position", "schema_id", "recorded_at"})
"""What a store gives an event, and is written with it: another store gives its own."""
_AVRO_BEGINS = b"Obj\x01"


class StreamFormat(StrEnum):
    """What an exported stream is written as."""

    NDJSON = "ndjson"
    AVRO = "avro"


class _Digested(io.RawIOBase):
    """Hands on what is written, and knows its SHA-256."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.digest = hashlib.sha256()

    def write(self, part: Any) -> int:
        """Hand on bytes."""
        self.digest.update(part)
        return self._target.write(part)


def write_stream(
    lines: Iterable[str], stream: str, chosen: StreamFormat, target: BinaryIO
) -> tuple[int, str]:
    """Write events, each a line of JSON; return how many, and the SHA-256 of what was written."""
    digested = _Digested(target)
    if chosen is StreamFormat.AVRO:
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


def import_lines(source: io.BufferedReader[Any], name: str, stream: str | None) -> Iterator[bytes]:
    """Yield the lines that the service gets of a file called `name`, whichever of the two it is.

    Events go into `stream` if one is named. Raises `InvalidRequest` with the line that is wrong.
    """
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
