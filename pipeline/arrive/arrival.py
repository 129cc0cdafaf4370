"""Step 3 of ingest: what of a decoded batch is new, and which of it is late.

Pure: it works on a copy of the progress of epoch E-1 and returns the rows of epoch E. Python looks
only at the few columns that decide (`sorter`); bytes and text stay in Arrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake.transaction import AddAction

from kernel.clock import micros
from lake.layout import changes_log
from lake.stretches import in_order
from lake.table_columns import IGNORED, QUARANTINE, REJECTED
from pipeline.arrive.seen_events import SeenEvents, content_of, events_at
from pipeline.arrive.sorter import Released, Sorter
from pipeline.decode.log_rows import Kept, change_rows, event_rows, quarantine_rows, record_rows
from pipeline.position.progress import Lateness, Progress


@dataclass(slots=True)
class Arrival:
    """The rows that epoch E adds to each log table, as Arrow, and counts for people.

    `repeated` are events (`DECODED` columns) whose positions were seen in earlier epochs: the
    caller compares them with the log before it believes that they are duplicates.
    `schema_changes` are the sources whose DDL is among the rows. `staged` are files of further
    rows, by the name of their table, which executors wrote. `recorded_us` is when the epoch's
    events were appended, in microseconds since 1970 UTC.
    """

    events: dict[str, pa.Table] = field(default_factory=dict)
    changes: dict[str, pa.Table] = field(default_factory=dict)
    records: dict[str, pa.Table] = field(default_factory=dict)
    quarantined: pa.Table = field(default_factory=QUARANTINE.empty_table)
    repeated: dict[str, pa.Table] = field(default_factory=dict)
    staged: dict[str, list[AddAction]] = field(default_factory=dict)
    recorded_us: list[npt.NDArray[np.int64]] = field(default_factory=list)
    schema_ids: set[int] = field(default_factory=set)
    schema_changes: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)

    def captured(self) -> set[str]:
        """Return the captured sources whose logs get rows: from here, or in files of executors."""
        log = changes_log("")
        staged = (name.removeprefix(log) for name in self.staged if name.startswith(log))
        return {*self.changes, *staged}

    def freshness(self, now: datetime) -> dict[str, int]:
        """Return milliseconds from the append of the epoch's events to now: p50, p95, max."""
        if not sum(map(len, self.recorded_us)):
            return {}
        ages = np.sort((micros(now) - np.concatenate(self.recorded_us)) / 1000).tolist()
        return {
            "freshness_ms_p50": round(ages[len(ages) // 2]),
            "freshness_ms_p95": round(ages[int(len(ages) * 0.95)]),
            "freshness_ms_max": round(ages[-1]),
        }


def says_something(decoded: pa.Table) -> bool:
    """Whether a decoded batch has more than heartbeats and what else ingest ignores."""
    return bool(pc.any(pc.not_equal(decoded["kind"], IGNORED), min_count=0).as_py())


def sort_out(
    decoded: pa.Table,
    progress: Progress,
    *,
    before: Progress,
    epoch: int,
    lateness: Lateness,
    partitions: Mapping[str, int],
    now: datetime,
    released: Released | None = None,
    ids: Mapping[str, str] = MappingProxyType({}),
) -> Arrival:
    """Split a decoded batch into the rows of each log table, advancing `progress`.

    `before` is the progress of epoch E-1, by which duplicates and lateness are judged: the verdict
    does not depend on how rows are spread over one batch. `partitions` says how many each topic
    has, `ids` what Kafka calls it. Rows keep the order of their partition. `released` are rows that
    were in quarantine. Raises `StoreDiverged` when the batch has two events of one position.
    """
    ordered = in_order(decoded)
    sorter = Sorter(progress, before, epoch, lateness, partitions)
    sorter.take_slice(ordered)
    sorter.take_rejected(now)
    rejected = ordered.filter(pc.equal(ordered["kind"], REJECTED))
    if released is not None and released.rows.num_rows:
        sorter.take_all_released(released, first=ordered.num_rows)
        ordered = pa.concat_tables([ordered, released.rows])
    for store, positions in sorter.doubled.items():
        SeenEvents(store).take(content_of(events_at(ordered, store, positions)))
    return Arrival(
        events={s: event_rows(ordered, kept, epoch, now) for s, kept in sorter.events.items()},
        changes={s: change_rows(ordered, kept, epoch, now) for s, kept in sorter.changes.items()},
        records={
            s: record_rows(ordered, kept, epoch, now, ids) for s, kept in sorter.records.items()
        },
        quarantined=quarantine_rows(rejected, epoch, now),
        repeated={s: ordered.take(rows) for s, rows in sorter.repeated.items()},
        recorded_us=[recorded_us(ordered, kept) for kept in sorter.events.values()],
        schema_ids=sorter.schema_ids,
        schema_changes=sorter.schema_changes,
        counts=sorter.total(),
    )


def recorded_us(ordered: pa.Table, kept: Kept) -> npt.NDArray[np.int64]:
    """Return when the kept events of a batch were appended, in microseconds since 1970 UTC."""
    times = ordered["recorded_at"].take(pa.array(kept.rows, pa.int64())).drop_null()
    found: npt.NDArray[np.int64] = times.cast(pa.int64()).to_numpy()
    return found
