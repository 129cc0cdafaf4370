"""TPC-H's tables, small and seeded: rows come, change and go from epoch to epoch.

The values are few, and are those that the queries ask for, so that each has an answer. Answers are
DuckDB's, to the text of the query itself over the rows that there are: nothing of the compiler is
used but the words before the SELECT.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TypeVar

import duckdb
import pyarrow as pa

from projections.run.database import arrow_type
from projections.run.dataflow import Dataflow
from projections.sql.operators.tree import scans
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.plan import Plan, plan
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation

QUERIES = Path(__file__).parents[3] / "benchmarks" / "tpch" / "queries"
NAMES = [f"q{number}" for number in range(1, 23)]
EPOCHS = (1, 2, 3, 4)
Row = dict[str, object]
Value = TypeVar("Value")
_MONEY = "DECIMAL(15,2)"
_TYPES = {"i": "INT", "b": "BIGINT", "s": "STRING", "d": _MONEY, "t": "DATE"}
_SHAPES = {
    "region": "regionkey:i name:s comment:s",
    "nation": "nationkey:i name:s regionkey:i comment:s",
    "supplier": "suppkey:i name:s address:s nationkey:i phone:s acctbal:d comment:s",
    "part": "partkey:i name:s mfgr:s brand:s type:s size:i container:s retailprice:d comment:s",
    "partsupp": "partkey:i suppkey:i availqty:i supplycost:d comment:s",
    "customer": "custkey:i name:s address:s nationkey:i phone:s acctbal:d mktsegment:s comment:s",
    "orders": "orderkey:b custkey:i orderstatus:s totalprice:d orderdate:t orderpriority:s clerk:s "
    "shippriority:i comment:s",
    "lineitem": "orderkey:b partkey:i suppkey:i linenumber:i quantity:d extendedprice:d discount:d "
    "tax:d returnflag:s linestatus:s shipdate:t commitdate:t receiptdate:t shipinstruct:s "
    "shipmode:s comment:s",
}
_PREFIX = {"partsupp": "ps", "orders": "o"}
_KEYS = {"partsupp": 2, "lineitem": 2}


def _columns(table: str) -> dict[str, str]:
    prefix = _PREFIX.get(table, table[0])
    parts = (part.split(":") for part in _SHAPES[table].split())
    return {f"{prefix}_{name}": _TYPES[kind] for name, kind in parts}


TABLES = {table: _columns(table) for table in _SHAPES}


def key_of(table: str) -> tuple[str, ...]:
    if table == "lineitem":
        return ("l_orderkey", "l_linenumber")
    return tuple([*TABLES[table]][: _KEYS.get(table, 1)])


CATALOG = MemoryCatalog(
    latests={
        f"tpch.public.{table}": Relation(
            name=f"tpch.public.{table}",
            columns=tuple(Column(name=n, type=t) for n, t in columns.items()),
            key=key_of(table),
            event_time=None,
        )
        for table, columns in TABLES.items()
    }
)


def query_text(name: str) -> str:
    return (QUERIES / f"{name}.sql").read_text()


def planned(statement: str) -> Plan:
    """Plan one query."""
    script = parse_script((QUERIES / "sources.sql").read_text() + statement)
    return plan(script.projections[0], DeclaredCatalog(CATALOG, script.sources))


@dataclass(frozen=True, slots=True)
class Changed:
    """A row of a table from an epoch on, or its deletion (`values` None)."""

    epoch: int
    table: str
    key: tuple[object, ...]
    values: Row | None


_REGIONS = ["AFRICA", "AMERICA", "ASIA", "EUROPE"]
_NATIONS = ["FRANCE", "GERMANY", "BRAZIL", "CANADA", "SAUDI ARABIA", "CHINA"]
_OF_REGION = [3, 3, 1, 1, 0, 2]
_CODES = ["13", "31", "23", "11"]


class _Draw:
    """Draws rows, each as a list of values in the order of its table's columns."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def one_of(self, values: Sequence[Value]) -> Value:
        return self._random.choice(values)

    def money(self, low: int, high: int) -> Decimal:
        return Decimal(self.number(low * 100, high * 100)) / 100

    def _region(self, key: int) -> list[object]:
        return [key, _REGIONS[key], "c"]

    def _nation(self, key: int) -> list[object]:
        return [key, _NATIONS[key], _OF_REGION[key], "c"]

    def _supplier(self, key: int) -> list[object]:
        said = self.one_of(["fine", "of Customer: no Complaints", "quick"])
        return [key, f"Supplier#{key}", "street", key % 6, "1", self.money(-9, 99), said]

    def _part(self, key: int) -> list[object]:
        kinds = ("ECONOMY ANODIZED STEEL", "SMALL PLATED BRASS", "PROMO TIN", "MEDIUM POLISHED TIN")
        return [
            key,
            self.one_of(["forest green lace", "sea green", "forest rose"]),
            "Manufacturer#1",
            self.one_of(["Brand#12", "Brand#23", "Brand#23", "Brand#45"]),
            self.one_of(kinds),
            self.one_of([3, 3, 15]),
            self.one_of(["MED BOX", "MED BOX", "SM CASE"]),
            self.money(1, 9),
            "c",
        ]

    def _partsupp(self, part: int, supplier: int) -> list[object]:
        return [part, supplier, self.number(1, 60), self.money(1, 9), "c"]

    def _customer(self, key: int) -> list[object]:
        phone = f"{self.one_of(_CODES)}-1"
        segment = self.one_of(["BUILDING", "MACHINERY"])
        return [key, f"C{key}", "street", key % 6, phone, self.money(-9, 99), segment, "c"]

    def _orders(self, key: int) -> list[object]:
        said = self.one_of(["none", "special packages, requests"])
        priority = self.one_of(["1-URGENT", "2-HIGH", "3-MEDIUM"])
        state = self.one_of(["F", "F", "O"])
        price = self.money(100, 900)
        return [key, self.number(1, 10), state, price, self._day(), priority, "c", 0, said]

    def _lineitem(self, order: int, line: int) -> list[object]:
        shipped = self._day() + timedelta(days=self.number(1, 40))
        return [
            order,
            self.number(1, 8),
            self.number(1, 8),
            line,
            Decimal(self.one_of([1, 2, 10, 20, 50, 50])),
            self.money(100, 900),
            Decimal(self.number(4, 8)) / 100,
            Decimal(self.number(0, 8)) / 100,
            self.one_of("RAN"),
            self.one_of("OF"),
            shipped,
            shipped + timedelta(days=self.number(-20, 20)),
            shipped + timedelta(days=self.number(1, 20)),
            self.one_of(["DELIVER IN PERSON", "DELIVER IN PERSON", "NONE"]),
            self.one_of(["MAIL", "SHIP", "AIR", "AIR"]),
            "c",
        ]

    def _day(self) -> date:
        begun = self.one_of(
            ["1993-07-01", "1993-10-01", "1994-02-01", "1995-03-01", "1995-08-01", "1996-01-01"]
        )
        return date.fromisoformat(begun) + timedelta(days=self.number(0, 40))

    def row(self, table: str, key: tuple[int, ...]) -> Row:
        made = getattr(self, f"_{table}")(*key)
        return dict(zip(TABLES[table], made, strict=True))


def _keys(table: str) -> list[tuple[int, ...]]:
    counts = {"region": 4, "nation": 6, "supplier": 8, "part": 8, "customer": 14, "orders": 40}
    if table == "partsupp":
        return [(part, 1 + (part + n) % 8) for part in range(1, 9) for n in (0, 3, 5, 6)]
    if table == "lineitem":
        return [(order, line) for order in range(1, 41) for line in (1, 2, 3, 4)]
    begun = 0 if table in ("region", "nation") else 1
    return [(key,) for key in range(begun, begun + counts[table])]


def changes(seed: int) -> list[Changed]:
    """Return what happens: most rows come in the first epoch, some change, some go for a while."""
    draw = _Draw(seed)
    made = []
    for table in TABLES:
        for key in _keys(table):
            epoch = draw.one_of((1, 1, 1, 2, 3))
            made.append(Changed(epoch, table, key, draw.row(table, key)))
            few = 3 if table in ("region", "nation") else 1
            if draw.number(1, 6 * few) == 1:
                made.append(Changed(epoch + 1, table, key, None))
            if draw.number(1, 4 * few) == 1:
                made.append(Changed(4, table, key, draw.row(table, key)))
    return made


def rows_at(made: Sequence[Changed], table: str, epoch: int) -> list[Row]:
    """Return the rows that a table has at an epoch."""
    newest = {one.key: one for one in made if one.table == table and one.epoch <= epoch}
    return [one.values for one in newest.values() if one.values is not None]


class KeptQuery:
    """The table of one query, brought forward by what changes."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.rows: dict[tuple[object, ...], Row] = {}
        self._flow = Dataflow(made.tree)
        self._before: dict[str, list[Row]] = {}

    def close(self) -> None:
        self._flow.close()

    def epoch(self, tables: Mapping[str, Sequence[Row]]) -> None:
        for scan in scans(self.plan.tree):
            hidden = {
                "_time": pa.timestamp("us", "UTC"),
                "_seq_hi": pa.int64(),
                "_seq_lo": pa.int64(),
            }
            shape = pa.schema([*((c.name, arrow_type(c)) for c in scan.columns), *hidden.items()])
            place = dict(zip(hidden, (datetime(1970, 1, 1, tzinfo=UTC), 0, 0), strict=True))
            now = [row | place for row in tables[scan.name.rpartition(".")[2]]]
            before = self._before.get(scan.view, [])
            for weight, rows, others in ((1, now, before), (-1, before, now)):
                new = [row for row in rows if row not in others]
                part = pa.Table.from_pylist(
                    [{n: row[n] for n in shape.names} for row in new], shape
                )
                self._flow.add(scan, [part], weight=weight)
            self._before[scan.view] = now
        changed = self._flow.round().to_pylist()
        for row in sorted(changed, key=lambda row: int(row["_w"])):
            values = {n: value for n, value in row.items() if n != "_w"}
            key = tuple(values[each] for each in self.plan.key)
            if row["_w"] < 0:
                assert self.rows.pop(key) == values, "only what was given out is taken back"
            else:
                assert key not in self.rows, "a key has one row"
                self.rows[key] = values


def answer(statement: str, tables: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return what DuckDB answers to the SELECT of a query over the rows of all tables."""
    select = statement[statement.index(" AS\n") + len(" AS\n") :]
    with duckdb.connect() as database:
        for table, columns in TABLES.items():
            shape = pa.schema([(n, arrow_type(Column(name=n, type=t))) for n, t in columns.items()])
            database.register(table, pa.Table.from_pylist([*tables[table]], shape))
        rows: list[Row] = database.sql(select).to_arrow_table().to_pylist()
    return rows
