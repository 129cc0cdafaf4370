"""Queries of several steps on Spark: the rows of the oracles, the bits of the small executor."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from projections.run.database import arrow_type
from projections.run.dataflow import Dataflow
from projections.run.matchers import register_functions
from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import scans
from projections.sql.plans.plan import Plan, Strategy, plan
from projections.sql.rendering.batch import whole
from projections.sql.rendering.spark_text import SparkText
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from tests.integration.test_sql_spark import SparkEngine
from tests.property.test_sql_table_faults import crowd
from tests.support.oracles.changing_projections import CHANGING, PLACED
from tests.support.oracles.element_projections import ELEMENTS, OF_TABLES
from tests.support.oracles.flow_projections import FLOWS
from tests.support.oracles.further_projections import FURTHER as MORE
from tests.support.oracles.further_projections import STREAM as DEPARTED
from tests.support.oracles.pattern_projections import PATTERNS
from tests.support.oracles.region_projections import CASES as REGIONS
from tests.support.oracles.shop_projections import CASES as SHOP_CASES
from tests.support.oracles.shop_world import rows_now, trees_of, version_rows
from tests.support.oracles.sql_world import (
    FACT_COLUMNS,
    ORDER_COLUMNS,
    VERSION_COLUMNS,
    Fact,
    Reading,
    Row,
    World,
    canonical,
    fact_rows,
    planned,
    rebuilt,
)


@pytest.fixture(scope="module")
def sql_spark(spark: SparkSession) -> SparkSession:
    """Return a session of this module's own in the run's one Spark."""
    session: SparkSession = spark.newSession()
    return session


def world() -> World:
    draw = random.Random(20130101)
    facts = tuple(
        Fact(
            position,
            1,
            draw.choice(["f1", "f2", "f3"]),
            draw.choice(["AA", "UA", None]),
            draw.choice(["JFK", "LGA"]),
            draw.randint(-30, 60),
            draw.choice([None, 0, 1, 3]),
            draw.choice([0.1, 0.2, 1.0, 1e16, 0.0]),
        )
        for position in draw.sample(range(100), 24)
    )
    readings = tuple(
        Reading(n, 1, draw.choice(["JFK", "LGA"]), draw.randint(-40, 40), draw.choice([None, 1, 2]))
        for n in range(10)
    )
    return World(facts=facts, readings=readings)


CASES = {**REGIONS, **CHANGING, **PLACED, **MORE, **PATTERNS, **ELEMENTS, **FLOWS}
SHOPS = {**SHOP_CASES, **OF_TABLES}
TABLES = (
    "elements of a table",
    "foreign key, grouped by the other",
    "three on each other",
    "tables, anti",
)
"""Of tables and projections the cases that have what others have too."""
FURTHER = ("cumulating", "ranks", "count windows", "two streams", "semi", "in", "union")
FURTHER += ("except", "right", "cube", "rollup", "as of, semi", "as of, anti", "as of, right")
FURTHER += ("intersect all", "not in, without NULL", "pivot, beside a text")
FURTHER += ("pattern, overlapping", "pattern, reluctant", "pattern, all rows together")
FURTHER += ("elements, numbered", "elements, added", "elements, grouped", "elements, as of")
FURTHER += ("elements in windows", "flow", "flow, of some", "flow, versions")
FURTHER += ("flow, of a view", "flow, partial versions of one", "flow, versions of lives")
FURTHER += ("as of, then grouped", "hopping, then by window", "full behind another join")
FURTHER += ("over rows before", "over groups", "rollup of counts", "qualify of a rollup")
FURTHER += ("counts of several", "elements, joined")
"""What other cases have too, in another combination."""
assert CASES.keys() >= {*FURTHER}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.matrix] * (name in FURTHER)) for name in CASES],
)
def test_every_case_of_several_steps_gives_its_rows_on_spark(
    sql_spark: SparkSession, name: str
) -> None:
    made = planned(CASES[name].statement)
    # Some are kept by their keys: their rows on Spark are told here all the same.
    assert made.small
    assert made.strategy is not Strategy.WHOLE
    expected = canonical(CASES[name].oracle(world()))
    assert expected
    register_functions(sql_spark, made.tree)
    assert canonical(rebuilt(SparkEngine(sql_spark), made, world())) == expected


@pytest.mark.matrix
@pytest.mark.parametrize(
    "name",
    [
        *("except all", "intersect all", "not in", "not in, without NULL", "values"),
        *("pivot", "pivot, beside a text"),
    ],
)
def test_spark_means_the_same_by_the_text_as_it_is_written(
    sql_spark: SparkSession, name: str
) -> None:
    """NULL among values, rows as often as they are there, and names of columns are Spark's."""
    text = CASES[name].statement.partition(" AS ")[2].replace(DEPARTED, "departed")
    engine, facts = SparkEngine(sql_spark), world().facts
    for some in (facts, facts[:0], facts[4:12], facts[12:], [f for f in facts if not f.carrier]):
        one = World(facts=tuple(some), readings=())
        engine.view("departed", FACT_COLUMNS, fact_rows(one))
        assert canonical(engine.query(text)) == canonical(CASES[name].oracle(one))


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.matrix] * (n not in TABLES)) for n in SHOPS]
)
def test_every_case_of_tables_gives_its_rows_on_spark(sql_spark: SparkSession, name: str) -> None:
    engine, case = SparkEngine(sql_spark), SHOPS[name]
    # Of some cases few crowds leave a row, such as an order that nobody paid.
    shop = next(found for found in map(crowd, range(2, 100)) if case.oracle(found))
    rows: list[Row] = []
    others: dict[str, list[Row]] = {}
    for decl, tree in zip(
        parse_script(case.statements).projections, trees_of(case.statements), strict=True
    ):
        for scan in scans(tree):
            columns = {c.name: c.type for c in scan.relation.columns}
            if scan.kind is InputKind.LATEST:
                found = version_rows(shop, scan.name.rpartition(".")[2])
                columns |= VERSION_COLUMNS
            else:
                found = rows_now(scan, shop, others)
            if scan.kind is InputKind.STREAM:
                columns |= {name: kind for name, kind in ORDER_COLUMNS.items() if name != "_epoch"}
            engine.view(scan.view, columns, found)
        rows = others[decl.name] = engine.query(
            f"SELECT {', '.join(c.name for c in tree.columns)} FROM ({whole(tree, SparkText())})"
        )
    expected = canonical(case.oracle(shop))
    assert expected
    assert canonical(rows) == expected


TYPES = {
    "k": "BIGINT",
    "g": "STRING",
    "i": "INT",
    "j": "INT",
    "n": "BIGINT",
    "m": "BIGINT",
    "x": "DOUBLE",
    "y": "DOUBLE",
    "s": "STRING",
    "u": "STRING",
    "b": "BOOLEAN",
    "c": "BOOLEAN",
    "t": "TIMESTAMP",
    "v": "TIMESTAMP",
    "d": "DATE",
    "p": "DECIMAL(10,2)",
    "r": "STRING",
    "w": "TIMESTAMP",
}
EXPRESSIONS = """
i + j; i - j; i * j; i + n; x + y; x * y; x - i; -x; -i; abs(x); abs(i); x / 3D; i / 4; n / 4
i % 3; n % 7; n DIV 7; i DIV 2; i = j; i <> j; x = y; x < y; x >= y; x <=> y; s = u; s < u
s <=> u; b AND c; b OR c; NOT b; b = c; t < v; t = v; d IS NULL; s IS NOT NULL; b IS TRUE
i BETWEEN -3 AND 3; s IN ('', 'ß', 'A'); i IN (1, 2); n = i; p > p; p; coalesce(i, j, 0)
coalesce(s, u); greatest(x, y); least(x, y); greatest(i, j); least(s, u); nullif(i, j)
nullif(s, u); CASE WHEN i > 0 THEN 'up' WHEN i < 0 THEN 'down' END
CASE WHEN b THEN i ELSE j END; CASE s WHEN 'A' THEN 1 ELSE 0 END; if(x > 0D, x, y)
CAST(i AS BIGINT); CAST(i AS DOUBLE); CAST(n AS DOUBLE); CAST(n AS STRING); CAST(b AS STRING)
concat(s, '-', u); s || u; length(s); t + INTERVAL 90 MINUTES; t - INTERVAL '1' DAY
date_trunc('HOUR', t); date_trunc('DAY', t); date_trunc('MINUTE', t); year(t); month(t); day(t)
hour(t); minute(t); second(t); unix_micros(t); t > TIMESTAMP '1969-12-31 23:59:59'; 'it''s'
true; 5; 12345678901; 1e3
0.908; 1.50; 0.0; 0.908 * n; p * p; p * 0.05; p + 1.005; p - n; 0.5 * p > 3; n < 0.908 * n; p >= i
x < 0.1; x = 0.1; p < x
date_format(t, 'yyyy-MM-dd'); date_format(t, 'HH:mm:ss'); date_format(w, 'yyyy/MM'); year(w)
date_format(w - INTERVAL 100 DAYS, 'yyyyMM'); date_format(w - INTERVAL 9999 DAYS, 'yyyy-MM')
date_format(w + INTERVAL 400 DAYS, 'yyyyMMdd'); p * 2000.500000000000
(i * 0 - 2147483647 - 1) % -1; (n * 0 - 9223372036854775807 - 1) % -1
split_part(s, '-', 1); split_part(r, '/', 4); split_part(r, '//', 2)
replace(r, 'a', ''); replace(r, '/', s); replace(r, '//'); startswith(s, 'a'); endswith(r, s)
contains(r, u); length(r) - length(replace(r, 'a', ''))
"""
AGGREGATES = """
count(*); count(x); count(DISTINCT s); sum(i); sum(n); sum(x); sum(p); sum(DISTINCT i); avg(i)
avg(n); avg(x); avg(DISTINCT i); min(x); max(x); min(s); max(s); min(t); max(d); min(b); max(p)
bool_and(b); bool_or(b); count_if(b); count(*) FILTER (WHERE i > 0); sum(x) FILTER (WHERE b); u
"""


def values() -> list[dict[str, object]]:
    """Rows of values at which engines are known to differ."""
    start = datetime(1969, 12, 31, 22, 59, 59, 999_999, tzinfo=UTC)
    draw = random.Random(7)
    nan, inf = float("nan"), float("inf")
    choices: dict[str, list[object]] = {
        "i": [None, 0, 1, 2, -3, 7, 30_000, -30_000],
        "n": [None, 0, -1, 2**53 + 1, -(2**53) - 3, 2**60 + 7, 10**17],
        "x": [None, 0.0, -0.0, 0.1, 1e16, -1e300, nan, inf, -inf, 5e-324],
        "s": [None, "", "A", "a", "ß", "é", "e\u0301", "z\U0001f6eb", " a", "Z"],
        "b": [None, True, False],
        "t": [None, *(start + timedelta(seconds=n * 1801, microseconds=n) for n in range(9))],
        "r": [None, "", "a//b", "///", "https://a.com/aa/ß/cd", "/", "aaa", "z\U0001f6eb/a", "a"],
        "w": [None, *(datetime(y, 3, 1, 4, 5, 6, tzinfo=UTC) for y in (1, 987, 1969, 9999))],
        "d": [None, start.date(), datetime(2024, 2, 29, tzinfo=UTC).date()],
    }
    of = {"j": "i", "m": "n", "y": "x", "u": "s", "c": "b", "v": "t"}
    rows: list[dict[str, object]] = []
    for k in range(80):
        row = {
            name: draw.choice(choices[of.get(name, name)]) for name in TYPES if name not in "kgp"
        }
        row |= {
            "k": k,
            "g": f"g{k % 5}",
            "p": None if k % 4 == 0 else f"{k * 37 % 101}.{k % 90:02}",
        }
        rows.append(row)
    return rows


def table() -> pa.Table:
    kinds = {name: arrow_type(Column(name=name, type=kind)) for name, kind in TYPES.items()}
    rows = values()
    columns = {
        name: pa.array([row[name] for row in rows], pa.string()).cast(kind)
        if name == "p"
        else pa.array([row[name] for row in rows], kind)
        for name, kind in kinds.items()
    }
    moments = [datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(len(rows))]
    order = {
        "_time": pa.array(moments, pa.timestamp("us", "UTC")),
        "_seq_hi": pa.array(range(len(rows)), pa.int64()),
        "_seq_lo": pa.array([0] * len(rows), pa.int64()),
    }
    return pa.table(columns | order)


def planned_over(query: str, key: str) -> Plan:
    columns = tuple(Column(name=name, type=kind) for name, kind in TYPES.items())
    relation = Relation(name="r", columns=columns, key=("k",), event_time="t")
    script = parse_script(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}")
    return plan(script.projections[0], MemoryCatalog(streams={"r": relation}))


def written(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield from (part.strip() for part in line.split(";") if part.strip())


@pytest.mark.parametrize(
    ("key", "expressions", "rest"),
    [("k", EXPRESSIONS, ""), ("g", AGGREGATES, "GROUP BY g")],
    ids=["expressions", "aggregates"],
)
def test_the_small_executor_computes_the_bits_of_spark(
    sql_spark: SparkSession, key: str, expressions: str, rest: str
) -> None:
    texts = list(written(expressions))
    items = ", ".join(f"{text} AS v{i}" for i, text in enumerate(texts))
    inner = f"SELECT {', '.join(TYPES)} FROM STREAM r"
    made = planned_over(f"SELECT {key}, {items} FROM ({inner}) q {rest}", key)
    assert made.strategy is Strategy.REGIONS, made.notes[0]
    assert made.tree is not None
    sql_spark.createDataFrame(table()).createOrReplaceTempView("in_0")
    theirs = sql_spark.sql(f"SELECT * FROM ({made.rows_sql}) ORDER BY {key}").toArrow()
    small = Dataflow(made.tree)
    (scan,) = scans(made.tree)
    small.add(scan, [table()])
    ours = small.round().sort_by(key)
    small.close()
    for i, text in enumerate(texts):
        assert ours.schema.field(f"v{i}").type == theirs.schema.field(f"v{i}").type, text
        mine, spark = ([_bits(one) for one in rows[f"v{i}"].to_pylist()] for rows in (ours, theirs))
        assert mine == spark, text


SELF = "SELECT a.k, b.k AS o, a.i FROM STREAM r a {kind} JOIN STREAM r b ON b.g = a.g AND {further}"
GUARDED = {
    "a side": (
        SELF.format(kind="LEFT", further="a.i <> 0 AND b.i = a.i AND 6 / b.i > 1"),
        "k, o",
    ),
    "the other side": (
        SELF.format(kind="INNER", further="b.i <> 0 AND b.i = a.i AND 6 / a.i > 1"),
        "k, o",
    ),
    "a pair": (SELF.format(kind="INNER", further="a.i <> 0 AND b.j = 6 DIV a.i"), "k, o"),
    "a pattern": (
        "SELECT k, part, rest FROM STREAM r MATCH_RECOGNIZE (PARTITION BY g ORDER BY t MEASURES "
        "LAST(A.k) AS k, SUM(6 / A.i) AS part, MAX(6 % A.i) AS rest "
        "PATTERN (X B* A) DEFINE X AS X.i = 0, A AS A.i > X.i) m",
        "k",
    ),
}


@pytest.mark.parametrize("name", GUARDED)
def test_what_is_guarded_against_an_error_is_none_to_either_engine(
    sql_spark: SparkSession, name: str
) -> None:
    query, key = GUARDED[name]
    made = planned_over(query, key)
    assert made.strategy is Strategy.REGIONS, made.notes[0]
    small = Dataflow(made.tree)
    for scan in scans(made.tree):
        sql_spark.createDataFrame(table()).createOrReplaceTempView(scan.view)
        small.add(scan, [table()])
    register_functions(sql_spark, made.tree)
    theirs = sql_spark.sql(f"SELECT * FROM ({made.rows_sql}) ORDER BY {key}").toArrow()
    ours = small.round().select(theirs.schema.names)
    small.close()
    assert ours.num_rows
    assert canonical(ours.to_pylist()) == canonical(theirs.to_pylist())


def _bits(value: object) -> object:
    return value.hex() if isinstance(value, float) else value
