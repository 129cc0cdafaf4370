"""Runs of facts that need no look at each row: one table, one partition, in order, all new.

That is nearly every change and event of nearly every batch. Anything else (duplicates, snapshots,
messages, ENDs) is left to be decided row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lake.table_columns import CHANGE, EVENT
from pipeline.decode.log_rows import SIZE, sizes_of
from pipeline.position.progress import NOWHERE, Mark, Progress

FEW = 16
"""Shorter runs are not worth it."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalRun:
    """Rows `[first, last)` of a batch: streamed changes of one table from one topic partition.

    `transactions`: txid -> number of rows, greatest LSN, bytes of rows; `orders`: txid -> the
    commit before it. Event times in microseconds.
    """

    first: int
    last: int
    source: str
    table: str
    topic: str
    partition: int
    mark: Mark
    transactions: Mapping[str, tuple[int, int, int]]
    orders: Mapping[str, int]
    event_times: Numbers

    @property
    def place(self) -> str:
        """The topic partition, as marks and watermarks name it."""
        return f"{self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRun:
    """Rows `[first, last)` of a batch: events of one category from one topic partition.

    Positions rise; whether they are new is not said. Event times in microseconds.
    """

    first: int
    last: int
    source: str
    category: str
    topic: str
    partition: int
    positions: Numbers
    event_times: Numbers

    @property
    def place(self) -> str:
        """The topic partition, as watermarks name it."""
        return f"{self.topic}/{self.partition}"


def runs_of(ordered: pa.Table, before: Progress) -> Iterator[ArrivalRun | EventRun]:
    """Find the runs of a batch that is sorted by topic, partition and offset, in its order.

    `before` has the high-water marks that the rows of changes must be beyond.
    """
    for first, last in _segments(ordered):
        if last - first < FEW:
            continue
        rows = ordered.slice(first, last - first)
        run = _run(rows, first, before) or _event_run(rows, first)
        if run is not None:
            yield run


def others(count: int, runs: list[ArrivalRun | EventRun]) -> Numbers:
    """Return the places of the rows that are in no run."""
    left = np.ones(count, bool)
    for run in runs:
        left[run.first : run.last] = False
    return np.flatnonzero(left)


def _segments(ordered: pa.Table) -> Iterator[tuple[int, int]]:
    if ordered.num_rows == 0:
        return
    topics = ordered["topic"].combine_chunks().dictionary_encode().indices
    codes = topics.to_numpy(zero_copy_only=False).astype(np.int64) << 32
    codes = codes + ordered["partition"].to_numpy()
    ends = [*(np.flatnonzero(np.diff(codes)) + 1).tolist(), ordered.num_rows]
    yield from zip([0, *ends[:-1]], ends, strict=True)


def _run(rows: pa.Table, first: int, before: Progress) -> ArrivalRun | None:
    if any(len(rows[name].unique()) != 1 for name in ("kind", "source", "table", "snapshot")):
        return None
    if rows["kind"][0].as_py() != CHANGE or rows["snapshot"][0].as_py():
        return None
    topic, partition = rows["topic"][0].as_py(), rows["partition"][0].as_py()
    first_mark, last_mark = _mark(rows.slice(0, 1)), _mark(rows.slice(rows.num_rows - 1))
    before_it = before.marks.get(f"{topic}/{partition}", NOWHERE)
    if first_mark.order < before_it.order or not first_mark.beyond(before_it):
        return None
    if not _rising(rows):
        return None
    lsns = rows.select(["transaction_id", "lsn", "commit_order"]).append_column(
        SIZE, sizes_of(rows)
    )
    of_each = [("lsn", "count"), ("lsn", "max"), ("commit_order", "min"), (SIZE, "sum")]
    counted = lsns.group_by("transaction_id").aggregate(of_each).to_pylist()
    return ArrivalRun(
        first=first,
        last=first + rows.num_rows,
        source=rows["source"][0].as_py(),
        table=rows["table"][0].as_py(),
        topic=topic,
        partition=partition,
        mark=last_mark,
        transactions={
            c["transaction_id"]: (c["lsn_count"], c["lsn_max"], c[f"{SIZE}_sum"]) for c in counted
        },
        orders={c["transaction_id"]: c["commit_order_min"] for c in counted},
        event_times=pc.fill_null(rows["event_time"].cast(pa.int64()), 0).to_numpy(),
    )


def _event_run(rows: pa.Table, first: int) -> EventRun | None:
    if any(len(rows[name].unique()) != 1 for name in ("kind", "source", "table")):
        return None
    if rows["kind"][0].as_py() != EVENT:
        return None
    positions = rows["position"].to_numpy()
    if not bool((np.diff(positions) > 0).all()):
        return None
    return EventRun(
        first=first,
        last=first + rows.num_rows,
        source=rows["source"][0].as_py(),
        category=rows["table"][0].as_py(),
        topic=rows["topic"][0].as_py(),
        partition=rows["partition"][0].as_py(),
        positions=positions,
        event_times=pc.fill_null(rows["event_time"].cast(pa.int64()), 0).to_numpy(),
    )


def _rising(rows: pa.Table) -> bool:
    """Say whether each change is beyond the one before it, as `Mark.beyond` does, and no lower."""
    order, lsn, total = (rows[name].to_numpy() for name in ("commit_order", "lsn", "total_order"))
    transactions = rows["transaction_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    same = transactions[1:] == transactions[:-1]
    later = (lsn[1:] > lsn[:-1]) | ((lsn[1:] == lsn[:-1]) & (total[1:] > total[:-1]))
    higher = order[1:] > order[:-1]
    return bool((((higher & ~same) | later) & (order[1:] >= order[:-1])).all())


def _mark(row: pa.Table) -> Mark:
    names = ("commit_order", "lsn", "total_order", "transaction_id")
    return Mark(*(row[name][0].as_py() for name in names))
