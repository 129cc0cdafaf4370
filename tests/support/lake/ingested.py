"""A lake that real ingest writes, epoch by epoch, without the stream: who derives from it brings
the records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from kernel.positions import Offsets
from lake.layout import Lake
from lake.table_columns import DECODED
from lake.tables import Tables
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.commit.quarantine import nothing_decoded
from pipeline.commit.retries import Patience
from schemas.records import KafkaRecord
from schemas.registry import MemoryRegistry


class IngestedLake:
    """Runs epochs over what `decoded` gives for their offsets; `restart` is a new process."""

    lake: Lake
    tables: Tables
    manifest: Manifest
    ingest: Ingest

    def made_ingest(self) -> Ingest:
        """Make an ingest over `tables` and `manifest`."""
        raise NotImplementedError

    def decoded(self, bound: Bound) -> pa.Table:
        """Return the rows of exactly these offsets."""
        raise NotImplementedError

    def restart(self) -> None:
        """Begin as a new process would: from the manifest."""
        self.tables = Tables()
        self.manifest = Manifest(self.lake, self.tables)
        self.ingest = self.made_ingest()

    def recover(self) -> Committed | None:
        """Finish the epoch that a crash left bound, in a process that has just started."""
        self.restart()
        bound = self.manifest.unfinished()
        return None if bound is None else self.finish(bound)

    def between(self, start: Offsets, end: Offsets) -> Committed:
        """Make the next epoch of these offsets."""
        epoch = self.ingest.next_epoch
        return self.finish(Bound(epoch=epoch, run_id="t", batch_id=0, start=start, end=end))

    def finish(self, bound: Bound) -> Committed:
        """Run an epoch over exactly its offsets."""
        return self.ingest.run_epoch(bound, partial(self.decoded, bound))


class BatchedLake(IngestedLake):
    """Runs epochs over decoded rows that a test puts into `batch`; nothing is ever late."""

    registry: MemoryRegistry
    batch: list[dict[str, Any]]
    patience: Patience | None = None
    ahead: timedelta | None = None
    idle_timeouts: tuple[timedelta, ...] = ()

    def redecode(self, records: Sequence[KafkaRecord]) -> pa.Table:
        """Decode records that were in quarantine."""
        return nothing_decoded(records)

    def made_ingest(self) -> Ingest:
        return Ingest(
            self.lake,
            self.tables,
            self.manifest,
            self.registry,
            lateness=lambda _: timedelta(0),
            broker=SilentBroker(),
            patience=self.patience,
            redecode=self.redecode,
            idle_timeouts=self.idle_timeouts,
            ahead=self.ahead,
        )

    def decoded(self, bound: Bound) -> pa.Table:
        return pa.Table.from_pylist(self.batch, schema=DECODED)


class SilentBroker:
    """Stands in for Kafka, where the records come from elsewhere."""

    def publish(self, offsets: Offsets) -> None:
        """Take note of nothing."""

    def ends(self, source: str) -> Offsets:
        """Say that there is nothing."""
        return {}
