"""A shop for the SQL tests: tables whose rows change and vanish, payments, projections over both.

`Shop` holds what arrived in which epoch. `KeptChain` keeps projections over it, each reading the
rows of those before, and `rows_now` is what the inputs have. Oracles read the arrivals alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from projections.run.database import arrow_type
from projections.run.dataflow import Dataflow
from projections.sql.operators.pruning import pruned
from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import Newest, Scan, scans
from projections.sql.planning.reading import read_tree
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.rendering.certified import uncertified
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from tests.support.oracles.region_world import plain, twice, zoned
from tests.support.oracles.sql_world import START, Row

CUSTOMERS = {"id": "BIGINT", "name": "STRING", "city": "STRING"}
ORDERS = {"id": "BIGINT", "customer": "BIGINT", "amount": "INT", "state": "STRING"}
LINES = {"lines": "array<struct<sku:string,n:int>>"}
PAID = {"order_id": "BIGINT", "amount": "INT", "position": "BIGINT", "occurred_at": "TIMESTAMP"}
BEGUN = datetime.fromisoformat("1970-01-01T00:00:00")


@dataclass(frozen=True, slots=True)
class Change:
    """A row of a table from now on, or its deletion (`values` None)."""

    sequence: int
    epoch: int
    table: str
    key: int
    values: tuple[object, ...] | None


@dataclass(frozen=True, slots=True)
class Payment:
    """A fact. `minute` is its event time; `position` its place in the store."""

    position: int
    epoch: int
    order: int
    minute: int
    amount: int | None


@dataclass(frozen=True, slots=True)
class Shop:
    changes: tuple[Change, ...]
    payments: tuple[Payment, ...]

    @property
    def epochs(self) -> list[int]:
        return sorted({item.epoch for item in (*self.changes, *self.payments)})

    def until(self, epoch: int) -> Shop:
        return Shop(
            changes=tuple(one for one in self.changes if one.epoch <= epoch),
            payments=tuple(one for one in self.payments if one.epoch <= epoch),
        )

    def table(self, name: str) -> list[Row]:
        """Return the rows of a table now, each with the sequence of its change."""
        newest = {c.key: c for c in self.changes if c.table == name}
        columns = [*(CUSTOMERS if name == "customers" else ORDERS)]
        return [
            _row(columns, c.key, c.values) | {"sequence": c.sequence}
            for c in newest.values()
            if c.values is not None
        ]


def _relation(name: str, columns: dict[str, str], *key: str) -> Relation:
    return Relation(
        name=name,
        columns=tuple(Column(name=n, type=t) for n, t in columns.items()),
        key=key,
        event_time=None,
    )


CATALOG = MemoryCatalog(
    streams={"events.order.paid": _relation("events.order.paid", PAID)},
    latests={
        "shop.public.customers": _relation("shop.public.customers", CUSTOMERS, "id"),
        "shop.public.orders": _relation("shop.public.orders", ORDERS | LINES, "id"),
    },
)


def trees_of(statements: str) -> list[Newest]:
    """Plan projections that may read each other, in the order in which they are written."""
    script = parse_script(statements)
    catalog = DeclaredCatalog(CATALOG, (), script.projections)
    trees = [pruned(read_tree(decl, catalog)) for decl in script.projections]
    assert all(uncertified(tree) is None for tree in trees)
    return trees


def rows_now(scan: Scan, shop: Shop, others: dict[str, list[Row]]) -> list[Row]:
    """Return what an input has now, as the runner reads it."""
    if scan.kind is InputKind.PROJECTION:
        return [row | _place(BEGUN, 0) for row in others[scan.name]]
    if scan.kind is InputKind.LATEST:
        rows = shop.table(scan.name.rpartition(".")[2])
        return [
            row | _place(START + timedelta(minutes=int(str(row["sequence"]))), 0) for row in rows
        ]
    return [
        {"order_id": p.order, "amount": p.amount, "position": p.position, "occurred_at": at}
        | _place(at, p.position)
        for p in shop.payments
        for at in [START + timedelta(minutes=p.minute)]
    ]


def version_rows(shop: Shop, name: str) -> list[Row]:
    """Return every version that the rows of a table had, as its history has them."""
    columns = [*(CUSTOMERS if name == "customers" else ORDERS)]
    rows: list[Row] = []
    last: dict[int, Row] = {}
    for change in shop.changes:
        if change.table != name:
            continue
        at = START + timedelta(minutes=change.sequence)
        if change.key in last:
            last[change.key]["valid_to"] = at
        # What a deleted row held must not matter.
        values = change.values or (None,) * (len(columns) - 1)
        row = _row(columns, change.key, values)
        last[change.key] = row | {
            "valid_from": at,
            "valid_to": None,
            "_deleted": change.values is None,
        }
        rows.append(last[change.key])
    return rows


def _row(columns: Sequence[str], key: int, values: Sequence[object]) -> Row:
    row: Row = dict(zip(columns, (key, *values), strict=True))
    return row | {"lines": lines_of(row)} if "amount" in row else row


def lines_of(order: Row) -> tuple[tuple[object, object] | None, ...] | None:
    """Return the lines of an order, each sku and n: NULL, none, or some of which two are equal."""
    amount, line = order["amount"], (order["state"], order["customer"])
    if amount is None:
        return None
    return () if amount == 1 else (line, ("all", amount), None, line)


def _place(time: datetime, high: int) -> Row:
    return {"_time": time, "_seq_hi": high, "_seq_lo": 0}


class KeptChain:
    """Tables kept by dataflows, each with its own; the last one is the outermost."""

    def __init__(self, statements: str) -> None:
        script = parse_script(statements)
        self._names = [decl.name for decl in script.projections]
        self._trees = dict(zip(self._names, trees_of(statements), strict=True))
        self._flows = {name: Dataflow(tree) for name, tree in self._trees.items()}
        self.rows: dict[str, dict[tuple[object, ...], Row]] = {name: {} for name in self._names}
        self.written = 0
        self._before: dict[tuple[str, str], list[Row]] = {}

    def close(self) -> None:
        for flow in self._flows.values():
            flow.close()

    def epoch(self, shop: Shop) -> None:
        """Bring each table to what a shop has now, those that are read first."""
        for name in self._names:
            self._feed(name, shop)
            self._apply(name, self._flows[name].round())

    def forget(self, name: str, shop: Shop) -> None:
        """Lose a projection's state, and begin anew with its table as it is."""
        tree = self._trees[name]
        self._flows[name].close()
        self._flows[name] = Dataflow(tree)
        for scan in scans(tree):
            self._before.pop((name, scan.view), None)
        self._feed(name, shop)
        shape = pa.schema([(c.name, arrow_type(c)) for c in tree.columns])
        stored = pa.Table.from_pylist([zoned(row) for row in self.rows[name].values()], shape)
        self._apply(name, self._flows[name].begin([stored], twice))

    def result(self) -> list[Row]:
        """Return the rows of the outermost table."""
        return [*self.rows[self._names[-1]].values()]

    def _feed(self, name: str, shop: Shop) -> None:
        others = {other: [*rows.values()] for other, rows in self.rows.items()}
        for scan in scans(self._trees[name]):
            columns = [*(c.name for c in scan.columns), "_time", "_seq_hi", "_seq_lo"]
            kinds = [*map(arrow_type, scan.columns), arrow_type(_MOMENT), pa.int64(), pa.int64()]
            shape = pa.schema([*zip(columns, kinds, strict=True)])
            found = [{c: row[c] for c in columns} for row in rows_now(scan, shop, others)]
            before = self._before.get((name, scan.view), [])
            for weight, rows in ((1, _less(found, before)), (-1, _less(before, found))):
                part = pa.Table.from_pylist([zoned(row) for row in rows], shape)
                self._flows[name].add(scan, [part], weight=weight)
            self._before[name, scan.view] = found

    def _apply(self, name: str, changes: pa.Table) -> None:
        self.written += changes.num_rows
        table, keys = self.rows[name], self._trees[name].keys
        for row in sorted(changes.to_pylist(), key=lambda row: int(row["_w"])):
            values = {n: plain(v) for n, v in row.items() if n != "_w"}
            key = tuple(values[each] for each in keys)
            if row["_w"] < 0:
                assert table.pop(key) == values, "only what was given out is taken back"
            else:
                assert key not in table, "a key has one row"
                table[key] = values


_MOMENT = Column(name="_time", type="TIMESTAMP")


def _less(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    left = Counter(tuple(row.items()) for row in rows)
    left.subtract(Counter(tuple(row.items()) for row in others))
    return [dict(items) for items, count in left.items() for _ in range(max(count, 0))]
