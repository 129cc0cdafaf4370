"""`typed/topics.<source>`: the records of external topics with their values as columns.

A record is visible from the epoch on that logged it. Each table's guard is its cursor and names the
declaration that its rows were made by: another one has them made anew, from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from kernel import failpoints
from kernel.positions import Epoch
from lake.datasets import dataset_of, scanner_of, schema_of
from lake.layout import Lake, topics_log
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard, reached
from pipeline.ddl.table_rewrites import fit
from pipeline.typed.columns import EPOCH
from pipeline.typed.topic_rows import TopicRows, spelled
from schemas.topic_records import TopicShape
from schemas.widening import event_type

ROWS_AT_ONCE = 60_000
"""Records that become typed rows in one commit, about: those of one epoch are not parted."""


def typed_topic(source: str) -> str:
    """Name the typed table of a declared source's topic."""
    return f"typed/topics.{source}"


class TypedTopics:
    """Appends to the typed tables of external topics what epochs logged."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)

    def has_other(self, shape: TopicShape) -> bool:
        """Say whether the table is there, and has the rows of another declaration."""
        table = self._tables.open(self._lake.path(typed_topic(shape.source)))
        return table is not None and table.transaction_version(_app(shape)) is None

    def add(self, rows: TopicRows, up_to: Epoch) -> TableAt | None:
        """Append the records up to an epoch; None while a table without declared columns is none.

        Raises what reading a record raises, which then holds this table alone.
        """
        name = typed_topic(rows.shape.source)
        path, app = self._lake.path(name), _app(rows.shape)
        table = self._tables.open(path)
        done = None if table is None else table.transaction_version(app)
        if done is None and rows.shape.columns:
            self._writer.overwrite(path, rows.empty(), Guard(app, Epoch(0)))
        fresh = done is None and not rows.shape.columns
        for epoch, logged in self._logged(rows.shape.source, done or 0, up_to):
            self._append(path, rows, logged, Guard(app, epoch), fresh=fresh)
            fresh = False
        table = self._tables.open(path)
        return None if table is None else TableAt(version=table.version(), as_of_epoch=up_to)

    def _append(
        self, path: str, rows: TopicRows, logged: pa.Table, guard: Guard, *, fresh: bool
    ) -> None:
        typed = rows.of(logged)
        if fresh:
            self._writer.overwrite(path, self._facts(path, rows, typed, known=False), guard)
        else:
            table = self._tables.open(path)
            assert table is not None, "it was made before"
            if not reached(table, guard):
                typed = spelled(typed, schema_of(table).names)
                typed = fit(self._tables, path, typed, event_type)
                self._writer.append(path, self._facts(path, rows, typed, known=True), guard)
        failpoints.hit(failpoints.TYPED_AFTER_TOPIC)

    def _facts(self, path: str, rows: TopicRows, typed: pa.Table, *, known: bool) -> pa.Table:
        """Leave out records of facts that are known already, by the columns of `identity`."""
        names = [
            name
            for wanted in rows.shape.identity
            if (name := rows.shape.named(typed.schema.names, wanted)) is not None
        ]
        if not names or not typed.num_rows:
            return typed
        seen = self._seen(path, typed, names) if known else set()
        kept = []
        for place, fact in enumerate(_facts_of(typed, names)):
            # What has no identity is a fact of its own.
            if None in fact or fact not in seen:
                kept.append(place)
                seen.add(fact)
        return typed if len(kept) == typed.num_rows else typed.take(pa.array(kept, pa.int64()))

    def _seen(self, path: str, typed: pa.Table, names: Sequence[str]) -> set[tuple[object, ...]]:
        """Return the facts among these that the table has, from the columns that name them."""
        table = self._tables.open(path)
        if table is None or not set(names) <= set(schema_of(table).names):
            return set()
        first = names[0]
        where = pc.field(first).isin(pc.unique(typed[first]).drop_null())
        where = where & (pc.field(EPOCH) <= pc.max(typed[EPOCH]))
        found: set[tuple[object, ...]] = set()
        for batch in scanner_of(dataset_of(table), where, list(names)).to_batches():
            found.update(_facts_of(pa.table(batch), names))
        return found

    def _logged(self, source: str, after: int, up_to: Epoch) -> Iterator[tuple[Epoch, pa.Table]]:
        """Yield the records of epochs, some epochs at a time, with the last of them."""
        log = self._tables.open(self._lake.path(topics_log(source)))
        if log is None:
            return
        dataset = dataset_of(log)
        epoch = pc.field("epoch")
        counts: dict[int, int] = {}
        wanted = (epoch > after) & (epoch <= up_to)
        for batch in scanner_of(dataset, wanted, ["epoch"]).to_batches():
            for each in batch.column("epoch").value_counts().to_pylist():
                counts[each["values"]] = counts.get(each["values"], 0) + each["counts"]
        for first, last in _steps(counts):
            within = (epoch >= first) & (epoch <= last)
            batches = scanner_of(dataset, within, dataset.schema.names).to_batches()
            yield Epoch(last), pa.Table.from_batches(batches, dataset.schema)


def _app(shape: TopicShape) -> str:
    """Return the app id of a table's guard, which names the declaration."""
    return f"{typed_topic(shape.source)}/{shape.fingerprint}"


def _steps(counts: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of epochs with about `ROWS_AT_ONCE` rows each."""
    first, rows = None, 0
    for epoch in sorted(counts):
        first = epoch if first is None else first
        rows += counts[epoch]
        if rows >= ROWS_AT_ONCE:
            yield first, epoch
            first, rows = None, 0
    if first is not None:
        yield first, max(counts)


def _facts_of(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[object, ...]]:
    return zip(*(rows[name].to_pylist() for name in names), strict=True)
