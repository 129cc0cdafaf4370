"""Who waits for an epoch is woken by its commit."""

from __future__ import annotations

import threading
import time

from pipeline.commit.epoch_memory import EpochMemory
from tests.support.lake.noted_epochs import committed

PATIENCE_S = 20.0


def test_a_commit_ends_the_wait() -> None:
    memory, woken = EpochMemory(), threading.Event()
    memory.add([committed(1, 0)])
    memory.wait(PATIENCE_S)

    def wait() -> None:
        memory.wait(PATIENCE_S)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    began = time.monotonic()
    memory.add([committed(1, 0)])  # It was there before: read again, say.
    memory.add([committed(2, 0)])
    assert woken.wait(PATIENCE_S)
    waiting.join()
    assert time.monotonic() - began < PATIENCE_S
