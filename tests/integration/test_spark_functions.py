"""All functions of Spark: those that are computed mean what was written, others are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kernel.errors import InvalidRequest
from projections.sql.plans.plan import Plan, plan
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from projections.sql.words.spark_functions import BEYOND_SIGHT, PASSED_ON, UNSTABLE
from tests.integration.test_sql_spark import SparkEngine, _world
from tests.support.oracles.asked_projections import ASKED
from tests.support.oracles.choice_projections import CHOSEN, RANKED
from tests.support.oracles.range_projections import RANGES
from tests.support.oracles.spelled_projections import SPELLED
from tests.support.oracles.sql_world import canonical, planned, rebuilt
from tests.support.oracles.unequal_projections import UNEQUAL
from tests.support.oracles.written_projections import WRITTEN

COLUMNS = {"k": "BIGINT", "x": "DOUBLE", "y": "DOUBLE", "i": "INT", "s": "STRING", "b": "BOOLEAN"}
_RELATION = Relation(
    name="r",
    columns=tuple(Column(name=name, type=kind) for name, kind in COLUMNS.items()),
    key=(),
    event_time=None,
    copied=(),
)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


AGGREGATES = _words("""
any_value approx_count_distinct array_agg avg bit_and bit_or bit_xor bool_and bool_or collect_list
collect_set corr count count_if covar_pop covar_samp every first first_value kurtosis last
last_value listagg max max_by mean median min min_by mode percentile percentile_approx
approx_percentile regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy
regr_syy skewness some std stddev stddev_pop stddev_samp string_agg sum try_avg try_sum var_pop
var_samp variance
""")
OTHER_PLACES = _words("""
cume_dist dense_rank explode explode_outer grouping inline inline_outer json_tuple lag lead
nth_value ntile percent_rank percentile_cont percentile_disc posexplode posexplode_outer rank
row_number session_window stack window
""")
"""Computed before OVER, in SELECT and LATERAL VIEW, in GROUP BY, or WITHIN GROUP."""
OPERATORS = _words("and between case div in ilike isnan like not or rlike cast")
CASTS = _words(
    "bigint binary boolean date decimal double float int smallint string timestamp tinyint"
)
NOT_COMPUTED = {
    "approximate, by what depends on the order of arrival": _words("""
    approx_top_k approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate
    count_min_sketch histogram_numeric hll_sketch_agg hll_sketch_estimate hll_union hll_union_agg
    """),
    "a type that no table holds, or that is not switched on": _words("""
    st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid time to_time try_to_time make_time
    time_diff time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis
    time_to_seconds time_trunc
    """),
    "not part of Spark itself, but of jars beside it": _words("""
    from_avro schema_of_avro to_avro from_protobuf to_protobuf
    """),
    "rows without an input": _words("collations python_worker_logs range sql_keywords"),
    "rows of several columns": _words("""
    variant_explode variant_explode_outer
    """),
    "aggregates of few": _words("""
    bitmap_and_agg bitmap_construct_agg bitmap_or_agg grouping_id measure schema_of_variant_agg
    vector_avg vector_sum
    """),
    "windows by other words": _words("window_time"),
    "sizes of files": _words("any"),
}
_SKETCHES = re.compile("kll_|theta_|tuple_")


def test_every_function_of_spark_is_computed_or_refused_for_a_reason(spark: SparkSession) -> None:
    names = {row.function for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    names = {name for name in names if re.fullmatch(r"\w+", name) and not _SKETCHES.match(name)}
    refused = frozenset[str]().union(*NOT_COMPUTED.values(), UNSTABLE, BEYOND_SIGHT)
    assert refused <= names, "a reason is given for what there is"
    assert not refused & PASSED_ON.keys()
    assert names >= PASSED_ON.keys() - {"timestampadd"}, "what is passed on is there"
    rest = names - refused - PASSED_ON.keys() - AGGREGATES - OTHER_PLACES - OPERATORS - CASTS
    examples = _examples(spark)
    unread = {name for name in rest if not any(map(_reads, examples.get(name, ())))}
    assert not unread
    assert not {name for name in refused - {"any"} if any(map(_reads, examples.get(name, ())))}


def _examples(spark: SparkSession) -> dict[str, list[str]]:
    """Return Spark's own examples of expressions, by the name of the function."""
    found: dict[str, list[str]] = {}
    for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        if not re.fullmatch(r"\w+", row.function):
            continue
        described = spark.sql(f"DESCRIBE FUNCTION EXTENDED {row.function}").collect()
        text = "\n".join(line[0] for line in described)
        examples = [each.strip() for each in re.findall(r"> SELECT (.*?);\n", text, re.DOTALL)]
        found[row.function] = [each for each in examples if not _OF_ROWS.search(each)]
    return found


_OF_ROWS = re.compile(r"FROM\s+(VALUES|\()|\* FROM|OVER\s*\(| AS \w+$| AS S,|TIME ?'|time '", re.I)


def _reads(expression: str) -> bool:
    try:
        _over(f"SELECT k, ({expression}) IS NULL AS v FROM STREAM r")
    except InvalidRequest:
        return False
    return True


def _over(query: str, key: str = "k") -> Plan:
    (decl,) = parse_script(f"CREATE PROJECTION p WITH (key = {key}) AS {query}").projections
    return plan(decl, MemoryCatalog(streams={"r": _RELATION}))


FAILING = re.compile(r"raise_error|SystemDrive")
"""Examples of errors."""


@pytest.mark.matrix
def test_examples_of_spark_mean_the_same_compiled(spark: SparkSession) -> None:
    session = spark.newSession()
    _view(session, "SELECT 1L AS k, 1D AS x, 1D AS y, 1 AS i, 'a' AS s, true AS b")
    written = [
        text
        for texts in _examples(spark).values()
        for text in texts
        if _reads(text) and not FAILING.search(text)
    ]
    assert len(written) > 400
    for begin in range(0, len(written), 50):
        part = written[begin : begin + 50]
        items = ", ".join(
            f"typeof({text}) AS t{place}, CAST(({text}) AS STRING) AS v{place}"
            for place, text in enumerate(part)
        )
        (theirs,) = session.sql(f"SELECT {items} FROM in_0").collect()
        compiled = _over(f"SELECT k, {items} FROM STREAM r").rows_sql
        (ours,) = session.sql(f"SELECT * FROM ({compiled})").collect()
        for place, text in enumerate(part):
            for name in (f"t{place}", f"v{place}"):
                assert ours[name] == theirs[name], text


def _view(session: SparkSession, rows: str) -> None:
    session.sql(
        f"SELECT *, k AS _seq_hi, 0L AS _seq_lo, TIMESTAMP'2020-01-01' AS _time FROM ({rows})"
    ).createOrReplaceTempView("in_0")


CASES = {**CHOSEN, **RANKED, **UNEQUAL, **RANGES, **SPELLED, **WRITTEN, **ASKED}
FURTHER = ("less, or none", "not exists, unequal", "two columns not in", "exists in exists")
FURTHER += ("range behind", "range before", "range of numbers", "range to the end")
FURTHER += ("range from the beginning", "range from the row", "range of all", "unpivot of pairs")
FURTHER += ("less than any of its own", "equal to all", "not greater than some")
FURTHER += ("all but the first rows", "natural join", "exists of others, or", "less, or not known")
FURTHER += ("lateral, a total of less", "hop, moved back", "windows of each row")
"""What other cases have too, in another combination."""
assert CASES.keys() >= {*FURTHER}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.matrix] * (name in FURTHER)) for name in CASES],
)
def test_rows_are_chosen_ranked_and_compared_on_spark(spark: SparkSession, name: str) -> None:
    case, world = CASES[name], _world(20130102)
    made = canonical(rebuilt(SparkEngine(spark.newSession()), planned(case.statement), world))
    assert made == canonical(case.oracle(world))


MOMENTS = _words("""
corr covar_pop covar_samp regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx
regr_sxy regr_syy
""")
PAIRS = [(1.0, 2.0), (2.5, -1.0), (-0.0, 1e3), (None, 4.0), (3.0, None), (0.1, 0.2), (7.0, 7.0)]


def _rows(pairs: Sequence[tuple[float | None, float | None]]) -> str:
    written = [f"{x or 'NULL'}, {y or 'NULL'}" for x, y in pairs]
    selects = [
        f"SELECT {place}L AS k, CAST({x_and_y.split(', ')[0]} AS DOUBLE) AS x, "
        f"CAST({x_and_y.split(', ')[1]} AS DOUBLE) AS y, 1 AS i, 'a' AS s, {place} < 5 AS b"
        for place, x_and_y in enumerate(written)
    ]
    return " UNION ALL ".join(selects)


def test_moments_are_those_of_spark_in_any_order(spark: SparkSession) -> None:
    session = spark.newSession()
    calls = [f"{name}(x, y)" for name in sorted(MOMENTS)] + ["skewness(x)", "kurtosis(y)"]
    calls += ["corr(x, y) FILTER (WHERE b)"]
    items = ", ".join(f"{call} AS v{place}" for place, call in enumerate(calls))
    compiled = _over(f"SELECT s, {items} FROM STREAM r GROUP BY s", "s").rows_sql
    found = []
    for pairs in (PAIRS, PAIRS[::-1]):
        _view(session, _rows(pairs))
        (ours,) = session.sql(f"SELECT * FROM ({compiled})").collect()
        (theirs,) = session.sql(f"SELECT {items} FROM in_0").collect()
        for place, call in enumerate(calls):
            if "FILTER" not in call:
                assert ours[f"v{place}"] == pytest.approx(theirs[f"v{place}"], rel=1e-9), call
        found.append([repr(ours[f"v{place}"]) for place in range(len(calls) - 1)])
    assert found[0] == found[1]


FEW: dict[str, list[tuple[float | None, float | None]]] = {
    "none": [],
    "one": [(1.0, 2.0)],
    "two": [(1.0, 2.0), (1.0, 3.0)],
}


def test_moments_of_few_rows(spark: SparkSession) -> None:
    session = spark.newSession()
    items = ", ".join(f"{name}(x, y) AS {name}" for name in sorted(MOMENTS))
    groups = [
        f"SELECT k, x, y, i, '{group}' AS s, b FROM ({_rows([*pairs, (None, None)])})"
        for group, pairs in FEW.items()
    ]
    _view(session, " UNION ALL ".join(groups))
    query = f"SELECT s, {items} FROM {{}} GROUP BY s"
    compiled = _over(query.format("STREAM r"), "s").rows_sql
    ours = session.sql(f"SELECT * FROM ({compiled})").collect()
    # Where values do not differ there is nothing to divide by: NULL to us, to Spark without ANSI.
    session.conf.set("spark.sql.ansi.enabled", "false")
    theirs = session.sql(query.format("in_0")).collect()
    assert len(ours) == len(FEW)
    for name in ("s", *MOMENTS):
        assert {row.s: row[name] for row in ours} == {row.s: row[name] for row in theirs}, name


DOCUMENTS = (
    *('{"a": 1, "b.c": "x"}', '{"a": null, "b.c": {"d": [1, 2.50]}}', '[{"a": 1}]', "null", ""),
    *('{"a": "it\'s", "b": {"c": 1}}', '{"a": 1', '{"a": 1.0e2, "b.c": true}'),
    '{"a": "\\u00e4\\n"}',
)


def test_fields_of_documents_and_lists_are_those_of_spark(spark: SparkSession) -> None:
    session = spark.newSession()
    rows = pa.table({"k": range(len(DOCUMENTS)), "s": DOCUMENTS})
    session.createDataFrame(rows).createOrReplaceTempView("given")
    _view(session, "SELECT CAST(k AS BIGINT) AS k, s, CAST(k % 3 AS INT) AS i FROM given")
    text = "SELECT k, a, c FROM {} LATERAL VIEW json_tuple(s, 'a', 'b.c') t AS a, c"
    ours = session.sql(_over(text.format("STREAM r")).rows_sql).select("k", "a", "c").collect()
    assert sorted(ours) == sorted(session.sql(text.format("in_0")).collect())
    listed = "SELECT 'all' AS s, array_agg(s ORDER BY i DESC) AS v FROM STREAM r GROUP BY 'all'"
    (found,) = session.sql(_over(listed, "s").rows_sql).select("v").collect()
    assert found.v == [text for rest in (2, 1, 0) for text in DOCUMENTS[rest::3]]
