"""What the demo says: numbered steps, figures, checks. Progress on a terminal rewrites one line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from apps.cli.output import width_of

_EVERY_S = 3.0
_SAME_EVERY_S = 15.0
"""Without a terminal, progress is a plain line this often; one that says nothing new, less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCheck:
    """Something that must hold, what was found, and rows that speak against it."""

    title: str
    holds: bool
    found: str
    samples: tuple[str, ...] = ()


@dataclass(slots=True)
class Narration:
    """Tells the story to one stream and keeps the verdicts. Safe to use from several threads."""

    out: TextIO
    clock: Callable[[], float] = time.monotonic
    checks: list[DemoCheck] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)
    _step: int = 0
    _started: float | None = None
    _said_at: float | None = None
    _said: str = ""
    _line_open: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the first step."""
        return 0.0 if self._started is None else self.clock() - self._started

    @property
    def failures(self) -> list[DemoCheck]:
        """Return the checks that do not hold."""
        return [check for check in self.checks if not check.holds]

    def document(self) -> dict[str, object]:
        """Return the outcome for programs."""
        return {
            "holds": not self.failures,
            "seconds": round(self.elapsed_s, 1),
            "checks": [
                {"title": check.title, "holds": check.holds, "found": check.found}
                for check in self.checks
            ],
            "figures": self.figures,
        }

    def step(self, title: str) -> None:
        """Begin the next numbered step."""
        if self._started is None:
            self._started = self.clock()
        self._step += 1
        self._write(f"\n{self._step:2}. {title}  [{self.elapsed_s:.0f} s]")

    def say(self, text: str) -> None:
        """Tell one fact."""
        self._write(f"    {text}")

    def command(self, words: str) -> None:
        """Show a command that a user could type."""
        self._write(f"    $ {words}")

    def progress(self, text: str) -> None:
        """Show how far something is: often on a terminal, now and then elsewhere."""
        # A dumb terminal would show the codes, and one line alone is taken back: none is wider.
        if self.out.isatty() and os.environ.get("TERM") != "dumb":
            with self._lock:
                width = width_of(self.out)
                line = f"    {text}" if width is None else f"    {text}"[: width - 1]
                self.out.write(f"\r\x1b[2K{line}")
                self.out.flush()
                self._line_open = True
            return
        now = self.clock()
        pause = _EVERY_S if text != self._said else _SAME_EVERY_S
        if self._said_at is None or now - self._said_at >= pause:
            self._said_at, self._said = now, text
            self.say(text)

    def check(self, check: DemoCheck) -> None:
        """Tell a verdict and keep it."""
        self.checks.append(check)
        self._write(f"    {'ok' if check.holds else 'NO'}  {check.title}: {check.found}")
        for sample in check.samples if not check.holds else ():
            self._write(f"        {sample}")

    def _write(self, line: str) -> None:
        with self._lock:
            if self._line_open:
                self.out.write("\n")
                self._line_open = False
            self.out.write(f"{line}\n")
            self.out.flush()


class Rate:
    """Turns a growing count into text: done, rate, time left."""

    def __init__(self, total: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._start = clock()

    @property
    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return self._clock() - self._start

    def describe(self, done: int) -> str:
        """Say how far `done` of the total is."""
        seconds = self.seconds
        text = f"{done:,} of {self._total:,} events"
        if seconds <= 0 or done == 0:
            return text
        rate = done / seconds
        return f"{text}, {rate:,.0f}/s, {(self._total - done) / rate:.0f} s left"
