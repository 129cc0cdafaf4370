"""Rows of captured tables as they were last known: values that an update left alone are there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.datasets import dataset_of
from lake.layers import read_whole
from lake.layout import Lake
from lake.tables import TableAt, Tables
from pipeline.current.key_buckets import Known, known_at
from pipeline.ddl.table_plans import Evolving
from pipeline.ddl.table_rewrites import joined
from pipeline.ddl.unchanged_values import Stored, any_of, rows_of_keys, rows_without_keys
from pipeline.log.images import newest_per_key
from pipeline.order import BEFORE_ALL
from pipeline.typed.columns import EPOCH, OPERATION, SEQ_HI, SEQ_LO
from schemas.records import Operation
from schemas.widening import common_type


class LastKnown:
    """Finds rows by key, as of the epoch before the one that is brought."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._tables = tables

    def stored(
        self,
        name: str,
        typed: str,
        current: Mapping[str, TableAt],
        staged: Mapping[str, tuple[str, int]],
        evolving: Evolving,
        wanted: pa.Table,
    ) -> pa.Table | None:
        """Find last known rows in the current table as of the epoch before.

        Of a table that changes all the time that version may be gone: then among all the facts,
        which takes longer.
        """
        try:
            return self._as_of(name, current, staged, evolving, wanted)
        except (FileNotFoundError, DeltaError):
            return self.last_facts(typed, 0, lambda keys: None, wanted)

    def _as_of(
        self,
        name: str,
        current: Mapping[str, TableAt],
        staged: Mapping[str, tuple[str, int]],
        evolving: Evolving,
        wanted: pa.Table,
    ) -> pa.Table | None:
        at = current.get(name)
        if at is not None:
            path, version = self._lake.path(name), at.version
        elif name in staged:
            path, version = staged[name]
        else:
            return None
        # A key that is renamed in between has its old name there.
        columns = self._tables.columns(path, version)
        where = any_of(wanted) if wanted.schema.names[0] in columns.names else None
        if at is None:
            rows = self._tables.read(path, where=where, version=version)
        else:
            rows = read_whole(self._lake, self._tables, name, at=current, where=where)
        return rows_of_keys(None if rows is None else evolving(columns).caught_up(rows), wanted)

    def copied_at(self, name: str, after: int, high: int, before: Stored) -> Stored:
        """Return what finds rows as a copy read them that came since an epoch, by its place."""
        read = (pc.field(SEQ_HI) == high) & (pc.field(SEQ_LO) == BEFORE_ALL)
        return partial(self.last_facts, name, after, before, where=read)

    def last_facts(
        self,
        name: str,
        after: int,
        before: Stored,
        wanted: pa.Table,
        *,
        where: pc.Expression | None = None,
    ) -> pa.Table | None:
        """Find last known rows among the facts since an epoch, else where `before` finds them."""
        older = before(wanted)
        own = any_of(wanted) & (pc.field(EPOCH) > after)
        rows = self._tables.read(self._lake.path(name), where=own if where is None else own & where)
        own = rows_of_keys(rows, wanted)
        if own is None or own.num_rows == 0:
            return older
        own = own.sort_by([(SEQ_HI, "ascending"), (SEQ_LO, "ascending")])
        newest = newest_per_key(own, tuple(wanted.schema.names))
        # What comes under the key of a row that was deleted is another row.
        older = rows_without_keys(older, newest.select(wanted.schema.names))
        deleted = pc.equal(newest[OPERATION], Operation.DELETE.value)
        newest = newest.filter(pc.invert(pc.fill_null(deleted, False)))
        newest = newest.select([n for n in newest.schema.names if n != "committed_at"])
        return newest if older is None else joined([older, newest], common_type)

    def known(
        self, name: str, current: Mapping[str, TableAt], staged: Mapping[str, tuple[str, int]]
    ) -> Known | None:
        """Return the rows as of the epoch before; None where that version is gone."""
        try:
            if name in current:
                return known_at(self._lake, self._tables, name, current)
            if name in staged:
                path, version = staged[name]
                return Known(base=dataset_of(DeltaTable(path, version=version)))
        except (FileNotFoundError, DeltaError):
            return None
        return Known()


class FactsAlone(LastKnown):
    """Finds rows among the facts alone: of a typed table that is made anew, of nothing but its log.

    What a `current` table has was made of the same log, by a version that may have been wrong.
    """

    def stored(
        self,
        name: str,
        typed: str,
        current: Mapping[str, TableAt],
        staged: Mapping[str, tuple[str, int]],
        evolving: Evolving,
        wanted: pa.Table,
    ) -> pa.Table | None:
        """Find last known rows among all the facts that there are by now."""
        return self.last_facts(typed, 0, lambda keys: None, wanted)

    def known(
        self, name: str, current: Mapping[str, TableAt], staged: Mapping[str, tuple[str, int]]
    ) -> Known | None:
        """Return None: nothing gives all rows in one pass."""
        return None
