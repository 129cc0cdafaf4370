"""The rows of an epoch that executors wrote (`log_task`), as the driver sees them.

Which rows are new, late, of which commit is decided here from the deciding columns alone, slice by
slice, so that memory does not grow with the rows. A file whose rows are all kept becomes part of
the log as it is; one that has others beside them is written again without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from lake import storage
from lake.datasets import files_at
from lake.executor_tasks import WrittenFile
from lake.layout import Lake, events_log
from lake.staged_files import StagedFiles
from lake.table_columns import REJECTED
from pipeline.arrive.arrival import Arrival, recorded_us
from pipeline.arrive.seen_events import CONTENT, SeenEvents, content_of, events_at
from pipeline.arrive.sorter import Released, Sorter
from pipeline.arrive.widened_topics import Logged, moved_rows
from pipeline.decode.log_rows import Kept, change_rows, event_rows, record_rows
from pipeline.log.log_task import (
    DECIDING,
    FILE,
    ROW,
    TOLD_FILE,
    TOLD_GROUP,
    Facts,
    attempts_folder,
    file_place,
    partition_of,
)
from pipeline.position.progress import Lateness, Progress

SLICE_ROWS = 2**15
"""Deciding rows that are looked at together, about."""

_NUMBER = "row"

Compare = Callable[[Mapping[str, pa.Table]], None]
"""Compares events of positions that were seen before with the log, by store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    """Deciding rows of one topic partition, in their order. `base` is the first file's number."""

    topic: str
    partition: int
    first: int
    rows: int
    size: int
    task: str
    number: int
    base: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Files of one attempt at an epoch, and where the deciding rows are."""

    facts: Facts
    files: Sequence[WrittenFile]
    groups: Sequence[_Group]

    @classmethod
    def of(cls, facts: Facts, told: pa.Table) -> Staged:
        """Return what tasks told (`log_task.TOLD`)."""
        rows = told.to_pylist()
        of_tasks: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(rows, key=lambda row: (row["task"], row["number"])):
            if row["kind"] == TOLD_FILE:
                of_tasks.setdefault(row["task"], []).append(row)
        files: list[WrittenFile] = []
        bases: dict[str, int] = {}
        for task, own in of_tasks.items():
            assert [row["number"] for row in own] == list(range(len(own))), "a file is missing"
            bases[task] = len(files)
            files += [WrittenFile.of(row) for row in own]
        groups = [
            _Group(
                topic=row["name"],
                partition=row["partition"],
                first=row["first"],
                rows=row["rows"],
                size=row["size"],
                task=row["task"],
                number=row["number"],
                base=bases.get(row["task"], 0),
            )
            for row in rows
            if row["kind"] == TOLD_GROUP
        ]
        groups.sort(key=lambda group: (group.topic, group.partition, group.first))
        return cls(facts=facts, files=files, groups=groups)

    @property
    def rows(self) -> int:
        """Return the number of records."""
        return sum(group.rows for group in self.groups)

    @property
    def decoded_bytes(self) -> int:
        """Return what the records took in memory, decoded."""
        return sum(group.size for group in self.groups)

    def slices(self, topics: Collection[str] | None = None) -> Iterator[pa.Table]:
        """Yield the deciding rows in the order of topics, partitions and offsets.

        `__file` is the place of the file in `files`; `row` numbers all rows of the epoch. With
        `topics`, those of others are left out.
        """
        parts: list[pa.Table] = []
        opened: dict[str, pq.ParquetFile] = {}
        files = files_at(self.facts.folder)
        first = pending = 0
        for group in self.groups:
            if topics is None or group.topic in topics:
                if group.task not in opened:
                    source = files.open_input_file(f"{group.task}.parquet")
                    opened[group.task] = pq.ParquetFile(source)
                rows = _deciding(opened[group.task], group.number)
                places = rows[FILE].to_numpy()
                numbered = np.where(places < 0, -1, places + group.base)
                rows = rows.set_column(len(DECIDING) - 2, FILE, pa.array(numbered, pa.int64()))
                number = np.arange(first, first + group.rows)
                parts.append(rows.append_column(_NUMBER, pa.array(number)))
                pending += group.rows
            first += group.rows
            if pending >= SLICE_ROWS:
                yield pa.concat_tables(parts).combine_chunks()
                parts, pending = [], 0
        if parts:
            yield pa.concat_tables(parts).combine_chunks()
        for file in opened.values():
            file.close()

    def forget_deciding(self) -> None:
        """Delete the deciding rows."""
        storage.remove(self.facts.folder)


def _deciding(file: pq.ParquetFile, number: int) -> pa.Table:
    """Read a group of deciding rows. Most columns of most groups are null: they are not read."""
    told = file.metadata.row_group(number)
    given = [
        place
        for place in range(told.num_columns)
        if not (counted := told.column(place).statistics) or counted.null_count < told.num_rows
    ]
    rows = file.read_row_group(
        number, columns=[DECIDING.names[place] for place in given], use_threads=False
    )
    columns = [
        rows[field.name] if place in given else pa.nulls(told.num_rows, field.type)
        for place, field in enumerate(DECIDING)
    ]
    return pa.table(columns, schema=DECIDING)


Stage = Callable[[Facts], Staged]
"""Has executors decode the records of an epoch and write them."""


def sort_staged(
    staged: Staged,
    progress: Progress,
    *,
    before: Progress,
    lateness: Lateness,
    partitions: Mapping[str, int],
    released: Released | None,
    compare: Compare,
    logged: Logged,
) -> Arrival:
    """Do what `sort_out` does, for rows that executors hold.

    `compare` takes the repeated events of a slice, `logged` reads changes of topics whose
    partitions were added to.
    """
    facts = staged.facts
    sorter = Sorter(progress, before, facts.epoch, lateness, partitions)
    verdicts = _Verdicts(staged)
    moved = pa.array(_moved(staged, before, logged), pa.int64())
    times: list[npt.NDArray[np.int64]] = []
    for ordered in staged.slices():
        judged = ordered
        if len(moved):
            judged = ordered.filter(pc.invert(pc.is_in(ordered[_NUMBER], moved)))
        sorter.take_slice(judged)
        compare({store: judged.take(rows) for store, rows in sorter.repeated.items()})
        kept = [*sorter.events.values(), *sorter.changes.values(), *sorter.records.values()]
        verdicts.note(ordered, judged, kept)
        times += [recorded_us(judged, each) for each in sorter.events.values()]
    sorter.begin()
    sorter.take_rejected(facts.now)
    rows = released.rows if released is not None else DECIDING.empty_table()
    if released is not None and rows.num_rows:
        sorter.take_all_released(released, first=0)
    for store, positions in sorter.doubled.items():
        seen = SeenEvents(store)
        for events in _events_at(staged, store, positions):
            seen.take(events)
        if released is not None:
            seen.take(content_of(events_at(rows, store, positions)))
    return Arrival(
        events={s: event_rows(rows, k, facts.epoch, facts.now) for s, k in sorter.events.items()},
        changes={
            s: change_rows(rows, k, facts.epoch, facts.now) for s, k in sorter.changes.items()
        },
        records={
            s: record_rows(rows, k, facts.epoch, facts.now, facts.ids)
            for s, k in sorter.records.items()
        },
        staged=verdicts.additions(),
        recorded_us=[*times, *(recorded_us(rows, kept) for kept in sorter.events.values())],
        schema_ids=sorter.schema_ids,
        schema_changes=sorter.schema_changes,
        counts=sorter.total(),
    )


def _events_at(staged: Staged, store: str, positions: Collection[int]) -> Iterator[pa.Table]:
    """Yield the events of some positions (`CONTENT`) from the files that executors wrote."""
    wanted = pa.array(sorted(positions), pa.int64())
    root = staged.facts.lake.path(events_log(store))
    for file in staged.files:
        if file.name == events_log(store):
            with files_at(root).open_input_file(file.path) as source:
                for batch in pq.ParquetFile(source).iter_batches(SLICE_ROWS, columns=list(CONTENT)):
                    yield pa.Table.from_batches([batch]).filter(
                        pc.is_in(pc.field("position"), wanted)
                    )


def _moved(staged: Staged, before: Progress, logged: Logged) -> list[int]:
    """Return the numbers of changes that came before in another partition: see `widened`.

    The columns that name the changes of such a topic are all held at once.
    """
    topics = staged.facts.moved
    if not topics:
        return []
    names = [name for name in DECIDING.names if name not in ("reason", "metadata", "value")]
    parts = [rows.select([*names, _NUMBER]) for rows in staged.slices(topics)]
    if not parts:
        return []
    return moved_rows(pa.concat_tables(parts), topics, before.marks, logged)


@dataclass(slots=True)
class _Verdicts:
    """Gathers which rows of which files are not kept, or have another order than their own."""

    staged: Staged
    dropped: dict[int, list[npt.NDArray[np.int64]]] = field(default_factory=dict)
    orders: dict[int, dict[int, int]] = field(default_factory=dict)

    def note(self, ordered: pa.Table, judged: pa.Table, kept: Sequence[Kept]) -> None:
        """Take note of one slice; `judged` are those of its rows that were looked at."""
        files, rows = ordered[FILE].to_numpy(), ordered[ROW].to_numpy()
        first = ordered[_NUMBER][0].as_py() if ordered.num_rows else 0
        numbers = judged[_NUMBER].to_numpy() - first
        stays = pc.equal(ordered["kind"], REJECTED).to_numpy().copy()
        for each in kept:
            stays[numbers[np.array(each.rows, np.int64)]] = True
            for place, order in each.orders.items():
                at = numbers[each.rows[place]]
                self.orders.setdefault(int(files[at]), {})[int(rows[at])] = order
        goes = np.flatnonzero(~stays & (files >= 0))
        for file in np.unique(files[goes]).tolist():
            own = goes[files[goes] == file]
            self.dropped.setdefault(file, []).append(rows[own])

    def additions(self) -> dict[str, list[AddAction]]:
        """Return the files that hold the kept rows, by the name of their table."""
        found: dict[str, list[AddAction]] = {}
        for place, file in enumerate(self.staged.files):
            dropped = np.concatenate(self.dropped.get(place, [np.empty(0, np.int64)]))
            orders = self.orders.get(place, {})
            if len(dropped) == file.rows:
                continue
            added = [file.addition(partition_of(file.name))]
            if len(dropped) or orders:
                added = _rewritten(self.staged.facts, place, file, dropped, orders)
            found.setdefault(file.name, []).extend(added)
        return found


def _rewritten(
    facts: Facts,
    number: int,
    file: WrittenFile,
    dropped: npt.NDArray[np.int64],
    orders: Mapping[int, int],
) -> list[AddAction]:
    """Write a file again without some of its rows, and with the order of others, batch by batch."""
    root = facts.lake.path(file.name)
    written = StagedFiles(root, file_place(file.name, file.value, facts, f"kept-{number}"))
    stays = np.ones(file.rows, bool)
    stays[dropped] = False
    first = 0
    with files_at(root).open_input_file(file.path) as source:
        for batch in pq.ParquetFile(source).iter_batches(SLICE_ROWS):
            rows = pa.Table.from_batches([batch])
            own = stays[first : first + rows.num_rows]
            places = np.arange(first, first + rows.num_rows)[own]
            first += rows.num_rows
            rows = rows.filter(pa.array(own))
            if orders:
                other = pa.array([orders.get(place) for place in places.tolist()], pa.int64())
                column = rows.schema.get_field_index("commit_order")
                order = pc.coalesce(other, rows["commit_order"])
                rows = rows.set_column(column, "commit_order", order)
            written.write(rows)
    return written.close()


def remove_attempts(lake: Lake) -> None:
    """Remove all deciding rows; for when no attempt is under way."""
    storage.remove(attempts_folder(lake))


def tables_of(lake: Lake) -> list[str]:
    """Return the names of the tables that executors write files of."""
    folders = ("log/changes", "log/events", "log/topics")
    found = [
        lake.name_at(f"{folder}/{entry}")
        for folder in folders
        for entry in storage.folders_in(f"{lake.root}/{folder}")
    ]
    return [*found, "quarantine/records"]
