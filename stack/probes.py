"""Ask a part, in its own protocol, whether it serves. No client library: a few bytes each."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from typing import assert_never

from stack.plan import Probe

_API_VERSIONS = 18
_POSTGRES_3_0 = 196608


@dataclass(frozen=True, slots=True)
class Complaint:
    """In a few words what a part answered instead of serving; `silent`: it said nothing at all."""

    text: str
    silent: bool = False


async def serves(probe: Probe) -> Complaint | None:
    """Return None when the part serves, else what is wrong."""
    try:
        async with asyncio.timeout(probe.limit_s):
            reader, writer = await asyncio.open_connection("127.0.0.1", probe.port)
            try:
                said = await _ask(probe, reader, writer)
                return None if said is None else Complaint(said)
            finally:
                writer.close()
    except TimeoutError:
        return Complaint(f"no answer on port {probe.port} within {probe.limit_s:g} s", silent=True)
    except (OSError, EOFError) as error:
        # Where this process has no file or port left to ask with, nobody was asked.
        asked = isinstance(error, ConnectionError | EOFError)
        return Complaint(f"port {probe.port}: {error}", silent=asked)


async def _ask(
    probe: Probe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> str | None:
    match probe.kind:
        case "port":
            return None
        case "http":
            writer.write(f"GET {probe.path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode())
            line = (await reader.readline()).decode("latin-1").split(" ", 2)
            good = len(line) > 1 and line[1] == "200"
            return None if good else f"{probe.path} answers {' '.join(line[1:]).strip()}"
        case "kafka":
            # Header version 1: key, version, correlation id, client id.
            request = struct.pack(">hhih", _API_VERSIONS, 0, 1, -1)
            writer.write(struct.pack(">i", len(request)) + request)
            _, correlation, error = struct.unpack(">iih", await reader.readexactly(10))
            return None if (correlation, error) == (1, 0) else f"Kafka error {error}"
        case "postgres":
            body = b"user\0postgres\0database\0postgres\0\0"
            writer.write(struct.pack(">ii", len(body) + 8, _POSTGRES_3_0) + body)
            answer = await reader.readexactly(1)
            # Asking for a password, or refusing it, is serving; starting up is an error 57P03.
            if answer == b"R":
                return None
            # Behind the length come fields, each with a letter before it: M is for people.
            fields = (await reader.read(512))[4:].split(b"\0")
            said = next((field[1:] for field in fields if field.startswith(b"M")), b"refused")
            return f"not yet: {said.decode('utf-8', 'replace')}"
        case _:
            assert_never(probe.kind)
