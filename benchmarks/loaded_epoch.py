"""The one epoch of a lake that a benchmark filled by itself, as ingest would have left it."""

from __future__ import annotations

from datetime import UTC, datetime

from kernel.positions import Epoch
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.position.progress import Progress


def commit_load(manifest: Manifest, epoch: Epoch, events: int) -> None:
    """Bind and commit an epoch that has so many events, up to the position of the last one."""
    manifest.bind(Bound(epoch=epoch, run_id="load", batch_id=0, start={}, end={}))
    manifest.commit(
        Committed(
            epoch=epoch,
            run_id="load",
            batch_id=0,
            end={},
            progress=Progress().to_json(),
            heads={"store": events},
            cuts={},
            pending_from={},
            tables={},
            counts={"events": events},
            timings_ms={},
            at=datetime.now(UTC),
        )
    )
