"""What DDL made of the rows of a captured table, and its facts do not say.

A fact says what a change said, and no change says the default of `ALTER TABLE … ADD`. A row has it.
And facts keep columns that ended before the whole table was copied anew, of which rows have none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lake.datasets import dataset_of
from lake.layout import Lake, changes_log
from lake.tables import Tables
from pipeline.commit.manifest_rows import Committed
from pipeline.ddl.evolution import plan
from pipeline.ddl.steps import Added, Evolution, Order, Relabelled, Renamed, SetAside, Step
from pipeline.ddl.table_plans import told_since
from pipeline.installs.install_book import ALL, Install, InstallBook
from pipeline.log.large_folds import LogRows
from pipeline.order import BEFORE_ALL
from pipeline.position.progress import Progress
from pipeline.typed.columns import SEQ_HI, SEQ_LO
from pipeline.typed.installs import TypedInstalls
from pipeline.typed.visible_changes import IS_TRUNCATE
from schemas.registry import SchemaLookup

_BEGINNING: Order = (0, 0)


@dataclass(frozen=True, slots=True)
class AddedDefault:
    """Rows of a place up to `order` have `value` in the column that is called `name` by now."""

    order: Order
    name: str
    value: object

    def filled(self, rows: pa.Table) -> pa.Table:
        """Return rows with the value where they were written before and have none."""
        if self.name not in rows.schema.names:
            return rows
        column, (high, low) = rows[self.name], self.order
        at_once = pc.and_(pc.equal(rows[SEQ_HI], high), pc.less_equal(rows[SEQ_LO], low))
        before = pc.or_(pc.less(rows[SEQ_HI], high), at_once)
        lacks = pc.and_(before, pc.is_null(column))
        found = pc.if_else(lacks, pa.scalar(self.value, column.type), column)
        return rows.set_column(rows.schema.get_field_index(self.name), self.name, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowColumns:
    """What DDL made of the rows of a captured table, beyond their facts, up to an epoch.

    `copied`: the columns that a copy of the whole table brought, and those that came since; None
    without one. Columns that ended before it are in the facts alone.
    """

    defaults: Sequence[AddedDefault]
    copied: frozenset[str] | None

    @classmethod
    def of(
        cls,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        source: str,
        table: str,
        *,
        done: Committed,
    ) -> RowColumns:
        """Read what was told of a table, and plan it as folds do."""
        log = tables.open(lake.path(changes_log(source)))
        assert log is not None, "its facts are of it"
        own = (pc.field("table") == table) & (pc.field("epoch") <= int(done.epoch))
        rows = LogRows(dataset_of(log), own & ~IS_TRUNCATE).planned()
        taken, copies = Progress.from_json(done.progress).installs, TypedInstalls(lake, tables)
        known = [
            install
            for install in InstallBook(lake, tables).installs()
            if (install.source, install.table) == (source, table) and install.number in taken
        ]

        def since(install: Install | None) -> Evolution:
            begin, stored = _BEGINNING, None
            if install is not None:
                begin = min(copies.places(install).values()), BEFORE_ALL
                stored = copies.values(install)
            told = told_since(lake, tables, source, table, (begin, 0), done.cuts[source])
            return plan(told, rows, stored, schemas).evolution

        defaults = _defaults(since(known[0] if known else None))
        whole = next((each for each in reversed(known) if each.kind == ALL), None)
        if whole is None:
            return cls(defaults=defaults, copied=None)
        shape = since(whole).caught_up(copies.values(whole).empty_table())
        return cls(defaults=defaults, copied=frozenset(shape.schema.names))


def _defaults(evolution: Evolution) -> Sequence[AddedDefault]:
    """Return the defaults that steps gave to rows, under the names that columns have in the end."""
    found: list[AddedDefault] = []
    for order, steps in evolution.steps:
        for step in steps:
            found = [*_as_called(found, step)]
            if isinstance(step, Added) and step.value is not None:
                found.append(AddedDefault(order, step.name, step.value))
    return found


def _as_called(known: Sequence[AddedDefault], step: Step) -> Iterator[AddedDefault]:
    """Yield defaults as a step leaves them."""
    for each in known:
        match step:
            case Renamed(old, new) if old == each.name:
                yield replace(each, name=new)
            case Relabelled(name, labels) if name == each.name:
                yield replace(each, value=labels.get(str(each.value), each.value))
            case SetAside(name) if name == each.name:
                yield replace(each, name=step.aside)
            case Added(name) if name == each.name:
                pass  # It was dropped before, and is another one.
            case _:
                yield each
