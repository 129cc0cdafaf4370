"""Epochs as the manifest has them, by their times and watermarks alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kernel.positions import Epoch
from pipeline.commit.manifest_rows import Committed
from pipeline.position.progress import Progress, Watermarks

START = datetime(2013, 1, 1, tzinfo=UTC)


def committed(number: int, seconds: int, **seen: dict[str, int]) -> Committed:
    """Return an epoch, committed so long after `START`; `seen`: event times by partition."""
    marks = Watermarks(seen=dict(seen), partitions={name: 2 for name in seen})
    return Committed(
        epoch=Epoch(number),
        run_id="t",
        batch_id=0,
        end={},
        progress=Progress(watermarks=marks).to_json(),
        heads={},
        cuts={},
        pending_from={},
        tables={},
        counts={},
        timings_ms={},
        at=START + timedelta(seconds=seconds),
    )
