"""History of captured tables: epochs, snapshots and clocks do not matter, only what was committed.

The SQL of the fold runs in DuckDB here, translated by sqlglot: hundreds of tables in seconds. Spark
itself runs in tests/integration/test_change_history.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import duckdb
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.quoting import as_json
from pipeline.history.change_versions import touched_by_changes, versions_by_change
from tests.support.oracles.change_facts import (
    TRUNCATES,
    TYPED,
    Fact,
    Version,
    Writer,
    expected,
    truncates,
    typed,
)

KEY, COLUMNS = ("id",), ("id", "name")
VERSIONS = (
    "id BIGINT, name VARCHAR, valid_from TIMESTAMPTZ, valid_to TIMESTAMPTZ, _deleted BOOLEAN, "
    "_seq_hi BIGINT, _seq_lo BIGINT, _transaction VARCHAR, _previous_key VARCHAR, "
    "_next_key VARCHAR"
)
NAMES = [column.split()[0] for column in VERSIONS.split(", ")]


class Duck:
    """One history in DuckDB."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone = 'UTC'")
        self.touched = self._translated(touched_by_changes(KEY))
        self.versions = self._translated(versions_by_change(KEY, COLUMNS))
        for table in ("history_stored", "history_old", "computed"):
            self.connection.execute(f"CREATE TABLE {table} ({VERSIONS})")
        self.connection.register("history_in", TYPED.empty_table())
        self.connection.register("history_truncates", TRUNCATES.empty_table())

    @staticmethod
    def _translated(text: str) -> str:
        # DuckDB's to_json takes no options; times are no keys here.
        text = text.replace(as_json(KEY), "to_json(struct(id))")
        return sqlglot.transpile(text, read="spark", write="duckdb")[0]

    def fold(self, facts: Sequence[Fact]) -> None:
        run = self.connection.execute
        self.connection.register("history_in", typed(facts, 1))
        self.connection.register("history_truncates", truncates(facts, 1))
        run("DELETE FROM history_old")
        run(f"INSERT INTO history_old BY NAME {self.touched}")
        run("DELETE FROM computed")
        run(f"INSERT INTO computed BY NAME {self.versions}")
        run("DELETE FROM history_stored WHERE id IN (SELECT id FROM history_old)")
        run("INSERT INTO history_stored BY NAME SELECT * FROM computed")

    def rows(self) -> list[Version]:
        listed = ", ".join(NAMES)
        cursor = self.connection.execute(f"SELECT {listed} FROM history_stored ORDER BY id, 3")
        return [dict(zip(NAMES, row, strict=True)) for row in cursor.fetchall()]

    def clear(self) -> None:
        self.connection.execute("DELETE FROM history_stored")


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    engine = Duck()
    yield engine
    engine.connection.close()


@settings(max_examples=30)
@given(
    chance=st.randoms(use_true_random=False),
    transactions=st.integers(1, 25),
    again_at=st.integers(0, 25),
    cuts=st.lists(st.integers(1, 8), min_size=1, max_size=8),
)
def test_p6_history_is_a_function_of_what_was_committed(
    chance: random.Random, transactions: int, again_at: int, cuts: list[int], duck: Duck
) -> None:
    writer = Writer(chance=chance, clears=0.06)
    parts = [writer.snapshot({0: "ann", 1: "bob"})]
    for number in range(transactions):
        if number == again_at:
            seen = dict(list(writer.rows.items())[:2]) | {3: "mended"}
            parts.append(writer.snapshot(seen, later=True))
        parts.append(writer.transaction(keys=8))
    wanted = expected([fact for part in parts for fact in part])
    duck.clear()
    duck.fold([fact for part in parts for fact in part])
    assert duck.rows() == wanted
    duck.clear()
    while parts:
        size = cuts[0]
        cuts = [*cuts[1:], cuts[0]]
        duck.fold([fact for part in parts[:size] for fact in part])
        parts = parts[size:]
    assert duck.rows() == wanted
