"""P6: what is kept epoch by epoch equals the rebuild and an independent computation.

The compiled Spark SQL runs in DuckDB here, translated by sqlglot: hundreds of arrivals in seconds.
The same cases run on Spark itself in tests/integration/test_sql_spark.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count

import duckdb
import pytest
import sqlglot
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from projections.run import operator_tables
from projections.run.database import TEXT
from projections.run.keyed_facts import KeyedFacts
from projections.run.spark_scalars import register_scalars
from projections.sql.words.duckdb_types import duckdb_type
from tests.support.oracles.element_projections import ELEMENTS, KEPT_BY_KEYS
from tests.support.oracles.sql_arrivals import worlds
from tests.support.oracles.sql_projections import CASES as PLAIN
from tests.support.oracles.sql_world import Fact, Row, World, canonical, kept, planned, rebuilt
from tests.support.services.tier import examples

CASES = {**PLAIN, **{name: ELEMENTS[name] for name in KEPT_BY_KEYS}}
_FUNCTIONS = (
    "unix_micros(t) AS epoch_us(t)",
    "timestamp_micros(us) AS make_timestamp(us)",
    "pmod(a, b) AS ((a % b) + b) % b",
)


class DuckEngine:
    """DuckDB, which takes Spark SQL translated, or texts of its own."""

    def __init__(self, *, spark: bool) -> None:
        self.spark = spark
        self._connection = duckdb.connect()
        register_scalars(self._connection)
        self._translated: dict[str, str] = {}
        for function in _FUNCTIONS:
            self._connection.execute(f"CREATE MACRO {function}")

    def view(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        shape = ", ".join(f"{column} {duckdb_type(kind)}" for column, kind in columns.items())
        self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({shape})")
        if rows:
            marks = f"({', '.join('?' for _ in columns)})"
            self._connection.execute(
                f"INSERT INTO {name} VALUES {', '.join(marks for _ in rows)}",
                [row[column] for row in rows for column in columns],
            )

    def query(self, sql: str) -> list[Row]:
        if not self.spark:
            return self._rows(sql)
        if sql not in self._translated:
            # DuckDB's arg_max passes over NULL; Spark's max_by, which it stands for, does not.
            text = sqlglot.transpile(sql, read="spark", write="duckdb")[0]
            self._translated[sql] = text.replace("ARG_MAX(", "ARG_MAX_NULL(")
        return self._rows(self._translated[sql])

    def _rows(self, sql: str) -> list[Row]:
        cursor = self._connection.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def close(self) -> None:
        self._connection.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckEngine]:
    made = DuckEngine(spark=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def small() -> Iterator[DuckEngine]:
    """Return the engine that runs in the pipeline's process."""
    made = DuckEngine(spark=False)
    yield made
    made.close()


@pytest.mark.parametrize("name", CASES)
@settings(
    max_examples=examples(5, matrix=20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(world=worlds())
def test_p6_any_order_of_arrival_gives_the_rebuild(
    engine: DuckEngine, small: DuckEngine, name: str, world: World
) -> None:
    case = CASES[name]
    plan = planned(case.statement)
    expected = canonical(case.oracle(world))
    assert canonical(rebuilt(engine, plan, world)) == expected
    assert canonical(kept(engine, plan, world)) == expected
    if plan.small:
        assert canonical(kept(small, plan, world, TEXT)) == expected


FOUND_BY_KEYS = ("as of, left", "as of, inner", "as of, windowed", "hop", "cumulate")


@pytest.mark.parametrize("name", FOUND_BY_KEYS)
@settings(
    max_examples=examples(5, matrix=20),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(world=worlds(), lost=st.integers(0, 4))
def test_p6_facts_found_by_their_keys_give_the_rebuild(
    small: DuckEngine, name: str, world: World, lost: int
) -> None:
    """With runs of a few rows, in any of which the process may begin anew."""
    case, made, runs = CASES[name], KeyedFacts(), count()

    def keyed() -> KeyedFacts:
        if next(runs) == lost:
            made.close()
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(operator_tables, "RUN_ROWS", 2)
        rows = kept(small, planned(case.statement), world, TEXT, keyed=keyed)
    assert canonical(rows) == canonical(case.oracle(world))
    made.close()


@pytest.mark.parametrize("distances", [(1e16, 1.0, 1.0), (1.0, 1e16, 1.0), (1.0, 1.0, 1e16)])
def test_p6_a_sum_of_doubles_has_the_same_bits_in_any_order(
    engine: DuckEngine, distances: tuple[float, ...]
) -> None:
    facts = tuple(Fact(n, n, "f1", "AA", "JFK", 5, 1, d) for n, d in enumerate(distances, start=1))
    world = World(facts=facts, readings=())
    rows = kept(engine, planned(CASES["hop"].statement), world)
    assert {row["distance"] for row in rows} == {1e16 + 2.0}
