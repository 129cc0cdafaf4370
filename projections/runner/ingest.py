"""How a batch of Kafka records becomes an epoch. The protocol, with the numbers used below:

1. **Bind.** The manifest binds epoch E to exact offsets, and to the announced installs that wait,
   before anything is written: beside step 2, which writes nothing. Whoever starts next finishes a
   bound epoch first, over those.
2. **Decode.** Records become rows in Arrow batches; one that fails becomes a quarantine row.
   Schemas not yet kept are written to `log/_schemas`.
3. **Drop duplicates** by what row E-1 of the manifest says was seen (`arrival.sort_out`).
4. **Append** to the log with `epoch = E`, guarded by (app id, E). From here on the log is read,
   never the batch.
5. **Fold** state over the log's rows between cut(E-1) and cut(E), guarded likewise; installs whose
   LSN the cut has reached become tables, with the changes since then folded over them.
6. **Commit** row E of the manifest. Only now is the epoch visible to who asks for consistency.
7. **Publish** the offsets to a consumer group, so that any Kafka tool shows the lag.

A crash between any two steps repeats the step and ends in the same rows; each has a failpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from kernel import failpoints
from kernel.errors import NotFound, StoreDiverged
from kernel.positions import Epoch, Offsets
from projections.log.frames import AVRO_SCHEMAS, UTC_MICROS
from projections.log.layout import Lake, changes_log, current_name, events_log
from projections.log.tables import TableAt, Tables
from projections.log.writer import ArrowWriter, Guard
from projections.runner.arrival import Arrival, Lateness, says_something, sort_out
from projections.runner.bulk import BulkInstalls
from projections.runner.folding import Folding
from projections.runner.manifest import Bound, Committed, Manifest
from projections.runner.pending import PendingTransactions
from projections.runner.progress import Progress
from projections.runner.quarantine import Quarantine, Redecode, nothing_decoded
from projections.runner.retries import Patience
from projections.runner.stopwatch import Stopwatch
from projections.runner.widened import IDENTITY, widened, without_moved
from projections.state.current import CurrentTables
from projections.state.following import SchemaFollower
from projections.state.held import Held
from projections.state.installing import Installer
from schemas.registry import SchemaLookup

REST = timedelta(hours=1)  # So long after an epoch heartbeats alone are passed by.


class Broker(Protocol):
    """What ingest asks of Kafka beside the records of its batch."""

    def publish(self, offsets: Offsets) -> None:
        """Commit `offsets` (the next ones to read) to a group. Best effort: nothing reads them."""
        ...

    def ends(self, source: str) -> Offsets:
        """Return where a captured source's topics end now, uncommitted records included.

        Raises `Unavailable`.
        """
        ...


class Ingest:
    """Runs epochs, one at a time. One instance at a time may write a lake (the guards see to it).

    Raises `StoreDiverged` when a known position arrives with other content, `LeaseLost` when
    another ingest writes the same lake, `Unavailable` when storage or registry do not answer. After
    any of these nothing of the epoch is visible and the next start finishes it.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        manifest: Manifest,
        schemas: SchemaLookup,
        *,
        lateness: Lateness,
        broker: Broker,
        current: CurrentTables | None = None,
        patience: Patience | None = None,
        rest: timedelta = REST,
        redecode: Redecode = nothing_decoded,
    ) -> None:
        """`patience` is kept over restarts of ingest: it counts how often a table failed.

        `redecode` decodes records that were in quarantine.
        """
        self._lake = lake
        self._tables = tables
        self._manifest = manifest
        self._schemas = schemas
        self._lateness = lateness
        self._broker = broker
        self._rest = rest
        self._writer = ArrowWriter(tables)
        self._current = current or CurrentTables(lake, tables, schemas)
        installer = Installer(lake=lake, tables=tables, schemas=schemas, current=self._current)
        patience = patience or Patience()
        self._quarantine = Quarantine(lake, tables, redecode)
        self._pending = PendingTransactions(lake, tables)
        self._bulk = BulkInstalls(lake, tables, manifest, installer, self._quarantine, patience)
        self._folding = Folding(
            lake=lake,
            tables=tables,
            current=self._current,
            follower=SchemaFollower(lake, tables, schemas),
            bulk=self._bulk,
            patience=patience,
        )
        self._last = manifest.last()
        self._current.resume(self._last.tables if self._last else {})
        self._progress = self._pending.resume(self._last)
        self._kept_schemas = self._read_kept_schemas()

    @property
    def last(self) -> Committed | None:
        """The newest committed epoch."""
        return self._last

    @property
    def next_epoch(self) -> Epoch:
        """The epoch that the next batch becomes."""
        return Epoch(self._last.epoch + 1 if self._last else 1)

    def run_epoch(
        self,
        bound: Bound,
        decode: Callable[[], pa.Table],
        *,
        without: Collection[str] = (),
    ) -> Committed:
        """Make epoch `bound.epoch` from the batch that `decode` reads and decodes.

        `decode` is called once and returns `frames.DECODED` rows of exactly the bound offsets, but
        none of the topics `without`: these stay as far as they were read.
        """
        whole, bound = bound, _leaving_out(bound, without)
        watch = Stopwatch()
        epoch = bound.epoch
        if bound.installs is None:
            bound = replace(bound, installs=self._bulk.waiting(self._progress))
        whole = replace(whole, installs=bound.installs)
        installs = bound.installs or ()
        failpoints.hit(failpoints.EPOCH_BEFORE_BIND)
        decoded = self._once(self._bind_and_decode(whole, decode, watch), bound)
        progress = self._progress.copy()
        self._bulk.begin(installs, progress)
        released = self._quarantine.take(self._bulk.decisions(installs), progress, epoch)
        arrival = sort_out(  # 3
            decoded,
            progress,
            before=self._progress,
            epoch=epoch,
            lateness=self._lateness,
            partitions={topic: len(places) for topic, places in bound.end.items()},
            now=datetime.now(UTC),
            released=released,
        )
        self._compare_repeated(arrival, epoch)
        watch.lap("dedupe")
        self._keep_schemas(arrival.schema_ids, epoch)
        failpoints.hit(failpoints.EPOCH_AFTER_SCHEMAS)
        tables = self._append(arrival, epoch)  # 4
        watch.lap("append")
        read = self._read(bound)
        for source, cut in progress.cuts.items():
            cut.settle(read, partial(self._broker.ends, source))
        folded, taken = self._folding.fold(
            progress, arrival.changes, epoch, installs, self._last
        )  # 5
        tables |= folded
        watch.lap("fold")
        failpoints.hit(failpoints.EPOCH_AFTER_FOLD)
        self._quarantine.note()
        kept = self._pending.keep(progress, epoch)
        done = self._committed(
            replace(bound, installs=taken), progress, kept, tables, arrival, watch
        )
        self._manifest.commit(done)  # 6
        failpoints.hit(failpoints.EPOCH_AFTER_MANIFEST)
        self._last, self._progress = done, progress
        self._broker.publish(bound.end)  # 7
        failpoints.hit(failpoints.EPOCH_AFTER_OFFSETS)
        return done

    def _bind_and_decode(
        self, bound: Bound, decode: Callable[[], pa.Table], watch: Stopwatch
    ) -> pa.Table:
        """Decode while the manifest binds: decoding writes nothing, all that follows waits."""
        with ThreadPoolExecutor(1, thread_name_prefix="bind") as beside:
            binding = beside.submit(self._manifest.bind, bound)  # 1
            decoded = decode()  # 2
            watch.lap("decode")
            binding.result()
        watch.lap("bind")
        failpoints.hit(failpoints.EPOCH_AFTER_BIND)
        return decoded

    def _once(self, decoded: pa.Table, bound: Bound) -> pa.Table:
        """Drop changes that partitions added to their topic moved, and that came before."""
        topics = widened(bound.end, {**(self._last.topics if self._last else {}), **bound.topics})
        if not topics:
            return decoded

        def logged(source: str, transactions: pa.Array) -> pa.Table | None:
            before = pc.field("epoch") < bound.epoch
            where = before & pc.is_in(pc.field("transaction_id"), transactions)
            path = self._lake.path(changes_log(source))
            return self._tables.read(path, where=where, columns=IDENTITY)

        return without_moved(decoded, topics, self._progress.marks, logged)

    def _read(self, bound: Bound) -> Offsets:
        """Return the offsets up to which Kafka has been read with this epoch."""
        return {**(self._last.end if self._last else {}), **bound.end}

    def pass_by(self, bound: Bound, decoded: pa.Table) -> bool:
        """Take a batch that says nothing as read, without an epoch; False where it needs one.

        The next epoch, bound from the last one's offsets, contains it: `rest` later at the latest.
        """
        old = self._last is None or datetime.now(UTC) - self._last.at >= self._rest
        if (
            old
            or says_something(decoded)
            or self.waiting_for()
            or self._bulk.waiting(self._progress)
        ):
            return False
        self._broker.publish(bound.end)
        return True

    def held(self) -> Held:
        """Return the tables that stand still, per source, and why."""
        return self._progress.held

    def undecided(self) -> bool:
        """Say whether decisions about records in quarantine wait for an epoch."""
        return bool(self._bulk.decisions(self._bulk.waiting(self._progress)))

    def stuck(self) -> dict[str, str]:
        """Say per source why its changes could not be read in the last epoch."""
        return dict(self._folding.stuck)

    def poisoned(self) -> dict[str, str]:
        """Return the topic, per source, of which records in quarantine hold its cut."""
        parts = {source: cut.poisoned() for source, cut in self._progress.cuts.items()}
        return {
            quarantined.source: topic
            for topic, quarantined in self._progress.quarantine.items()
            if quarantined.source is not None
            and quarantined.table == parts.get(quarantined.source, "")
        }

    def waiting_for(self) -> dict[str, str]:
        """Say per source what holds its cut, for status and alarms."""
        held = {source: cut.waiting_for() for source, cut in self._progress.cuts.items()}
        waits = {source: reason for source, reason in held.items() if reason is not None}
        return waits | self._folding.stuck

    def _keep_schemas(self, ids: set[int], epoch: Epoch) -> None:
        new = sorted(ids - self._kept_schemas)
        rows = []
        for each in new:
            # A schema that the registry has lost holds the tables that need it, and no others.
            with contextlib.suppress(NotFound):
                schema = self._schemas.schema(each)
                rows.append({"epoch": epoch, "schema_id": each, "schema": schema})
        if not rows:
            return
        table = pa.Table.from_pylist(rows, schema=AVRO_SCHEMAS)
        self._writer.append(self._lake.avro_schemas, table, Guard("log/_schemas", epoch))
        self._kept_schemas |= set(table["schema_id"].to_pylist())

    def _read_kept_schemas(self) -> set[int]:
        rows = self._tables.read(self._lake.avro_schemas, columns=["schema_id"])
        return set() if rows is None else set(rows["schema_id"].to_pylist())

    def _append(self, arrival: Arrival, epoch: Epoch) -> dict[str, TableAt]:
        if arrival.quarantined.num_rows:
            guard = Guard("quarantine/records", epoch)
            self._writer.append(self._lake.quarantine, arrival.quarantined, guard)
        failpoints.hit(failpoints.EPOCH_AFTER_QUARANTINE)
        at: dict[str, TableAt] = {}
        logs = [(events_log(s), rows, "category") for s, rows in arrival.events.items()]
        logs += [(changes_log(s), rows, "table") for s, rows in arrival.changes.items()]
        for name, rows, partition in logs:
            version = self._writer.append(
                self._lake.path(name), rows, Guard(name, epoch), partition_by=[partition]
            )
            at[name] = TableAt(version=version, as_of_epoch=epoch)
        failpoints.hit(failpoints.EPOCH_AFTER_LOG)
        return at

    def _compare_repeated(self, arrival: Arrival, epoch: Epoch) -> None:
        """Events seen before must have the content that the log has for their positions."""
        for store, repeated in arrival.repeated.items():
            positions = pa.array(repeated["position"].to_pylist(), pa.int64())
            known = self._tables.read(
                self._lake.path(events_log(store)),
                where=pc.is_in(pc.field("position"), positions) & (pc.field("epoch") < epoch),
                columns=["position", "event_id", "stream", "version", "type", "data"],
            )
            logged = {row["position"]: row for row in known.to_pylist()} if known else {}
            for row in repeated.to_pylist():
                row["data"] = row["value"]
                before = logged.get(row["position"])
                if before is not None and any(row[k] != v for k, v in before.items()):
                    raise StoreDiverged(
                        f"position {row['position']} of store {store} is event {row['event_id']} "
                        f"now and was {before['event_id']} in the log",
                        store=store,
                        position=row["position"],
                    )

    def _committed(
        self,
        bound: Bound,
        progress: Progress,
        kept: str,
        tables: Mapping[str, TableAt],
        arrival: Arrival,
        watch: Stopwatch,
    ) -> Committed:
        epoch = bound.epoch
        before = self._last.tables if self._last else {}
        held = {current_name(s, t) for s, names in progress.held.items() for t in names}
        unchanged = {
            name: at if name in held else TableAt(version=at.version, as_of_epoch=epoch)
            for name, at in before.items()
        }
        return Committed(
            epoch=epoch,
            run_id=bound.run_id,
            batch_id=bound.batch_id,
            end=self._read(bound),
            progress=kept,
            heads={store: seen.head for store, seen in progress.positions.items()},
            cuts={source: cut.lsn for source, cut in progress.cuts.items()},
            pending_from={
                source: cut.pending_from_epoch(default=epoch + 1)
                for source, cut in progress.cuts.items()
            },
            tables=unchanged | dict(tables),
            counts=dict(arrival.counts) | _freshness(arrival),
            timings_ms=dict(watch.steps),
            at=datetime.now(UTC),
            installs=bound.installs or (),
            topics={**(self._last.topics if self._last else {}), **bound.topics},
        )


def _leaving_out(bound: Bound, without: Collection[str]) -> Bound:
    """Return an epoch as if it had not been bound to any record of these topics."""
    if not without:
        return bound
    return replace(
        bound,
        start={topic: at for topic, at in bound.start.items() if topic not in without},
        end={topic: at for topic, at in bound.end.items() if topic not in without},
        topics={topic: each for topic, each in bound.topics.items() if topic not in without},
    )


def _freshness(arrival: Arrival) -> dict[str, int]:
    """Return milliseconds from the append of the epoch's events to now: p50, p95, max."""
    now = pa.scalar(datetime.now(UTC), UTC_MICROS)
    ages = [
        age / 1000
        for rows in arrival.events.values()
        for age in pc.subtract(now, rows["recorded_at"]).cast(pa.int64()).to_pylist()
    ]
    if not ages:
        return {}
    ages.sort()
    return {
        "freshness_ms_p50": round(ages[len(ages) // 2]),
        "freshness_ms_p95": round(ages[int(len(ages) * 0.95)]),
        "freshness_ms_max": round(ages[-1]),
    }
