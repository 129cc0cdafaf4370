"""Elements of arrays and entries of maps as rows: the forms, what they give, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kernel.errors import InvalidRequest
from projections.run.database import arrow_schema
from projections.run.dataflow import Dataflow
from projections.sql.operators.tree import scans
from projections.sql.plans.explain import document
from projections.sql.plans.plan import Plan, Strategy, plan
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from projections.sql.words.nested_types import leaves

KINDS = {
    "id": "BIGINT",
    "name": "STRING",
    "lines": "array<struct<sku:string,n:int,part:struct<at:timestamp>>>",
    "tags": "ARRAY<STRING>",
    "owned": "MAP<STRING, INT>",
    "held": "STRUCT<m: MAP<STRING, INT>>",
    "alone": "array<struct<x:int>>",
}
ITEMS = {"sku": "STRING", "title": "STRING"}
AT = datetime(2020, 1, 1, tzinfo=UTC)
LINE: dict[str, object] = {"sku": "a", "n": 1, "part": {"at": AT}}
ORDERS: list[dict[str, object]] = [
    {"id": 1, "name": "A", "lines": [LINE, None, LINE], "tags": ["x", None], "owned": [("k", 7)]},
    {"id": 2, "name": "B", "lines": [], "tags": None, "owned": []},
    {"id": 3, "name": "C", "lines": None, "tags": [], "owned": None},
]
PLACE = {"_time": "TIMESTAMP", "_seq_hi": "BIGINT", "_seq_lo": "BIGINT"}


def columns(kinds: dict[str, str]) -> tuple[Column, ...]:
    return tuple(Column(name=n, type=t) for n, t in kinds.items())


def relation(name: str, kinds: dict[str, str], key: str) -> Relation:
    return Relation(name=name, columns=columns(kinds), key=(key,), event_time=None)


CATALOG = MemoryCatalog(
    streams={"s": relation("s", KINDS, "id")},
    latests={"o": relation("o", KINDS, "id"), "i": relation("i", ITEMS, "sku")},
)


def made(query: str, key: str = "id, pos") -> Plan:
    script = parse_script(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}")
    return plan(script.projections[0], CATALOG)


def rows(query: str, key: str = "id, pos") -> list[tuple[object, ...]]:
    """Return what the small executor makes of the orders, and of one item."""
    found = made(query, key)
    assert found.small, found.notes[0]
    flow = Dataflow(found.tree)
    for scan in scans(found.tree):
        given = [{"sku": "a", "title": "T"}] if scan.name == "i" else ORDERS
        shape = arrow_schema(columns((ITEMS if scan.name == "i" else KINDS) | PLACE))
        flow.add(scan, [pa.Table.from_pylist([{"_time": AT} | row for row in given], shape)])
    names = [each.name for each in found.columns]
    given = flow.round().to_pylist()
    flow.close()
    return sorted((tuple(row[name] for name in names) for row in given), key=str)


EACH = [(1, 0, "a"), (1, 1, None), (1, 2, "a")]
NUMBERED = [(id_, pos + 1, sku) for id_, pos, sku in EACH]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, pos, line.sku FROM o LATERAL VIEW posexplode(o.lines) t AS pos, line",
        "SELECT id, pos, t.Line.SKU FROM STREAM s LATERAL VIEW posexplode(lines) t AS pos, line",
        "SELECT id, pos, line.sku FROM o CROSS JOIN LATERAL posexplode(lines) AS t (pos, line)",
        "SELECT id, pos, line.sku FROM o, LATERAL posexplode(o.lines) AS t (pos, line)",
        "SELECT id, pos, col.sku FROM o LATERAL VIEW posexplode(lines)",
        "SELECT id, pos, Line.sku FROM o LATERAL VIEW posexplode(lines) line AS pos, line",
        "SELECT id, pos, line.sku FROM (SELECT id, posexplode(lines) AS (pos, line) FROM o) q",
        "WITH q AS (SELECT id AS x, lines AS y FROM o) SELECT x AS id, pos, z.sku FROM q "
        "LATERAL VIEW posexplode(q.y) AS pos, z",
    ],
)
def test_forms_give_each_element_with_its_place(query: str) -> None:
    assert rows(query) == EACH


@pytest.mark.parametrize(
    "columns", ["WITH ORDINALITY AS t (line, pos)", "WITH ORDINALITY AS t (sku, n, part, pos)"]
)
def test_unnest_counts_from_one(columns: str) -> None:
    item = "t.line.sku" if "line" in columns else "t.sku"
    assert rows(f"SELECT id, pos, {item} FROM o CROSS JOIN UNNEST(o.lines) {columns}") == NUMBERED


OUTER = [(1, 0, "x"), (1, 1, None), (2, -1, None), (3, -1, None)]


@pytest.mark.parametrize(
    "view",
    [
        "LATERAL VIEW OUTER posexplode(tags) t AS p, tag",
        "LATERAL VIEW posexplode_outer(tags) t AS p, tag",
        "LEFT JOIN LATERAL posexplode(tags) AS t (p, tag) ON TRUE",
        "LEFT JOIN UNNEST(tags) WITH ORDINALITY AS t (tag, n) ON TRUE",
    ],
)
def test_outer_gives_a_row_where_there_is_no_element(view: str) -> None:
    place = "CAST(n - 1 AS INT)" if "UNNEST" in view else "p"
    assert rows(f"SELECT id, coalesce({place}, -1) AS pos, tag FROM o {view}") == OUTER


def test_entries_fields_and_elements_of_elements() -> None:
    assert rows("SELECT id, k, v + 1 AS v FROM o LATERAL VIEW explode(owned) AS k, v", "id, k") == [
        (1, "k", 8)
    ]
    assert rows("SELECT id, t.k, t.v FROM o, UNNEST(owned) AS t (k, v)", "id, k") == [(1, "k", 7)]
    assert rows("SELECT id, explode(tags) AS tag FROM STREAM s WHERE id = 1", "id, tag") == [
        (1, "x")
    ]
    query = "SELECT id, pos, n, part.at FROM o LATERAL VIEW inline(lines) t LATERAL VIEW "
    assert rows(f"{query} posexplode(tags) AS pos, tag WHERE tag = 'x' AND n = 1") == [
        (1, 0, 1, AT)
    ]


def test_two_equal_elements_of_one_array_are_two_rows() -> None:
    assert rows(
        "SELECT line.sku AS sku, COUNT(*) AS c, SUM(line.n) AS n FROM STREAM s "
        "LATERAL VIEW explode(lines) t AS line WHERE line.n > 0 GROUP BY line.sku",
        "sku",
    ) == [("a", 2, 2)]


@pytest.mark.parametrize(
    "joined",
    [
        "STREAM s LATERAL VIEW posexplode(lines) t AS pos, line JOIN i ON i.sku = line.sku",
        "STREAM s CROSS JOIN UNNEST(s.lines) WITH ORDINALITY AS t (line, pos), i "
        "WHERE i.sku = t.line.sku",
        "i JOIN o ON upper(i.sku) = o.name LATERAL VIEW posexplode(o.lines) t AS pos, line "
        "WHERE line.n = 1",
        "i RIGHT JOIN o ON upper(i.sku) = o.name LATERAL VIEW posexplode(o.lines) t AS pos, line "
        "WHERE line.n = 1",
    ],
)
def test_elements_are_joined_and_arrays_go_through_no_join(joined: str) -> None:
    given = rows(f"SELECT id, pos, title FROM {joined}")
    first = 1 if "ORDINALITY" in joined else 0
    assert given == [(1, first, "T"), (1, first + 2, "T")]


def test_elements_of_a_table_need_no_state_and_explain_names_them() -> None:
    found = made("SELECT id, pos, tag FROM o LATERAL VIEW posexplode(tags) t AS pos, tag")
    assert document(found)["operators"] == [
        "one row of each id, pos, by itself",
        "  elements of o.tags: each row once for each element",
        "    latest o (id, tags)",
    ]
    assert not found.stateful
    outer = made("SELECT id, k FROM o LATERAL VIEW OUTER explode(owned) AS k, v", "id, k")
    assert "o.owned: each row once for each entry, or once without any" in str(document(outer))


@pytest.mark.parametrize(
    ("query", "key", "strategy"),
    [
        ("SELECT id, pos, x FROM STREAM s", "id, pos", Strategy.NEWEST),
        ("SELECT id, x FROM STREAM s", "id, x", Strategy.REGIONS),
        ("SELECT x, COUNT(*) AS n FROM STREAM s GROUP BY x", "x", Strategy.KEYS),
        ("SELECT x, COUNT(DISTINCT id) AS n FROM STREAM s GROUP BY x", "x", Strategy.REGIONS),
        ("SELECT id, pos, x FROM o", "id, pos", Strategy.REGIONS),
    ],
)
def test_elements_of_facts_are_kept_by_what_is_new(
    query: str, key: str, strategy: Strategy
) -> None:
    view = "LATERAL VIEW posexplode(tags) t AS pos, x"
    text, group, by = query.partition(" GROUP BY")
    found = made(f"{text} {view}{group}{by}", key)
    assert found.strategy is strategy
    assert found.tree.unique is (strategy is Strategy.KEYS or "FROM o" in query or "DIST" in query)


def test_a_key_tells_elements_apart_by_their_place_or_says_so() -> None:
    view = "FROM o LATERAL VIEW posexplode(lines) t AS pos, line"
    with pytest.raises(InvalidRequest, match="'id' names nothing of the elements"):
        made(f"SELECT id, pos, line.sku {view}", "id")
    assert rows(f"SELECT id, pos, line.n {view} WHERE pos = 2", "id") == [(1, 2, 1)]
    told = "elements of o.lines in one array that have the same key are one row"
    assert told in str(made(f"SELECT id, pos, line.sku {view}", "id, sku").notes)
    assert told not in str(made(f"SELECT id, pos, line.sku {view}", "id, pos").notes)
    joined = made(f"SELECT id, title {view} JOIN i ON i.sku = line.sku", "id, title")
    assert told in str(joined.notes)
    over = "ROW_NUMBER() OVER (PARTITION BY id ORDER BY line.sku) AS pos"
    assert told not in str(made(f"SELECT id, {over} {view}", "id, pos").notes)


@pytest.mark.parametrize(
    ("query", "said", "form"),
    [
        ("SELECT id, x FROM o LATERAL VIEW explode(name) t AS x", "neither an array", "explode"),
        ("SELECT id, explode(tags) FROM o", "without a name", "AS line"),
        ("SELECT id, explode(tags) AS x, explode(tags) AS y FROM o", "two generators", "LATERAL"),
        ("SELECT id, explode(tags) AS x, COUNT(*) AS n FROM o GROUP BY id", "beside", "LATERAL"),
        ("SELECT id, upper(explode(tags)) AS x FROM o", "not read here", "LATERAL VIEW"),
        ("SELECT id, x FROM o, explode(o.tags) AS t (x)", "not read here", "LATERAL VIEW"),
        ("SELECT x FROM UNNEST(array(1)) AS t (x)", "UNNEST belongs to rows", "LATERAL VIEW"),
        ("SELECT id FROM o WHERE name IN UNNEST(o.tags)", "IN UNNEST", "array_contains"),
        ("SELECT id, x FROM o JOIN UNNEST(tags) AS t (x) ON t.x = name", "no condition", "CROSS"),
        ("SELECT id, x FROM o RIGHT JOIN UNNEST(tags) AS t (x) ON TRUE", "RIGHT JOIN", "query"),
        ("SELECT id, x FROM o CROSS JOIN UNNEST(tags, lines) AS t (x, y)", "side by side", "VIEW"),
        ("SELECT id, x FROM o CROSS JOIN UNNEST(tags) AS t (x, y)", "1 columns", "Name each"),
        ("SELECT id, x FROM o CROSS JOIN UNNEST(tags)", "without an alias", "AS t(line)"),
        ("SELECT id, x FROM o CROSS JOIN UNNEST(alone) AS t (x)", "of either", "inline"),
        ("SELECT id, x FROM o LATERAL VIEW json_tuple(name) t AS x", "no values written", "json_t"),
        ("SELECT id, x FROM o LATERAL VIEW stack(id, name) t AS x", "no values written", "stack("),
        ("SELECT id, x FROM o LATERAL VIEW inline(lines) AS x, X, y", "of one name", "its own"),
        ("SELECT id, x FROM o LATERAL VIEW inline(tags) AS x", "arrays of structs", "explode"),
        ("SELECT id, x FROM o LATERAL VIEW explode(tags) o AS x", "named o", "another alias"),
        ("SELECT id, x.y FROM o LATERAL VIEW explode(lines) t AS x", "no field y", "sku, n"),
        ("SELECT owned AS id, name FROM STREAM s", "maps are not compared", "explode"),
        ("SELECT owned AS id, COUNT(*) AS n FROM o GROUP BY owned", "not compared", "['name']"),
        ("SELECT id, SUM(id) OVER (PARTITION BY owned) AS n FROM o", "not compared", "explode"),
        ("SELECT id, MAX(owned) AS n FROM STREAM s GROUP BY id", ":57: the argument of", "explode"),
        ("SELECT id, MIN(held) AS n FROM STREAM s GROUP BY id", "of MIN is STRUCT", "explode"),
        ("SELECT id, RANK() OVER (PARTITION BY id ORDER BY owned) AS n FROM o", "ordered", "['n"),
        ("SELECT id, owned FROM o EXCEPT ALL SELECT id, owned FROM o", ":88: what", "explode"),
        ("SELECT o.id, p.name FROM o JOIN o p ON o.owned = p.owned", "joined by", "explode"),
        ("SELECT id FROM o WHERE name = 'x' OR owned <> owned", "what is compared", "explode"),
        (
            "SELECT id, a FROM o CROSS JOIN UNNEST(tags) AS t (x) PIVOT (SUM(id) FOR x IN ('a'))",
            "behind a query in brackets",
            "FROM (SELECT",
        ),
        (
            "SELECT id, a FROM o LATERAL VIEW explode(tags) t AS x PIVOT (SUM(id) FOR x IN ('a'))",
            "cannot be read",
            "in brackets: FROM (SELECT",
        ),
        (
            "SELECT id, x FROM o LATERAL VIEW explode(tags) t AS x RIGHT JOIN i ON i.sku = name",
            "RIGHT JOIN of or behind elements",
            "a query of their own",
        ),
    ],
)
def test_what_elements_are_not_is_refused_with_a_form(query: str, said: str, form: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        made(query, "id")
    assert said in caught.value.message
    assert form in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("query", "place"),
    [
        ("SELECT id, NULL AS n FROM o", 61),
        ("SELECT id, n FROM (SELECT id, COALESCE(NULL, NULL) AS n FROM o) q", 72),
        ("SELECT id, CASE WHEN id > 1 THEN NULL END AS n FROM STREAM s", 63),
        ("SELECT id, MAX(NULL) AS n FROM o GROUP BY id", 53),
        ("SELECT id, NULL AS n FROM STREAM s GROUP BY id", 61),
        ("SELECT id, NULL AS n FROM o UNION ALL SELECT id, NULL AS n FROM o", 61),
        ("SELECT id, array() AS n FROM o", 53),
    ],
)
def test_a_column_of_null_alone_has_no_type_and_is_refused(query: str, place: int) -> None:
    with pytest.raises(InvalidRequest, match=f":{place}: column n has no type") as caught:
        made(query, "id")
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith("Name one: CAST(")
    made("SELECT id, CAST(NULL AS STRING) AS n, COALESCE(NULL, name) AS m FROM o", "id")


def test_maps_are_grouped_by_as_spark_does() -> None:
    for query in (
        "SELECT DISTINCT id, owned FROM o",
        "SELECT id, COUNT(DISTINCT owned) AS n FROM o GROUP BY id",
        "SELECT id, owned FROM o EXCEPT SELECT id, owned FROM o",
    ):
        assert made(query, "id").strategy is Strategy.WHOLE


def test_what_is_not_known_of_an_array_is_left_to_spark() -> None:
    found = made("SELECT id, pos, x FROM o LATERAL VIEW posexplode(split(name, ',')) AS pos, x")
    assert found.strategy is Strategy.WHOLE
    assert "LATERAL VIEW posexplode(`__x0`) v AS __i, __e" in found.rows_sql


def test_types_are_taken_apart() -> None:
    assert leaves("struct<a:array<decimal(10,2)>,b:map<string,struct<c:int>>>") == (
        *("DECIMAL(10,2)", "STRING", "INT"),
    )
    assert leaves("struct<a:int,A:int>") is None
    assert leaves("ARRAY<STRUCT<`a b`: INT>>") is None
