"""Subqueries that give one value: whose columns they name, and what stands beside them."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.plans.plan import Plan, plan
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from tests.support.oracles.sql_world import planned


def test_a_column_called_value_stands_beside_the_value_of_a_subquery() -> None:
    stream = Relation(
        name="s",
        columns=(Column(name="k", type="INT"), Column(name="value", type="INT")),
        key=(),
        event_time=None,
    )
    decl = parse_script(
        "CREATE PROJECTION p WITH (key = k) AS "
        "SELECT k, value, (SELECT MAX(value) FROM STREAM s) AS most FROM STREAM s"
    ).projections[0]
    found = plan(decl, MemoryCatalog(streams={"s": stream}))
    assert [each.name for each in found.columns] == ["k", "value", "most"]


def _of_structs(query: str) -> str:
    streams = {"a": {"id": "BIGINT", "x": "INT"}, "b": {"d": "STRUCT<x: INT>", "v": "INT"}}
    relations = {
        name: Relation(
            name=name,
            columns=tuple(Column(name=n, type=t) for n, t in columns.items()),
            key=(),
            event_time=None,
        )
        for name, columns in streams.items()
    }
    decl = parse_script(f"CREATE PROJECTION p WITH (key = id) AS {query}").projections[0]
    return plan(decl, MemoryCatalog(streams=relations)).rows_sql


@pytest.mark.parametrize(
    "inner", ["STREAM b", "(SELECT d, v FROM STREAM b) q", "STREAM a JOIN STREAM b ON a.x = v"]
)
def test_a_field_of_a_column_comes_before_an_alias_of_the_query_around(inner: str) -> None:
    value = "(SELECT MAX(v) FROM {1} WHERE d.x = 1 AND d.x > 0)"
    query = f"SELECT {{0}}.id, {value} AS m FROM STREAM a {{0}}"
    assert _of_structs(query.format("d", inner)) == (
        _of_structs(query.format("e", inner)).replace("`e.", "`d.")
    )


def test_a_number_that_a_subquery_equates_is_no_place_of_a_column() -> None:
    stream = "FROM STREAM events.flight.departed"
    item = f"(SELECT MAX(o.delay) {stream} o WHERE e.delay = 1)"
    query = f"SELECT flight, {item} AS m {stream} e"
    found = planned(f"CREATE PROJECTION p WITH (key = flight) AS {query}")
    assert "1 AS `__k0`" in found.rows_sql


@pytest.mark.parametrize(
    ("inner", "of_groups"),
    [
        ("SELECT label FROM airlines", False),
        ("SELECT DISTINCT label FROM airlines", False),
        ("SELECT label FROM airlines GROUP BY carrier, label", False),
        ("SELECT label FROM (SELECT label FROM airlines UNION SELECT label FROM airlines)", False),
        ("SELECT MAX(label) AS label FROM airlines GROUP BY carrier", True),
    ],
)
def test_rows_that_are_not_in_a_table_take_late_ones_as_single_rows_do(
    inner: str, of_groups: bool
) -> None:
    found = planned(
        "CREATE PROJECTION p WITH (key = position) AS SELECT position "
        f"FROM STREAM events.flight.departed WHERE carrier NOT IN ({inner})"
    )
    assert found.stateful is of_groups


def _of_tables(query: str, kinds: dict[str, str]) -> Plan:
    columns = tuple(Column(name=n, type=t) for n, t in kinds.items())
    table = Relation(name="c", columns=columns, key=("id",), event_time=None)
    rows = Relation(
        name="o", columns=(Column(name="id", type="INT"),), key=("id",), event_time=None
    )
    decl = parse_script(f"CREATE PROJECTION p WITH (key = id) AS {query}").projections[0]
    return plan(decl, MemoryCatalog(latests={"c": table, "o": rows}))


def test_a_field_that_is_called_like_the_key_does_not_identify_a_row() -> None:
    kinds = {"id": "INT", "name": "STRING", "place": "STRUCT<id: INT>"}
    query = "SELECT o.id, (SELECT c.name FROM c WHERE {} = o.id) AS name FROM o"
    assert _of_tables(query.format("c.id"), kinds).columns[1].type == "STRING"
    assert _of_tables(query.format("id").replace("SELECT c.name", "SELECT name"), kinds).columns
    for field in ("c.place.id", "place.id"):
        with pytest.raises(InvalidRequest, match="one value of all its rows"):
            _of_tables(query.format(field), kinds)


def test_of_the_one_row_that_has_a_key_a_limit_says_nothing() -> None:
    kinds = {"id": "INT", "name": "STRING"}
    query = "SELECT o.id, (SELECT c.name FROM c WHERE c.id = o.id{}) AS name FROM o"
    limited, plain = (_of_tables(query.format(end), kinds) for end in (" LIMIT 1", ""))
    assert limited.rows_sql == plain.rows_sql
    with pytest.raises(InvalidRequest, match="one value of all its rows"):
        _of_tables(query.format(" LIMIT 0"), kinds)


def test_the_row_of_a_key_that_is_written_out_is_a_value() -> None:
    kinds = {"id": "INT", "name": "STRING"}
    query = "SELECT o.id, (SELECT c.name FROM c WHERE c.id = {}) AS name FROM o"
    assert _of_tables(query.format("7"), kinds).columns[1].type == "STRING"
    for other in ("c.name", "length(c.name)"):
        with pytest.raises(InvalidRequest, match="one value of all its rows"):
            _of_tables(query.format(other), kinds)


@pytest.mark.parametrize(
    "inner", ["(SELECT * FROM c) q (a, b)", "(SELECT c.* FROM c) q (a, b)", "q"]
)
def test_a_new_field_gets_no_name_that_stands_behind_a_query(inner: str) -> None:
    before = "WITH q (a) AS (SELECT * FROM c) " if inner == "q" else ""
    with pytest.raises(InvalidRequest, match="names the columns of a") as caught:
        _of_tables(f"{before}SELECT a AS id FROM {inner}", {"id": "INT", "name": "STRING"})
    assert caught.value.remedy.startswith("Name the columns in the query")


def test_names_behind_a_query_may_be_of_columns_that_another_one_names() -> None:
    inner = "(SELECT * FROM (SELECT id, name FROM c) x) q (a, b)"
    found = _of_tables(f"SELECT a AS id, b FROM {inner}", {"id": "INT", "name": "STRING"})
    assert [each.name for each in found.columns] == ["id", "b"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            "SELECT o.id FROM o WHERE EXISTS (SELECT c.name FROM c WHERE c.id = o.id "
            "GROUP BY c.name QUALIFY ROW_NUMBER() OVER (ORDER BY c.name) = 2)",
            "EXISTS takes a SELECT",
        ),
        (
            "SELECT o.id FROM o WHERE EXISTS (SELECT c.name FROM c WHERE c.id = o.id GROUP BY 2)",
            "EXISTS takes a SELECT",
        ),
        (
            "SELECT o.id, (SELECT COUNT(*) FROM c JOIN c AS q ON q.id = c.id AND q.id > o.id "
            "WHERE c.id < o.id) AS n FROM o",
            "reads the query around it in a way that is not compiled",
        ),
    ],
)
def test_what_cannot_be_told_for_each_row_around_is_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        _of_tables(query, {"id": "INT", "name": "STRING"})
