"""Copies of a source made by hand, and the epochs in which they and its log become facts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Protocol

import pyarrow as pa

from kernel.positions import Epoch
from lake.datasets import schema_of
from lake.layout import Lake
from lake.table_columns import SCHEMA_TABLE, TRANSACTIONS_TABLE
from lake.tables import TableAt, Tables
from pipeline.installs.install_book import ALL, Install
from pipeline.installs.staging import Staging
from pipeline.typed.changes import TypedChanges
from pipeline.typed.columns import Visible
from pipeline.typed.installs import Entering, TypedInstalls
from schemas.lake_columns import captured_column
from schemas.pg_types import SourceColumn
from tests.support.sources.ddl_rows import SOURCE, START, TABLE, Folding, Item

TYPED = f"typed/{SOURCE}.{TABLE}"


def end_of(entries: int) -> int:
    """Return where the transaction of the last of so many log entries ended."""
    return entries * 10 + 5 if entries else 0


def ended(entry: Mapping[str, object]) -> dict[str, object]:
    """Return the END of the transaction of a log entry."""
    number = int(str(entry["transaction_id"]))
    counted = "_messages" if entry["table"] == SCHEMA_TABLE else str(entry["table"])
    return {
        "table": TRANSACTIONS_TABLE,
        "transaction_id": entry["transaction_id"],
        "lsn": end_of(number),
        "committed_at": START,
        "counts": json.dumps({counted: 1}),
    }


class Copied(Protocol):
    """A source made by hand, and the lake that it is brought to."""

    lake: Lake
    item: Item


def copied(of: Copied, *, soft: bool = False, id_: str = "i1") -> Install:
    """Read the source's table as it is, and stage it."""
    item, lsn = of.item, end_of(len(of.item.log)) + 1
    columns = tuple(
        SourceColumn(name=c.name, type=c.type, not_null=c.attnum == 1) for c in item.columns
    )
    staging = Staging(
        of.lake, id=id_, source=SOURCE, table=TABLE, columns=columns, soft_deletes=soft
    )
    shape = pa.schema([(c.lake_name, pa.string()) for c in columns])
    rows = [
        {captured_column(c.name): _text(row.get(c.attnum)) for c in item.columns}
        for _, row in sorted(item.rows.items())
    ]
    staging.stage(0, lsn, [pa.Table.from_pylist(rows, shape)])
    return Install(
        id=id_,
        source=SOURCE,
        table=TABLE,
        kind=ALL,
        low=None,
        high=None,
        lsn=lsn,
        columns=columns,
        keys=(columns[0].lake_name,),
        rows=len(rows),
        read_at=START,
        lsns=(lsn,),
        number=1,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


class Rounds(Folding):
    """Brings what came since the last epoch to the typed table, or several epochs at once."""

    def __init__(self, lake: Lake, item: Item) -> None:
        super().__init__(lake, item)
        self.logged = 0
        self.waiting: list[tuple[Epoch, int]] = []
        self.brought = 0

    def log(self) -> None:
        """Make an epoch of what came since the last one."""
        own = self.item.log[self.logged :]
        self.append([*own, *map(ended, own)])
        self.logged = len(self.item.log)
        self.waiting.append((Epoch(self.epoch), end_of(self.logged)))

    def bring(
        self,
        install: Install | None = None,
        *,
        without: Sequence[tuple[int, int]] = (),
        noted: bool = True,
        before: Mapping[str, TableAt] | None = None,
    ) -> Mapping[str, TableAt]:
        """Bring all epochs that wait; what is not `noted` is brought once more later.

        Returns the versions of before.
        """
        before = self.made() if before is None else before
        entering = {}
        last = self.waiting[-1][0]
        if install is not None:
            typed = TypedInstalls(self.lake, self.tables)
            entering = {
                TYPED: Entering(typed=typed, installs=[(install, last)], brought_to=self.brought)
            }
        found = TypedChanges(self.lake, Tables(), self.item.registry).add(
            SOURCE,
            Visible(self.brought, self.waiting, without),
            last,
            pending_from=1,
            snapshot_lsn=0,
            current={},
            brought=before,
            entering=entering,
        )
        assert not found.failed, found.failed
        for name, each in entering.items():
            if name not in found.done:
                each.enter()
        if noted:
            self.brought, self.waiting = self.waiting[-1][1], []
        return before

    def made(self) -> dict[str, TableAt]:
        """Return the version of the typed table as it is."""
        table = Tables().open(self.lake.path(TYPED))
        return {} if table is None else {TYPED: TableAt(version=table.version(), as_of_epoch=0)}

    def made_columns(self) -> list[str]:
        """Return the columns of the typed table."""
        table = Tables().open(self.lake.path(TYPED))
        assert table is not None
        return list(schema_of(table).names)

    def facts(self, *names: str) -> list[tuple[object, ...]]:
        """Return the values of the facts, in the source's order."""
        rows = Tables().read(self.lake.path(TYPED))
        assert rows is not None
        rows = rows.sort_by([("_seq_hi", "ascending"), ("_seq_lo", "ascending")])
        return [tuple(row[name] for name in names) for row in rows.to_pylist()]
