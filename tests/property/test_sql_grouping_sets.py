"""ROLLUP, CUBE and GROUPING SETS against those of DuckDB, which knows nothing of our rewriting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.property.test_sql_incremental import DuckEngine
from tests.property.test_sql_key_faults import SEEDS, crowd
from tests.support.oracles.sql_world import (
    FACT_COLUMNS,
    Fact,
    Row,
    World,
    canonical,
    fact_rows,
    planned,
    rebuilt,
)

FROM = "FROM STREAM events.flight.departed"
SOME = "COUNT(*) FILTER (WHERE carrier = 'AA') AS n, SUM(delay) FILTER (WHERE carrier = 'AA') AS s"
NUMBER = "GROUPING_ID()"
ROLLED = f"SELECT coalesce(carrier, 'none') AS c, GROUPING(carrier) AS g, {SOME}"
QUERIES = {
    "c, g": [
        f"{ROLLED} {FROM} GROUP BY ROLLUP(carrier)",
        f"{ROLLED} {FROM} GROUP BY carrier WITH ROLLUP",
        f"{ROLLED} {FROM} GROUP BY ROLLUP(carrier) HAVING COUNT(*) FILTER (WHERE carrier = 'AA') "
        "> 0",
        "SELECT coalesce(carrier, 'none') AS c, GROUPING(carrier) AS g, SUM(CASE WHEN carrier = "
        f"'AA' THEN delay END) AS s {FROM} GROUP BY CUBE(carrier)",
    ],
    "c, o, g, h": [
        f"SELECT coalesce(carrier, 'none') AS c, coalesce(lower(origin), 'none') AS o, "
        f"GROUPING(carrier) AS g, GROUPING(lower(origin)) AS h, {SOME}, MAX(delay) FILTER (WHERE "
        f"lower(origin) = 'jfk' AND NOT carrier = 'UA') AS m {FROM} GROUP BY {sets}"
        for sets in (
            "CUBE(carrier, lower(origin))",
            "ROLLUP(carrier, lower(origin))",
            "GROUPING SETS ((carrier), (lower(origin)), ())",
            "ROLLUP(carrier), CUBE(lower(origin))",
            "carrier, CUBE(lower(origin))",
            "GROUPING SETS (ROLLUP(carrier, lower(origin)), (lower(origin)))",
        )
    ],
    "c, o, i": [
        f"SELECT coalesce(carrier, 'none') AS c, coalesce(origin, 'none') AS o, {NUMBER} AS i, "
        f"{SOME} {FROM} GROUP BY {sets}"
        for sets in ("CUBE(carrier, origin)", "ROLLUP(carrier), ROLLUP(origin)")
    ],
}
ASKED = [(key, query) for key, queries in QUERIES.items() for query in queries]


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckEngine]:
    made = DuckEngine(spark=True)
    yield made
    made.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[DuckEngine]:
    made = DuckEngine(spark=False)
    yield made
    made.close()


def theirs(plain: DuckEngine, query: str, world: World) -> list[Row]:
    plain.view("facts", FACT_COLUMNS, fact_rows(world))
    text = query.replace(FROM, "FROM facts").replace(NUMBER, "GROUPING(carrier, origin)")
    before, rolled, after = text.partition("GROUP BY carrier WITH ROLLUP")
    return plain.query(f"{before}GROUP BY ROLLUP(carrier){after}" if rolled else text)


@pytest.mark.parametrize(("key", "query"), ASKED)
def test_p6_sets_of_groups_are_those_of_a_database(
    engine: DuckEngine, plain: DuckEngine, key: str, query: str
) -> None:
    plan = planned(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}")
    for seed in SEEDS:
        world = crowd(seed)
        assert canonical(rebuilt(engine, plan, world)) == canonical(theirs(plain, query, world))


def test_what_filter_asks_for_is_asked_of_the_row(engine: DuckEngine) -> None:
    facts = tuple(
        Fact(number, 1, "f1", carrier, "JFK", 0, 5, 1.0)
        for number, carrier in enumerate(("AA", "AA", "BB"))
    )
    plan = planned(
        "CREATE PROJECTION p WITH (key = 'c') AS "
        f"SELECT coalesce(carrier, 'all') AS c, {SOME} {FROM} GROUP BY ROLLUP(carrier)"
    )
    rows = rebuilt(engine, plan, World(facts=facts, readings=()))
    assert {row["c"]: (row["n"], row["s"]) for row in rows} == {
        "all": (2, 10),
        "AA": (2, 10),
        "BB": (0, None),
    }


def test_what_is_listed_and_in_no_set_is_in_no_group(engine: DuckEngine) -> None:
    """As in Spark: NULL in all rows, and a bit of GROUPING_ID in all."""
    facts = tuple(
        Fact(number, 1, f"f{number}", carrier, "JFK", 0, 5, 1.0)
        for number, carrier in enumerate(("AA", "AA", "BB"))
    )
    plan = planned(
        "CREATE PROJECTION p WITH (key = 'c') AS SELECT coalesce(carrier, 'none') || "
        f"coalesce(origin, 'none') || coalesce(flight, 'none') AS c, {NUMBER} AS i, "
        f"GROUPING(flight) AS g, COUNT(*) AS n {FROM} GROUP BY carrier, origin, flight "
        "GROUPING SETS ((carrier), (origin))"
    )
    rows = rebuilt(engine, plan, World(facts=facts, readings=()))
    assert {row["c"]: (row["i"], row["g"], row["n"]) for row in rows} == {
        "AAnonenone": (3, 1, 2),
        "BBnonenone": (3, 1, 1),
        "noneJFKnone": (5, 1, 3),
    }
