"""Changes in any order, any batches, any number of times become the table of the clean input.

The SQL of the flow runs in DuckDB here, translated by sqlglot, as `BatchWriter` runs it in Spark:
thousands of arrivals in seconds. Spark itself runs in tests/integration/test_auto_cdc.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import LongType

from projections.auto_cdc import facts as sql
from projections.auto_cdc.arguments import Shape
from tests.support.oracles.cdc_flows import VALUES, Kind, Row, Said, expected
from tests.support.services.tier import examples

KINDS = {
    "latest": Kind(),
    "latest, truncated": Kind(truncates=True),
    "latest, partial": Kind(partial=VALUES),
    "latest, one partial, truncated": Kind(partial=("city",), truncates=True),
    "versions": Kind(scd_type=2),
    "versions, one tracked": Kind(scd_type=2, tracked=("name",)),
    "versions, partial": Kind(scd_type=2, partial=VALUES),
    "versions, partial, one tracked": Kind(scd_type=2, partial=("city",), tracked=("city",)),
}
QUICK = {"latest, one partial, truncated", "versions", "versions, partial, one tracked"}
"""What `make test` tries; between them they have every option."""
LONG_AGO = 0
COLUMNS = (
    "id BIGINT, name VARCHAR, city VARCHAR, __sequence BIGINT, __deleted BOOLEAN, "
    "__truncate BOOLEAN, __content VARCHAR, __id VARCHAR, __taken_us BIGINT, __epoch BIGINT"
)

WORDS = st.sampled_from([None, "a", "b"])
CHANGES = st.builds(
    Said,
    key=st.integers(0, 1),
    sequence=st.integers(0, 7),
    op=st.sampled_from("uuuuudt"),
    name=WORDS,
    city=WORDS,
)
BATCHES = st.lists(st.lists(CHANGES, max_size=6), min_size=1, max_size=4)


class Duck:
    """The tables of one flow in DuckDB."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.translated: dict[str, str] = {}
        for table in ("known", "new", "together", "facts", "cleared"):
            self.connection.execute(f"CREATE TABLE {table} ({COLUMNS})")

    def query(self, text: str, **frames: str) -> list[Row]:
        text = text.format(**frames)
        if text not in self.translated:
            made = sqlglot.transpile(text, read="spark", write="duckdb")[0]
            # DuckDB's arg_max passes over NULL; Spark's max_by, which it stands for, does not.
            self.translated[text] = made.replace("ARG_MAX(", "ARG_MAX_NULL(")
        cursor = self.connection.execute(self.translated[text])
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def fill(self, table: str, rows: Sequence[Row]) -> None:
        self.connection.execute(f"DELETE FROM {table}")
        names = [column.split()[0] for column in COLUMNS.split(", ")]
        if rows:
            marks = ", ".join(f"({', '.join('?' for _ in names)})" for _ in rows)
            values = [row.get(name) for row in rows for name in names]
            self.connection.execute(f"INSERT INTO {table} VALUES {marks}", values)


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    engine = Duck()
    yield engine
    engine.connection.close()


def shape_of(kind: Kind) -> Shape:
    return Shape(
        keys=("id",),
        values=VALUES,
        tracked=kind.tracked,
        partial=kind.partial,
        sequence=LongType(),
        scd_type=kind.scd_type,
        truncates=kind.truncates,
    )


def fact(change: Said) -> Row:
    name, city = change.values
    return {
        "id": change.key,
        "name": name,
        "city": city,
        "__sequence": change.sequence,
        "__deleted": change.op == "d",
        "__truncate": change.op == "t",
        "__content": change.content,
        "__id": f"{change.key}/{change.sequence}",
        "__taken_us": 1,
        "__epoch": 1,
    }


def kept(duck: Duck, kind: Kind, batches: Sequence[Sequence[Said]]) -> list[Row]:
    """Take the batches in one by one, with nothing but the remembered facts between them."""
    shape = shape_of(kind)
    known: list[Row] = []
    cleared: Row | None = None
    for batch in batches:
        new = [fact(change) for change in batch if change.op != "t" or kind.truncates]
        truncates = [row for row in (*new, cleared) if row and row["__truncate"]]
        cleared = max(truncates, key=lambda row: int(str(row["__sequence"])), default=None)
        duck.fill("new", new)
        duck.fill("known", known)
        duck.fill("cleared", [cleared] if cleared else [])
        gathered = sql.gathered(shape, horizon=LONG_AGO, cleared=cleared is not None)
        together = duck.query(gathered, new="new", known="known", cleared="cleared")
        duck.fill("together", [row for row in together if not row["__loser"]])
        known = duck.query(sql.remembered(shape, horizon=LONG_AGO), facts="together")
        known = [row | {"__truncate": False} for row in known]
        if kind.scd_type == 1:
            bound = 2 + len(kind.partial)
            assert all(sum(r["id"] == key for r in known) <= bound for key in (0, 1))
    duck.fill("together", known)
    remembered = sql.remembered(shape, horizon=LONG_AGO).format(facts="together")
    compute = sql.latest_rows if kind.scd_type == 1 else sql.version_rows
    rows = duck.query(compute(shape), facts=f"({remembered})")
    return sorted(rows, key=lambda row: (row["id"], row.get("__START_AT")))


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.matrix) for name in KINDS],
)
@settings(max_examples=examples(8, matrix=25))
@given(batches=BATCHES, again=st.data())
def test_p6_any_order_and_batching_of_changes_gives_the_same_table(
    name: str, batches: list[list[Said]], again: st.DataObject, duck: Duck
) -> None:
    kind = KINDS[name]
    said = [change for batch in batches for change in batch if change.op != "t" or kind.truncates]
    wanted = expected(kind, said)
    assert kept(duck, kind, batches) == wanted
    shuffled = again.draw(st.permutations(said + said[:3]))
    cut = again.draw(st.integers(0, len(shuffled)))
    assert kept(duck, kind, [shuffled[:cut], shuffled[cut:]]) == wanted
