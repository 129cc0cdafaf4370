"""Lines and server-sent events out of a body that arrives in pieces.

Lines end at a line feed and nowhere else: JSON may hold U+2028 and its like, at which text
splitters break a line in two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock_client.errors import ServiceFault

MAX_LINE_BYTES = 64 * 1024 * 1024


class Lines:
    """Cuts pieces into lines. A line that does not end within `MAX_LINE_BYTES` is an error."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the lines that this piece completes, without their ends."""
        if b"\n" not in piece:
            self._keep(piece)
            return
        first, *middle, last = piece.split(b"\n")
        self._rest += first
        yield bytes(self._rest).removesuffix(b"\r")
        self._rest.clear()
        for line in middle:
            yield line.removesuffix(b"\r")
        self._keep(last)

    def end(self) -> bytes:
        """Return what came behind the last line feed."""
        return bytes(self._rest)

    def _keep(self, piece: bytes) -> None:
        self._rest += piece
        if len(self._rest) > MAX_LINE_BYTES:
            raise ServiceFault(f"a line is longer than {MAX_LINE_BYTES} bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One server-sent event. `event` is "" for plain data; a comment has neither id nor data."""

    event: str = ""
    id: str = ""
    data: bytes = b""


class Messages:
    """Builds messages from lines. Comments give an empty message: a sign of life."""

    def __init__(self) -> None:
        self._event = ""
        self._id = ""
        self._data: list[bytes] = []

    def feed(self, line: bytes) -> Message | None:
        """Take one line; return the message that it completes."""
        if not line:
            message = Message(event=self._event, id=self._id, data=b"\n".join(self._data))
            self._event, self._id, self._data = "", "", []
            return message
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._data.append(value)
            case b"event":
                self._event = value.decode()
            case b"id":
                self._id = value.decode()
            case _:
                pass
        return None
