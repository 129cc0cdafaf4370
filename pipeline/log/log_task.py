"""What an executor does with its share of an epoch: decode records and write the log's files.

The rows are written as they will stand in the log if all of them are new, which is the rule. What
the driver needs in order to say so for each row (`DECIDING`) goes to a file of its own, which the
driver reads slice by slice. Only the names and statistics of the files come back.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lake.attempt_files import stem_of
from lake.datasets import files_at
from lake.executor_tasks import WRITTEN, handed_back
from lake.layout import Lake, changes_log, events_log, topics_log
from lake.staged_files import FilePlace, StagedFiles
from lake.storage import make_folder
from lake.table_columns import (
    CHANGE,
    DECODED,
    EVENT,
    MESSAGE,
    RECORD,
    REJECTED,
    SCHEMA_TABLE,
    SNAPSHOT_END,
    TRANSACTION_END,
)
from pipeline.decode.log_rows import (
    SIZE,
    Kept,
    change_rows,
    event_rows,
    quarantine_rows,
    record_rows,
    sizes_of,
)
from pipeline.decode.records import Decoder, Router, decode_batch, put_together
from pipeline.position.intervals import IntervalSet

QUARANTINED = "quarantine/records"
GROUP_ROWS = 2**16
"""Rows of a row group, so that a slice of a large transaction reads little beside its own rows."""

_ALWAYS = ("kind", "topic", "partition", "offset", "source", "table", "position", "event_time")
_PLACE = ("transaction_id", "lsn", "commit_order", "total_order", "snapshot")
_OF_ENDS = ("counts",)
_OF_REJECTED = ("reason", "metadata")
_OF_REPEATED = ("event_id", "stream", "version", "type", "value")
_OF_MOVED = ("operation", "key")
_COLUMNS = (
    *(*_ALWAYS, *_PLACE, "schema_id", "key_schema_id", "recorded_at"),
    *(*_OF_ENDS, *_OF_REJECTED, *_OF_REPEATED, *_OF_MOVED),
)
FILE, ROW = "__file", "__row"
DECIDING = pa.schema(
    [
        *(DECODED.field(name) for name in _COLUMNS),
        *((SIZE, pa.int64()), (FILE, pa.int32()), (ROW, pa.int64())),
    ]
)
"""Columns of `DECODED` by which rows are judged; null where a row does not need one. `__size` has
the bytes of what is not there. `__file` is the number of the task's file that has the row, -1 for
one that the log does not keep; `__row` is its place there."""

TOLD = pa.schema(
    [
        ("kind", pa.string()),
        ("task", pa.string()),
        ("number", pa.int32()),
        *WRITTEN,
        ("partition", pa.int32()),
        ("first", pa.int64()),
    ]
)
"""What comes back of a task. A `file`: the columns of `WRITTEN`. A `group` of deciding rows: topic
(`name`), `rows`, partition, first offset, and the `size` that the records had in memory."""
TOLD_FILE, TOLD_GROUP = "file", "group"

PARTITIONED = {"log/events/": "category", "log/changes/": "table"}
"""The column that a table of the log is partitioned by, by the beginning of its name."""

_LOGGED = pa.array([CHANGE, TRANSACTION_END, SNAPSHOT_END])


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What executors must know in order to write an epoch's rows as they will be.

    `limits` are those of `Watermarks`, `positions` the events seen before this epoch, by store.
    `moved` are the topics whose changes may come once more in another partition. `ids` is what
    Kafka calls each topic. `attempt` tells this attempt at the epoch from others.
    """

    lake: Lake
    epoch: int
    now: datetime
    attempt: str
    limits: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    positions: Mapping[str, IntervalSet] = field(default_factory=dict)
    moved: frozenset[str] = frozenset()
    ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Return where the deciding rows of this attempt lie."""
        return f"{attempts_folder(self.lake)}/{self.epoch}-{self.attempt}"


def attempts_folder(lake: Lake) -> str:
    """Return the folder of what attempts at epochs leave for the driver. Nothing in it lasts."""
    return lake.path("log/_attempts")


def partition_of(name: str) -> str | None:
    """Return the column that a table is partitioned by; None without one."""
    return next((column for begin, column in PARTITIONED.items() if name.startswith(begin)), None)


@dataclass(frozen=True, slots=True)
class LogTask:
    """The function that `mapInArrow` runs. It takes raw records and returns rows of `TOLD`.

    Records of a topic's partition must come in their order and without those of others in between.
    """

    router: Router
    facts: Facts

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode and write; see `LogTask`. Files of a task that fails are garbage."""
        decoders: dict[str, Decoder | None] = {}
        share: _Share | None = None
        for batch in put_together(batches):
            if batch.num_rows == 0:
                continue
            share = share or _Share(self.facts)
            parts = [*decode_batch(batch, self.router, decoders)]
            decoded = pa.Table.from_batches(parts, DECODED).sort_by(
                [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
            )
            for rows in _by_place(decoded):
                share.take(rows)
        if share is not None:
            yield share.close()


def _by_place(ordered: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of each topic partition."""
    topics = ordered["topic"].combine_chunks().dictionary_encode().indices.to_numpy()
    places = (topics.astype(np.int64) << 32) + ordered["partition"].to_numpy()
    ends = [*(np.flatnonzero(np.diff(places)) + 1).tolist(), ordered.num_rows]
    for first, last in zip([0, *ends[:-1]], ends, strict=True):
        yield ordered.slice(first, last - first)


class _Share:
    """Files of one task. Those of a topic partition end with it, so that few are open at once."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._name = uuid.uuid4().hex[:16]
        self._told: list[dict[str, object]] = []
        self._open: dict[tuple[str, str | None], tuple[int, StagedFiles]] = {}
        self._begun = 0
        self._groups = 0
        self._place: tuple[str, int] | None = None
        make_folder(facts.folder)
        self._deciding = pq.ParquetWriter(
            f"{self._name}.parquet",
            DECIDING,
            filesystem=files_at(facts.folder),
            compression="zstd",
            compression_level=1,
        )

    def take(self, rows: pa.Table) -> None:
        """Write rows of one topic partition, in their order."""
        place = rows["topic"][0].as_py(), rows["partition"][0].as_py()
        if place != self._place:
            self._end_files()
            self._place = place
        files = np.full(rows.num_rows, -1, np.int32)
        numbers = np.zeros(rows.num_rows, np.int64)
        for name, value, logged, places in _logged(rows, self._facts):
            number, file = self._file(name, value)
            files[places] = number
            numbers[places] = np.arange(file.rows, file.rows + len(places))
            file.write(logged)
        deciding = _deciding(rows, self._facts)
        deciding = deciding.append_column(FILE, pa.array(files))
        self._deciding.write_table(deciding.append_column(ROW, pa.array(numbers)).cast(DECIDING))
        self._tell(
            TOLD_GROUP,
            self._groups,
            name=place[0],
            partition=place[1],
            rows=rows.num_rows,
            size=rows.nbytes,
            first=rows["offset"][0].as_py(),
        )
        self._groups += 1

    def close(self) -> pa.RecordBatch:
        """End all files and return what is told of them."""
        self._end_files()
        self._deciding.close()
        return pa.RecordBatch.from_pylist(self._told, schema=TOLD)

    def _file(self, name: str, value: str | None) -> tuple[int, StagedFiles]:
        found = self._open.get((name, value))
        if found is None:
            place = file_place(name, value, self._facts, f"{self._name}-{self._begun}")
            found = self._begun, StagedFiles(self._facts.lake.path(name), place)
            self._open[name, value] = found
            self._begun += 1
        return found

    def _end_files(self) -> None:
        for (name, value), (number, file) in self._open.items():
            for written in handed_back(file, name, value):
                self._tell(TOLD_FILE, number, **written.row())
        self._open.clear()

    def _tell(self, kind: str, number: int, **more: object) -> None:
        self._told.append({"kind": kind, "task": self._name, "number": number, **more})


def file_place(name: str, value: str | None, facts: Facts, of_own: str) -> FilePlace:
    """Return where a file of an attempt lies below its table; `of_own` makes it the only one."""
    column = partition_of(name)
    return FilePlace(
        stem=f"{stem_of(facts.epoch)}{facts.attempt}.{of_own}",
        values={} if column is None or value is None else {column: value},
        group_rows=GROUP_ROWS,
    )


Logged = tuple[str, str | None, pa.Table, npt.NDArray[np.int64]]


def _logged(rows: pa.Table, facts: Facts) -> Iterator[Logged]:
    """Yield the rows of each table and partition of the log, and their places among `rows`."""
    kinds = rows["kind"]
    told = pc.and_(pc.equal(kinds, MESSAGE), pc.equal(rows["table"], SCHEMA_TABLE))
    changes = pc.or_(pc.is_in(kinds, _LOGGED), pc.fill_null(told, False))
    for source, places in _grouped(rows["source"], _true(changes)):
        logged = change_rows(rows, _judged(rows, places, facts, ""), facts.epoch, facts.now)
        yield from _partitioned(changes_log(source), logged, places)
    for store, places in _grouped(rows["source"], _true(pc.equal(kinds, EVENT))):
        logged = event_rows(rows, _judged(rows, places, facts, "events."), facts.epoch, facts.now)
        yield from _partitioned(events_log(store), logged, places)
    for source, places in _grouped(rows["source"], _true(pc.equal(kinds, RECORD))):
        kept = _judged(rows, places, facts, "topics.")
        logged = record_rows(rows, kept, facts.epoch, facts.now, facts.ids)
        yield topics_log(source), None, logged, places
    rejected = _true(pc.equal(kinds, REJECTED))
    if len(rejected):
        taken = quarantine_rows(rows.take(pa.array(rejected)), facts.epoch, facts.now)
        yield QUARANTINED, None, taken, rejected


def _partitioned(name: str, logged: pa.Table, places: npt.NDArray[np.int64]) -> Iterator[Logged]:
    column = partition_of(name)
    assert column is not None, name
    for value, own in _grouped(logged[column], np.arange(logged.num_rows)):
        part = logged if len(own) == logged.num_rows else logged.take(pa.array(own))
        yield name, value, part.drop_columns([column]), places[own]


def _judged(rows: pa.Table, places: npt.NDArray[np.int64], facts: Facts, begin: str) -> Kept:
    """Keep rows, with the verdicts on their lateness: those of `Sorter`, for many at once."""
    watermarks = np.full(rows.num_rows, None, object)
    late = np.zeros(rows.num_rows, bool)
    facts_of = pc.is_in(rows["kind"], pa.array([CHANGE, EVENT, RECORD]))
    judged = places[facts_of.to_numpy()[places]]
    times = pc.fill_null(rows["event_time"].cast(pa.int64()), 0).to_numpy()
    copied = pc.fill_null(rows["snapshot"], False).to_numpy()
    for table, own in _grouped(rows["table"], judged):
        source = rows["source"][int(own[0])].as_py()
        name = f"{begin}{table}" if begin else f"{source}.{table}"
        if name in facts.limits:
            watermark, limit = facts.limits[name]
            watermarks[own] = watermark
            late[own] = (times[own] < limit) & ~copied[own]
    return Kept(
        rows=places.tolist(),
        watermarks=watermarks[places].tolist(),
        late=late[places].tolist(),
    )


def _deciding(rows: pa.Table, facts: Facts) -> pa.Table:
    """Return the columns that decide, without what the row does not need."""
    kinds = rows["kind"]
    needs = {
        _OF_ENDS: pc.is_in(kinds, pa.array([TRANSACTION_END, SNAPSHOT_END])),
        _OF_REJECTED: pc.equal(kinds, REJECTED),
        _OF_REPEATED: _repeated(rows, facts),
        _OF_MOVED: pc.is_in(rows["topic"], pa.array(sorted(facts.moved), pa.string())),
    }
    chosen = {name: rows[name] for name in _COLUMNS}
    for names, needed in needs.items():
        for name in names:
            chosen[name] = pc.if_else(needed, rows[name], pa.scalar(None, rows[name].type))
    return pa.table({**chosen, SIZE: sizes_of(rows)})


def _repeated(rows: pa.Table, facts: Facts) -> pa.Array:
    """Say which rows are events of positions that were seen before this epoch."""
    again = np.zeros(rows.num_rows, bool)
    events = _true(pc.equal(rows["kind"], EVENT))
    for store, places in _grouped(rows["source"], events):
        seen = facts.positions.get(store)
        if seen is not None:
            positions = rows["position"].take(pa.array(places)).to_pylist()
            again[places] = [position in seen for position in positions]
    return pa.array(again)


def _true(mask: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.flatnonzero(pc.fill_null(mask, False).to_numpy())


def _grouped(
    column: pa.ChunkedArray, places: npt.NDArray[np.int64]
) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
    """Yield each value of a column among some of its places, and these."""
    if len(places) == 0:
        return
    coded = column.take(pa.array(places)).combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy()
    for code, value in enumerate(coded.dictionary.to_pylist()):
        yield value, places[codes == code]
