"""A question that somebody may never answer, asked so that who waits for it is told in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from kernel.errors import Unavailable

ANSWER_S = 2.0
"""A supervisor gives up a probe after three seconds, and then knows no cause."""

T = TypeVar("T")


class OpenQuestion(Generic[T]):
    """Asks one question at a time. For one event loop.

    A database whose machine hangs refuses nothing, and its connection stays. A question that is not
    answered in time stays open: asked anew by each probe, questions would take every connection,
    and to cancel one asks the same database.
    """

    def __init__(self, who: str, *, answer_s: float = ANSWER_S) -> None:
        self._who = who
        self._answer_s = answer_s
        self._asked: asyncio.Task[T] | None = None

    async def answer(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return what `ask` returns, or what an earlier call of it does that is still under way.

        Raises what `ask` raises, and `Unavailable` when there is no answer in time.
        """
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(ask(), name=f"asks {self._who}")
            self._asked.add_done_callback(_look_at)
        asked = self._asked
        done, _ = await asyncio.wait({asked}, timeout=self._answer_s)
        if not done:
            raise Unavailable(f"{self._who} has not answered for {self._answer_s:g} s: it hangs")
        return asked.result()

    def close(self) -> None:
        """Wait for no answer any more."""
        if self._asked is not None:
            self._asked.cancel()


def _look_at(asked: asyncio.Task[Any]) -> None:
    """Take an error of a question that nobody waits for any more as seen."""
    if not asked.cancelled():
        asked.exception()
