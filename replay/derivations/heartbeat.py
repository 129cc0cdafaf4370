"""Tells the book of a build that its process lives, as long as a step takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from kernel.errors import PenstockError
from replay.book import Replay, ReplayBook, State

EVERY_S = 5.0


@contextmanager
def beating(
    book: ReplayBook, replay: Replay, claim: str, *, every_s: float = EVERY_S
) -> Iterator[None]:
    """Note the newest row of a build again every few seconds, while it is this process's.

    Others take a build over that was not heard of for half a minute. Whether somebody did, paused
    or cancelled it the build learns at its next step.
    """
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every_s):
            with suppress(PenstockError):
                known = book.known(replay.name, replay.generation)
                if known is not None and known.state is State.BUILDING:
                    now = known.now(State.BUILDING, detail=known.detail)
                    book.record(now, after=(State.BUILDING,), claim=claim)

    thread = threading.Thread(target=beat, name="penstock-heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
