"""Who waits for an epoch is woken by its commit."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime

from kernel.positions import Epoch
from pipeline.commit.epoch_memory import EpochMemory
from pipeline.commit.manifest_rows import Committed

PATIENCE_S = 20.0


def committed(epoch: int) -> Committed:
    return Committed(
        epoch=Epoch(epoch),
        run_id="t",
        batch_id=0,
        end={},
        progress="{}",
        heads={},
        cuts={},
        pending_from={},
        tables={},
        counts={},
        timings_ms={},
        at=datetime.now(UTC),
    )


def test_a_commit_ends_the_wait() -> None:
    memory, woken = EpochMemory(), threading.Event()
    memory.add([committed(1)])
    memory.wait(PATIENCE_S)

    def wait() -> None:
        memory.wait(PATIENCE_S)
        woken.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    began = time.monotonic()
    memory.add([committed(1)])  # It was there before: read again, say.
    memory.add([committed(2)])
    assert woken.wait(PATIENCE_S)
    waiting.join()
    assert time.monotonic() - began < PATIENCE_S
