"""Projections that read each other: their columns, their order, circles, who reads whom."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.explain import page
from projections.sql.plans.plan import InputKind, Plan, Strategy, plan
from projections.sql.statements.lineage import in_order, read_by, readers_of, with_what_they_read
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from tests.support.oracles.shop_world import CATALOG

TOTALS = """
CREATE PROJECTION totals WITH (key = 'order_id') AS
SELECT order_id, COUNT(*) AS n, SUM(amount) AS paid FROM STREAM events.order.paid GROUP BY order_id;
"""


def planned(text: str, name: str, under: MemoryCatalog = CATALOG) -> Plan:
    """Plan the projection `name` beside all others of a text."""
    script = parse_script(text)
    catalog = DeclaredCatalog(under, script.sources, script.projections)
    return plan(next(decl for decl in script.projections if decl.name == name), catalog)


def reading(name: str, other: str) -> str:
    return f"CREATE PROJECTION {name} WITH (key = 'order_id') AS SELECT order_id, n FROM {other};\n"


def test_a_projection_is_read_with_the_columns_and_the_key_of_its_query() -> None:
    made = planned(TOTALS + reading("busy", "totals"), "busy")
    assert made.strategy is Strategy.REGIONS
    assert [(one.kind, one.name) for one in made.inputs] == [(InputKind.PROJECTION, "totals")]
    assert made.columns == (Column(name="order_id", type="BIGINT"), Column(name="n", type="BIGINT"))
    assert made.tree is not None
    assert made.tree.unique, "a row of it for each of its own"
    assert read_by(made) == ("totals",)
    assert "  projection totals (order_id, n)" in page(made)


def test_a_column_whose_type_only_spark_knows_has_the_one_of_the_table() -> None:
    text = """
        CREATE PROJECTION shouted WITH (key = 'o') AS
        SELECT order_id AS o, hex(amount) AS p FROM STREAM events.order.paid;
    """
    outer = "CREATE PROJECTION again WITH (key = 'o') AS SELECT o, p FROM shouted;"
    unknown = planned(text + outer, "again")
    stored = Relation(
        name="shouted",
        columns=(Column(name="o", type="BIGINT"), Column(name="p", type="STRING")),
        key=(),
        event_time=None,
    )
    under = MemoryCatalog(streams=CATALOG.streams, projections={"shouted": stored})
    known = planned(text + outer, "again", under)
    assert known.columns[1].type == "STRING"
    assert known.strategy is Strategy.REGIONS
    assert unknown.strategy is (Strategy.REGIONS if unknown.columns[1].type else Strategy.WHOLE)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (reading("a", "a"), "a -> a"),
        (reading("a", "b") + reading("b", "a"), "a -> b -> a"),
        (reading("a", "b") + reading("b", "c") + reading("c", "b"), "b -> c -> b"),
    ],
)
def test_a_circle_is_refused_with_its_path(text: str, path: str) -> None:
    with pytest.raises(InvalidRequest, match="read each other in a circle") as refused:
        planned(text, "a")
    told = refused.value.message.partition("circle: ")[2].split(" -> ")
    assert told[0] == told[-1]
    assert {*told} == {*path.split(" -> ")}


def test_a_projection_has_neither_a_log_nor_versions() -> None:
    for read in (
        "STREAM totals",
        "STREAM events.order.paid p JOIN totals FOR SYSTEM_TIME AS OF "
        "p.occurred_at t ON t.order_id = p.order_id",
    ):
        text = f"CREATE PROJECTION x WITH (key = n) AS SELECT n FROM {read};"
        with pytest.raises(InvalidRequest, match="neither a log nor versions"):
            planned(TOTALS + text, "x")


def test_a_table_without_a_key_is_refused_with_a_form_that_works() -> None:
    table = Relation(
        name="shop.public.notes",
        columns=(Column(name="text", type="STRING"),),
        key=(),
        event_time=None,
    )
    text = "CREATE PROJECTION x WITH (key = text) AS SELECT text FROM shop.public.notes;"
    with pytest.raises(InvalidRequest, match="has no primary key") as refused:
        planned(text, "x", MemoryCatalog(latests={"shop.public.notes": table}))
    assert "CREATE SOURCE name ON shop.public.notes WITH (key" in str(refused.value.remedy)


def test_what_has_no_place_in_time_is_said_where_one_of_several_is_chosen() -> None:
    text = TOTALS + "CREATE PROJECTION x WITH (key = n) AS SELECT n, order_id FROM totals;"
    assert any("no place in time" in note for note in planned(text, "x").notes)
    text = TOTALS + reading("busy", "totals")
    assert not any("no place in time" in note for note in planned(text, "busy").notes)


def test_each_runs_after_those_that_it_reads() -> None:
    reads = {"c": ["b"], "b": ["a", "z"], "d": [], "a": []}
    order = in_order(reads)
    assert sorted(order) == ["a", "b", "c", "d"]
    assert order.index("a") < order.index("b") < order.index("c")
    assert with_what_they_read(["c"], reads) == {"a", "b", "c", "z"}


def test_readers_are_told_by_the_names_in_queries() -> None:
    script = parse_script(
        TOTALS
        + reading("busy", "totals")
        + """
        CREATE PROJECTION joined WITH (key = order_id) AS
        SELECT p.order_id, t.n FROM STREAM events.order.paid p
        LEFT JOIN totals t ON t.order_id = p.order_id;
        CREATE PROJECTION hidden WITH (key = n) AS
        WITH totals AS (SELECT 1 AS n FROM STREAM events.order.paid) SELECT n FROM totals;
        CREATE PROJECTION shadowed WITH (key = n) AS
        WITH totals AS (SELECT n FROM totals) SELECT n FROM totals;
        CREATE PROJECTION streamed WITH (key = n) AS SELECT n FROM STREAM totals;
        """
    )
    assert readers_of("totals", script.projections) == ["busy", "joined", "shadowed"]
