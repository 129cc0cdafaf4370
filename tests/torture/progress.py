"""Says how far a run is: events, rate, time left, kills, how far readers are behind."""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TextIO

from tests.torture.board import Board
from tests.torture.verification.readers import ReaderWatch

_TERMINAL_S = 1.0
_PLAIN_S = 5.0
_WINDOW = 10


class Progress:
    """Writes one line again and again on a terminal, elsewhere a line now and then."""

    def __init__(self, board: Board, readers: Sequence[ReaderWatch], out: TextIO) -> None:
        self._board = board
        self._readers = readers
        self._out = out
        self._terminal = out.isatty()
        self._recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            self._say(self.line())
            await asyncio.sleep(_TERMINAL_S if self._terminal else _PLAIN_S)

    def line(self) -> str:
        """Return where the run is now."""
        board = self._board
        self._recent.append((board.elapsed_s(), board.acknowledged))
        (before, done_before), (now, done) = self._recent[0], self._recent[-1]
        rate = (done - done_before) / (now - before) if now > before else 0.0
        missing = max(board.wanted - done, 0)
        left = f"{missing / rate:,.0f} s left" if rate else "time left unknown"
        behind = max((done - reader.shown for reader in self._readers), default=0)
        return (
            f"{done:,} of {board.wanted:,} events · {rate:,.0f}/s · {left} · "
            f"{len(board.kills)} kills · readers {max(behind, 0):,} behind"
        )

    def done(self) -> None:
        """Leave the line."""
        if self._terminal:
            self._out.write("\n")

    def _say(self, line: str) -> None:
        self._out.write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        self._out.flush()


def silent(_line: str) -> None:
    """Say nothing."""


Say = Callable[[str], None]


def to_stderr(line: str) -> None:
    """Say something once."""
    sys.stderr.write(f"{line}\n")
