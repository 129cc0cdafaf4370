"""Rows of installs in `typed/…`: they enter as reads (operation `r`), in the epoch of the install.

Their place in the source's order (`_seq_hi`, `_seq_lo`) is behind every transaction that ended at
or below the LSN at which they were read, and before the next one. Keys that an install took away
enter as deletes at the same place.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Unavailable
from kernel.positions import Epoch
from lake.adoption import commit_staged
from lake.datasets import schema_of
from lake.exactness import as_spelled
from lake.layout import Lake
from lake.staged_files import StagedFiles
from lake.table_columns import UTC_MICROS
from lake.tables import TableAt, Tables
from lake.writer import Guard, reached
from pipeline.ddl.steps import NOTHING, Evolution, Order, apply
from pipeline.ddl.table_plans import evolved_since
from pipeline.ddl.table_rewrites import fit
from pipeline.installs.install_book import Install
from pipeline.installs.installation import generation_root
from pipeline.installs.staging import CHUNK, text_rows
from pipeline.installs.staging import LSN as READ_AT
from pipeline.installs.vanished_keys import gone_keys
from pipeline.log.committed_changes import CommittedChanges
from pipeline.order import BEFORE_ALL
from pipeline.typed.columns import (
    EPOCH,
    INGESTED_AT,
    LATE,
    LSN,
    OPERATION,
    SEQ_HI,
    SEQ_LO,
    TIME,
    TRANSACTION,
)
from schemas.pg_exact import EXACT
from schemas.pg_text import text_to_lake
from schemas.records import Operation

log = logging.getLogger("penstock.tables")

_HIDDEN = pa.schema(
    [
        ("committed_at", UTC_MICROS),
        (TIME, UTC_MICROS),
        (SEQ_HI, pa.int64()),
        (SEQ_LO, pa.int64()),
        (OPERATION, pa.string()),
        (LATE, pa.bool_()),
        (EPOCH, pa.int64()),
        (INGESTED_AT, UTC_MICROS),
        (TRANSACTION, pa.string()),
        (LSN, pa.int64()),
    ]
)


class TypedInstalls:
    """Appends installs to the typed tables of one lake, batch by batch: memory is bounded."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._tables = tables
        self._log = CommittedChanges(lake, tables)
        self._odd: set[str] = set()

    def add(
        self,
        install: Install,
        epoch: Epoch,
        *,
        event_time: str | None = None,
        evolution: Evolution = NOTHING,
        brought_to: int = 0,
    ) -> TableAt:
        """Append the rows of an install that `epoch` took in; one commit, guarded.

        `event_time` names the column that holds a row's event time; without one, or where it is
        null, a row's time is the moment at which it was read. The table has the columns that DDL
        up to the END `brought_to`, and then `evolution`, gave it already: rows that were read
        before a change of columns follow it.
        """
        name = f"typed/{install.source}.{install.table}"
        path = self._lake.path(name)
        earlier = self.earlier(install, brought_to)
        evolution = replace(evolution, steps=(*earlier.steps, *evolution.steps))
        shape = self._shape(install, evolution)
        table = self._tables.ensure(path, shape)
        guard = Guard(f"{name}/install/{install.id}", epoch)
        if not reached(table, guard):
            fit(self._tables, path, shape.empty_table())
            table = self._tables.ensure(path, shape)
            stored, staged = schema_of(table), StagedFiles(table)
            try:
                aligned = _aligned(shape, stored)
                for rows in self._rows(install, epoch, aligned, event_time, evolution):
                    staged.write(as_spelled(rows, stored.names))
                files = staged.close()
            except OSError as error:
                raise Unavailable(f"writing {name} failed: {error}") from error
            commit_staged(table, files, staged.schemas, guard.app_id, int(epoch))
            table.update_incremental()
        return TableAt(version=table.version(), as_of_epoch=epoch)

    def earlier(self, install: Install, brought_to: int) -> Evolution:
        """Return what DDL up to an END made of the columns that an install was read with."""
        behind = ((min(self.places(install).values()), BEFORE_ALL), 0)
        of, columns = (install.source, install.table), self.values(install)
        return evolved_since(self._lake, self._tables, *of, behind, brought_to, columns)

    def places(self, install: Install) -> dict[int, int]:
        """Return the high number of rows by the LSN at which they were read."""
        return {lsn: self._log.last_end(install.source, lsn) for lsn in {*install.lsns}}

    def _rows(
        self,
        install: Install,
        epoch: Epoch,
        shape: pa.Schema,
        event_time: str | None,
        evolution: Evolution,
    ) -> Iterator[pa.Table]:
        places = self.places(install)
        now = datetime.now(UTC)
        for batch in text_rows(
            self._lake,
            self._tables,
            id=install.id,
            source=install.source,
            table=install.table,
            columns=install.columns,
        ):
            texts = pa.Table.from_batches([batch])
            for chunk in pc.unique(texts[CHUNK]).to_pylist():
                lsn = install.lsns[chunk]
                own = pc.and_(pc.equal(texts[CHUNK], chunk), pc.equal(texts[READ_AT], lsn))
                rows = text_to_lake(install.columns, texts.filter(own))
                rows = apply(rows, evolution.after((places[lsn], BEFORE_ALL)))
                stamps = _stamps(install, epoch, Operation.READ, (places[lsn], lsn), now)
                if event_time is not None and event_time in rows.schema.names:
                    times = self._times(install, rows[event_time], event_time)
                    rows = rows.append_column(TIME, times)
                    stamps = {name: value for name, value in stamps.items() if name != TIME}
                yield _shaped(rows, stamps, shape)
        gone = gone_keys(
            self._lake,
            self._tables,
            source=install.source,
            table=install.table,
            install=install.id,
        )
        if gone is not None:
            place = (places[max(places)], install.lsn)
            stamps = _stamps(install, epoch, Operation.DELETE, place, now)
            yield _shaped(apply(gone, evolution.after((place[0], BEFORE_ALL))), stamps, shape)

    def _times(self, install: Install, column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
        """Return the event times of rows; the moment of reading where a row says none."""
        times, table = moments(column), f"{install.source}.{install.table}"
        if times.null_count > column.null_count and table not in self._odd:
            self._odd.add(table)
            log.warning(
                "%s: %s is declared as event time, found what is none; rows like it have the time"
                " at which they were read",
                table,
                name,
            )
        return pc.fill_null(times, install.read_at)

    def _shape(self, install: Install, evolution: Evolution) -> pa.Schema:
        """Return the columns that rows of an install have in the end."""
        rows = self.values(install).empty_table()
        each = [
            apply(rows, evolution.after((p, BEFORE_ALL))).schema
            for p in {*self.places(install).values()}
        ]
        return pa.unify_schemas([*each, _HIDDEN])

    def values(self, install: Install) -> pa.Schema:
        """Return the columns of an install, with that of originals where it has any."""
        texts = pa.table({c.lake_name: pa.array([], pa.string()) for c in install.columns})
        shape: pa.Schema = text_to_lake(install.columns, texts).schema
        built = self._tables.open(generation_root(self._lake, install))
        if built is not None and EXACT in schema_of(built).names:
            shape = shape.append(pa.field(EXACT, pa.string()))
        return shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Entering:
    """Installs that wait to enter one typed table, each with the epoch that took it in.

    The table has the changes of transactions up to the END `brought_to`.
    """

    typed: TypedInstalls
    installs: Sequence[tuple[Install, Epoch]]
    event_time: str | None = None
    brought_to: int = 0

    @property
    def first(self) -> tuple[Order, pa.Schema]:
        """Place of the first one, and the columns that its rows have before what is brought."""
        install, _ = self.installs[0]
        earlier = self.typed.earlier(install, self.brought_to)
        columns = earlier.caught_up(self.typed.values(install).empty_table()).schema
        return (min(self.typed.places(install).values()), BEFORE_ALL), columns

    @property
    def places(self) -> list[int]:
        """Where in the source's order rows were read."""
        return [at for i, _ in self.installs for at in self.typed.places(i).values()]

    def enter(self, evolution: Evolution = NOTHING) -> TableAt:
        """Append all of them; see `TypedInstalls.add`."""
        at = [
            self.typed.add(
                install,
                epoch,
                event_time=self.event_time,
                evolution=evolution,
                brought_to=self.brought_to,
            )
            for install, epoch in self.installs
        ]
        return at[-1]


def _stamps(
    install: Install, epoch: Epoch, operation: Operation, place: tuple[int, int], now: datetime
) -> Mapping[str, object]:
    return {
        "committed_at": install.read_at,
        TIME: install.read_at,
        SEQ_HI: place[0],
        SEQ_LO: BEFORE_ALL,
        OPERATION: operation.value,
        LATE: False,
        EPOCH: int(epoch),
        INGESTED_AT: now,
        TRANSACTION: None,
        LSN: place[1],
    }


def moments(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Read event times as the stream's decoder reads them: without a zone they are UTC.

    Null for a value that is no time: the row is as good as any other.
    """
    kind = column.type
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("us")).cast(UTC_MICROS)
    if pa.types.is_timestamp(kind):
        return column.cast(UTC_MICROS)
    if pa.types.is_string(kind):
        found = [None if text is None else _moment(text) for text in column.to_pylist()]
        return pa.chunked_array([pa.array(found, UTC_MICROS)])
    return pa.chunked_array([pa.nulls(len(column), UTC_MICROS)])


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _shaped(rows: pa.Table, stamps: Mapping[str, object], shape: pa.Schema) -> pa.Table:
    n = rows.num_rows
    columns: list[pa.ChunkedArray] = []
    for field in shape:
        if field.name in stamps:
            value = pa.scalar(stamps[field.name], field.type)
            columns.append(pa.chunked_array([pa.repeat(value, n)]))
        elif field.name in rows.schema.names:
            columns.append(rows[field.name].cast(field.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(n, field.type)]))
    return pa.Table.from_arrays(columns, schema=shape)


def _aligned(shape: pa.Schema, stored: pa.Schema) -> pa.Schema:
    """Give each column the type that the typed table has it in by now."""
    known = {field.name.lower(): field.type for field in stored}
    return pa.schema([pa.field(f.name, known.get(f.name.lower(), f.type)) for f in shape])
