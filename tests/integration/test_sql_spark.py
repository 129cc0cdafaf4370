"""The compiled SQL on Spark itself: the same functions, the same rows, P6 on random arrivals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import duckdb
import pyarrow as pa
import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import SparkSession

from projections.run.database import TEXT, arrow_type
from projections.run.matchers import register_totals
from projections.sql.plans.key_steps import rows_sql
from projections.sql.plans.plan import Plan, plan
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from tests.property.test_sql_incremental import DuckEngine
from tests.support.oracles.element_projections import ELEMENTS, KEPT_BY_KEYS
from tests.support.oracles.sql_projections import CASES
from tests.support.oracles.sql_world import (
    START,
    Fact,
    Reading,
    Row,
    World,
    canonical,
    kept,
    planned,
    rebuilt,
)

SEED = 20130101


class SparkEngine:
    """Spark SQL over temporary views of small rows."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        register_totals(spark)

    def view(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
        values = {n: [_zoned(row[n]) for row in rows] for n in columns}
        kinds = {n: arrow_type(Column(name=n, type=kind)) for n, kind in columns.items()}
        table = pa.table({n: pa.array(values[n], kinds[n]) for n in columns})
        self._spark.createDataFrame(table).createOrReplaceTempView(name)

    def query(self, sql: str) -> list[Row]:
        rows: list[Row] = self._spark.sql(sql).toArrow().to_pylist()
        return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _zoned(value: object) -> object:
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def _plain(value: object) -> object:
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


@pytest.fixture(scope="module")
def sql_spark(spark: SparkSession) -> SparkSession:
    """Return a session of this module's own in the run's one Spark."""
    session: SparkSession = spark.newSession()
    register_totals(session)
    return session


def _world(seed: int) -> World:
    draw = random.Random(seed)
    positions = draw.sample(range(100), 24)
    facts = tuple(
        Fact(
            position,
            draw.randint(1, 3),
            draw.choice(["f1", "f2", "f3", "f4", "f5"]),
            draw.choice(["AA", "UA", None]),
            draw.choice(["JFK", "LGA"]),
            draw.randint(-30, 60),
            draw.choice([None, 0, 1, 3]),
            draw.choice([0.1, 0.2, 1.0, 1e16, 0.0]),
        )
        for position in positions
    )
    epochs = sorted(draw.randint(1, 3) for _ in range(10))
    readings = tuple(
        Reading(
            number,
            epoch,
            draw.choice(["JFK", "LGA"]),
            draw.choice([-40, -10, 0, 10, 20, 40]),
            draw.choice([None, 1, 2, 3]),
        )
        for number, epoch in enumerate(epochs)
    )
    return World(facts=facts, readings=readings)


@pytest.mark.parametrize("name", CASES)
def test_every_case_gives_its_rows_on_spark(sql_spark: SparkSession, name: str) -> None:
    case, world = CASES[name], _world(SEED)
    expected = canonical(case.oracle(world))
    assert len(expected) > 1 or "GROUP BY 'all'" in case.statement
    assert canonical(rebuilt(SparkEngine(sql_spark), planned(case.statement), world)) == expected


@pytest.mark.parametrize(
    "name",
    [
        "newest",
        "as of, inner",
        *(pytest.param(name, marks=pytest.mark.matrix) for name in ("hop", *KEPT_BY_KEYS)),
    ],
)
def test_p6_on_spark_any_order_of_arrival_gives_the_rebuild(
    sql_spark: SparkSession, name: str
) -> None:
    case, world = {**CASES, **ELEMENTS}[name], _world(SEED + 1)
    kept_rows = kept(SparkEngine(sql_spark), planned(case.statement), world)
    assert canonical(kept_rows) == canonical(case.oracle(world))


TYPES = {
    "k": "BIGINT",
    "x": "DOUBLE",
    "i": "INT",
    "s": "STRING",
    "iso": "STRING",
    "t": "TIMESTAMP",
    "d": "DATE",
    "b": "BOOLEAN",
    "a": "ARRAY<INT>",
    "m": "MAP<STRING, INT>",
    "st": "STRUCT<f: INT>",
}
ROWS = """
SELECT 1L k, 1.75D x, 7 i, 'a-b' s, '2020-01-02 03:04:05' iso,
  TIMESTAMP'2021-05-06 07:08:09.123456' t, DATE'2021-05-06' d, true b,
  array(1, 2) a, map('k', 1) m, named_struct('f', 3) st
UNION ALL SELECT 2L, -2.5D, -7, 'A''', '2019-12-31 23:59:59',
  TIMESTAMP'1960-05-06 07:08:09.123456', DATE'1960-05-06', false,
  array(2, 1), map('k', 2), named_struct('f', 4)
UNION ALL SELECT 3L, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
"""
EXPRESSIONS = """
abs(x); ceil(x); ceiling(x); floor(x); round(x, 1); bround(x, 1); sqrt(abs(x)); cbrt(x); pow(x, 2)
power(x, 2); ln(abs(x)); exp(x); mod(i, 3); pmod(i, 3); sign(x); signum(x); greatest(x, i)
least(x, i); radians(x); degrees(x); sin(x); cos(x); tan(x); asin(x / 10); acos(x / 10); atan(x)
atan2(x, i); coalesce(s, 'z'); ifnull(s, 'z'); nvl(s, 'z'); nvl2(s, 1, 2); nullif(s, 'A')
if(i > 1, 'a', 'b'); nanvl(x, 1); isnull(s); isnotnull(s); isnan(x); concat(s, 'b'); s || 'b'
concat_ws('-', s, 'b'); upper(s); ucase(s); lower(s); lcase(s); trim(s); ltrim(s); rtrim(s)
btrim(s); trim(BOTH 'a' FROM s); length(s); char_length(s); octet_length(s)
substring(s, 1, 2); substr(s, 2)
left(s, 2); right(s, 2); replace(s, 'a', 'b'); translate(s, 'a', 'b'); regexp_replace(s, 'a', 'b')
regexp_extract(s, '(a)', 1); regexp_like(s, 'a'); s RLIKE 'a'; s LIKE 'a%'; s ILIKE 'A%'
startswith(s, 'a'); endswith(s, 'b'); contains(s, '-'); instr(s, '-'); locate('-', s)
position('-', s); lpad(s, 5, '0'); rpad(s, 5, '0'); reverse(s); initcap(s); repeat(s, 2)
split(s, '-'); split_part(s, '-', 1); substring_index(s, '-', 1); md5(s); sha1(s); sha2(s, 256)
get_json_object(concat('{"a": "', s, '"}'), '$.a'); get_json_object('[{"a": 1}]', '$[*].a')
crc32(s); hex(s); ascii(s); levenshtein(s, 'b'); soundex(s); xxhash64(s); year(t); quarter(t)
month(t); day(t); dayofmonth(t); dayofweek(t); weekday(t); dayofyear(t); weekofyear(t); hour(t)
minute(t); second(t); extract(HOUR FROM t); date_part('HOUR', t); date_trunc('HOUR', t)
trunc(t, 'MM'); to_date(t); date(t); date_add(d, 1); date_sub(d, 1); datediff(d, d)
date_diff(d, d); add_months(d, 1); months_between(t, t); last_day(d); date_format(t, 'yyyy-MM')
date_format(t, 'y'); date_format(t, 'yyyyy'); to_date(substr(iso, 1, 4), 'y')
to_timestamp(iso); unix_micros(t); unix_millis(t); unix_seconds(t); timestamp_micros(i)
timestamp_millis(i); timestamp_seconds(i); make_date(2020, 1, 2); timestampdiff(HOUR, t, t)
from_utc_timestamp(t, 'Europe/Berlin'); to_utc_timestamp(t, '+02:00')
try_to_timestamp(iso); cast(x AS INT); cast(x AS DECIMAL(10, 2)); try_cast(s AS INT); x::STRING
bigint(x); double(i); string(i); i / 3; i DIV 3; i % 3; x + 1; -x; i & 1; i | 1; i ^ 1; ~i
s = 'A'; s <=> 'A'; s <> 'A'; s != 'A'; i BETWEEN 1 AND 9; i IN (1, 7); i IS NULL; i IS NOT NULL
NOT (i > 1); i IS DISTINCT FROM 7; b IS TRUE; CASE WHEN i > 1 THEN 'a' ELSE 'b' END
CASE i WHEN 7 THEN 'a' END; t + INTERVAL 1 HOUR; t - INTERVAL '30 minutes'; t + INTERVAL '1' DAY
TIMESTAMP '2020-01-01 00:00:00'; DATE '2020-01-01'; true; 1.5; 1e3; 1.5D; 10L; 'it''s'
'a\\nb'; "dq"; r'a\\d'; a[0]; element_at(a, 1); size(a); cardinality(a); array_contains(a, 1)
array_max(a); m['k']; st.f; try_divide(i, 0); try_add(i, 1); zeroifnull(i); array(1, i)
get(a, 0); array_min(a); try_element_at(m, 'k'); negative(i); positive(x); nullifzero(i)
try_mod(i, 2); try_subtract(i, 1); try_multiply(x, i); try_multiply(i, i); i & 1L
aggregate(a, 0, (u, v) -> u + v); aggregate(a, 0L, (u, v) -> u + v); concat(a, a); a || a
substring(unhex('6162'), 1, 1); reverse(a); reverse(s); concat(unhex('61'), unhex('62'))
log10(abs(x)); hypot(x, i); conv(s, 36, 10); next_day(d, 'MO'); unix_timestamp(t)
nanvl(x, i); try_divide(x, 2); try_add(x, i); dateadd(HOUR, 2, t); timestampadd(MINUTE, i, t)
transform(a, e -> e + i); filter(a, e -> e > 1); exists(a, e -> e > 1); to_json(struct(i, s))
struct(i, s AS u, i + 1); from_json('{"a": 1}', 'a INT'); map('u', i); decode(unhex('61'), 'utf-8')
"""


@pytest.mark.matrix
def test_every_function_means_what_the_author_wrote(sql_spark: SparkSession) -> None:
    """Each expression of the dialect, compiled and as written: the same type and values."""
    sql_spark.sql(
        f"SELECT *, k AS _seq_hi, 0L AS _seq_lo, TIMESTAMP'2020-01-01' AS _time FROM ({ROWS})"
    ).createOrReplaceTempView("in_0")
    relation = Relation(
        name="r",
        columns=tuple(Column(name=n, type=t) for n, t in TYPES.items()),
        key=("k",),
        event_time="t",
    )
    written = [part.strip() for line in EXPRESSIONS.splitlines() for part in line.split(";")]
    written = [part for part in written if part]
    items = ", ".join(f"{text} AS v{i}" for i, text in enumerate(written))
    made = plan(
        parse_script(
            f"CREATE PROJECTION p WITH (key = k) AS SELECT k, {items} FROM STREAM r"
        ).projections[0],
        MemoryCatalog(streams={"r": relation}),
    )
    compiled = sql_spark.sql(f"SELECT * FROM ({made.rows_sql}) ORDER BY k")
    direct = sql_spark.sql(f"SELECT k, {items} FROM in_0 ORDER BY k")
    types = {column.name: column.type.lower() for column in made.columns}
    ours, theirs = compiled.toArrow().to_pylist(), direct.toArrow().to_pylist()
    for index, text in enumerate(written):
        name = f"v{index}"
        assert compiled.schema[name].dataType == direct.schema[name].dataType, text
        assert [repr(row[name]) for row in ours] == [repr(row[name]) for row in theirs], text
        assert types[name] in ("", direct.schema[name].dataType.simpleString()), text


def test_days_of_a_zone_have_as_many_hours_as_its_clocks(sql_spark: SparkSession) -> None:
    """A row for each hour: the days on which clocks change have 23 and 25 of them."""
    sql_spark.sql(
        "SELECT id AS k, timestamp_seconds(1711670400 + 3600 * id) AS t, id AS _seq_hi, "
        "0L AS _seq_lo, TIMESTAMP'2024-01-01' AS _time FROM range(0, 24 * 220)"
    ).createOrReplaceTempView("in_0")
    local = "from_utc_timestamp(t, 'Europe/Berlin')"
    made = _over(
        f"SELECT to_date({local}) AS k, COUNT(*) AS n, "
        f"MIN(to_utc_timestamp({local}, 'Europe/Berlin')) AS begins FROM STREAM r "
        f"GROUP BY to_date({local})",
        {"k": "BIGINT", "t": "TIMESTAMP"},
    )
    assert not made.small
    days = ", ".join(f"DATE'2024-{day}'" for day in ("03-30", "03-31", "10-26", "10-27", "10-28"))
    rows = sql_spark.sql(
        f"SELECT n, date_format(begins, 'dd HH') AS begins FROM ({made.rows_sql}) "
        f"WHERE k IN ({days}) ORDER BY k"
    ).collect()
    assert [row.n for row in rows] == [24, 23, 24, 25, 24]
    assert [row.begins for row in rows] == ["29 23", "30 23", "25 22", "26 22", "27 23"]


def test_a_column_beside_group_by_is_the_newest_even_when_it_is_null(
    sql_spark: SparkSession,
) -> None:
    world = World(
        facts=(
            Fact(1, 1, "f1", "AA", "JFK", 5, 3, 0.5),
            Fact(2, 1, "f1", "AA", "JFK", 9, None, 0.5),
        ),
        readings=(),
    )
    rows = rebuilt(SparkEngine(sql_spark), planned(CASES["plain group"].statement), world)
    assert rows == [
        {"carrier": "AA", "n": 2, "mean": 3.0, "last_delay": None, "flight": "f1"},
    ]


def _over(query: str, kinds: Mapping[str, str], key: str = "k") -> Plan:
    """Plan a query over rows `r` that share their places, as those of one copy do."""
    columns = tuple(Column(name=n, type=t) for n, t in kinds.items())
    relation = Relation(name="r", columns=columns, key=(), event_time=None, copied=())
    (decl,) = parse_script(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}").projections
    return plan(decl, MemoryCatalog(streams={"r": relation}))


Computed = Callable[[Plan, Mapping[str, str], Sequence[Row]], list[Row]]


@pytest.fixture(params=["spark", "small"])
def computed(request: pytest.FixtureRequest, sql_spark: SparkSession) -> Iterator[Computed]:
    """Compute a plan over rows in one place, on Spark and in the small executor."""
    small = DuckEngine(spark=False)

    def rows_of(made: Plan, kinds: Mapping[str, str], rows: Sequence[Row]) -> list[Row]:
        on_spark = request.param == "spark"
        engine = SparkEngine(sql_spark) if on_spark else small
        place: Row = {"_time": START, "_seq_hi": 0, "_seq_lo": 0}
        shape = {**kinds, "_time": "TIMESTAMP", "_seq_hi": "BIGINT", "_seq_lo": "BIGINT"}
        engine.view("in_0", shape, [row | place for row in rows])
        if on_spark:
            # One part, so that rows are added in their order.
            sql_spark.table("in_0").coalesce(1).createOrReplaceTempView("in_0")
        text = made.rows_sql if on_spark else rows_sql(made.tree, TEXT)
        names = ", ".join(each.name for each in made.columns)
        return engine.query(f"SELECT {names} FROM ({text}) AS t")

    yield rows_of
    small.close()


MOST = 2**63 - 1
WHOLE = {"k": "STRING", "n": "BIGINT"}
SUM = "SELECT k, SUM(n) AS total FROM STREAM r GROUP BY k"


@pytest.mark.parametrize("numbers", [(MOST, 1, -1), (-1, 1, MOST), (1, MOST, -1)])
def test_a_total_within_the_range_may_leave_it_on_the_way(
    computed: Computed, numbers: Sequence[int]
) -> None:
    found = computed(_over(SUM, WHOLE), WHOLE, [{"k": "a", "n": n} for n in numbers])
    assert found == [{"k": "a", "total": MOST}]
    apart = _over(SUM.replace("SUM(", "SUM(DISTINCT "), WHOLE)
    assert computed(apart, WHOLE, [{"k": "a", "n": n} for n in numbers]) == found
    over = "SUM(n) OVER (PARTITION BY k ORDER BY n DESC ROWS BETWEEN 9 PRECEDING AND 9 FOLLOWING)"
    made = _over(f"SELECT k, total FROM (SELECT k, {over} AS total FROM STREAM r) x", WHOLE)
    assert computed(made, WHOLE, [{"k": "a", "n": n} for n in numbers]) == found


def test_a_total_out_of_range_is_refused(computed: Computed) -> None:
    with pytest.raises((ArithmeticException, duckdb.ConversionException)):
        computed(_over(SUM, WHOLE), WHOLE, [{"k": "a", "n": n} for n in (MOST, 1)])


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
@pytest.mark.parametrize("grouped", ["", " GROUP BY k"])
def test_of_two_zeros_in_one_place_the_one_without_a_sign_is_the_newest(
    computed: Computed, zeros: Sequence[float], grouped: str
) -> None:
    kinds = {"k": "STRING", "x": "DOUBLE"}
    made = _over(f"SELECT k, x FROM STREAM r{grouped}", kinds)
    (row,) = computed(made, kinds, [{"k": "a", "x": x} for x in zeros])
    assert str(row["x"]) == "0.0"


NESTED = {
    "k": "STRING",
    "a": "ARRAY<STRING>",
    "m": "MAP<STRING, INT>",
    "st": "STRUCT<f: DOUBLE>",
    "i": "ARRAY<INT>",
}
ALIKE = (
    ("array('x')", "map('k', 1)", "named_struct('f', 0.0D)", "array(1)"),
    ("array('x')", "map('k', 1)", "named_struct('f', 0.0D)", "array(2)"),
    ("array('x')", "map('k', 1)", "named_struct('f', -0.0D)", "array(3)"),
    ("array('x')", "map('k', 0)", "named_struct('f', 1.0D)", "array(4)"),
    ("array('v')", "map('k', 2)", "named_struct('f', 2.0D)", "array(5)"),
)


@pytest.mark.parametrize(
    "item", ["i", "slice(i, 1, 1)[0]"], ids=["a known type", "a type that Spark derives"]
)
@pytest.mark.parametrize("grouped", ["", " GROUP BY k"])
def test_rows_in_one_place_are_told_apart_by_nested_values_too(
    sql_spark: SparkSession, item: str, grouped: str
) -> None:
    made = _over(f"SELECT k, a, m, st, {item} AS i FROM STREAM r{grouped}", NESTED)
    found = []
    for rows in (ALIKE, ALIKE[::-1]):
        selects = " UNION ALL ".join(
            f"SELECT 'k' k, {a} a, {m} m, {st} st, {i} i, 0L _seq_hi, 0L _seq_lo, "
            "TIMESTAMP'2020-01-01' _time"
            for a, m, st, i in rows
        )
        sql_spark.sql(selects).coalesce(1).createOrReplaceTempView("in_0")
        found.append(repr(sql_spark.sql(made.rows_sql).toArrow().to_pylist()))
    assert found[0] == found[1]
