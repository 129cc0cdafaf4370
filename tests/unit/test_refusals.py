"""Words of Flink, ksqlDB and other databases that are read over, or that Spark has not."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from tests.support.oracles.sql_world import planned

FROM = "FROM STREAM events.flight.departed"
AT = "occurred_at"
GROUPS = f"SELECT carrier AS position, COUNT(*) AS n {FROM}"
VALUES = f"SELECT a.position {FROM} a JOIN (VALUES "
PIVOT = f"SELECT position, a FROM (SELECT position, carrier, delay {FROM}) PIVOT "
JOINED = "SELECT carrier, MAX(delay) AS m FROM STREAM events.flight.departed GROUP BY carrier"


def rows_sql(query: str) -> str:
    return planned(f"CREATE PROJECTION p WITH (key = 'position') AS {query}").rows_sql


@pytest.mark.parametrize(
    ("query", "said", "form"),
    [
        (f"SELECT position {FROM} WHERE delay BETWEEN SYMMETRIC 5 AND 1", "SYMMETRIC", "LEAST"),
        (f"SELECT position, EXTRACT(EPOCH FROM {AT}) AS e {FROM}", "no EPOCH", "unix_seconds"),
        (f"SELECT position, date_part('isodow', {AT}) AS e {FROM}", "no ISODOW", "DOW_ISO"),
        (
            f"SELECT position, CAST(carrier AS STRING FORMAT 'x') AS e {FROM}",
            "a type alone",
            "to_date",
        ),
        (
            "SELECT carrier AS position, PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY delay, "
            f"origin) AS e {FROM} GROUP BY carrier",
            "PERCENTILE_DISC, MODE",
            "ORDER BY x)",
        ),
        (f"SELECT position, unix_timestamp() AS e {FROM}", "another value at every run", "a time"),
        (f"SELECT position, a {FROM} PIVOT (SUM(delay) FOR carrier IN ('a'))", "PIVOT", "FILTER"),
        (f"SELECT position, v {FROM} UNPIVOT ((v, w) FOR c IN (delay))", "UNPIVOT", "IN (north"),
        (f"{PIVOT}(SUM(delay) FOR carrier IN ('a-b'))", "without a name", "'north-east' AS"),
        (f"{PIVOT}(SUM(delay), COUNT(*) FOR carrier IN ('a'))", "without a name", "AS total"),
        (f"{PIVOT}(SUM(delay) FOR carrier IN (SELECT 'a'))", "values, written out", "PIVOT (SUM"),
        (f"{PIVOT}(SUM(delay) FOR carrier IN (position))", "values, written out", "PIVOT (SUM"),
        (f"{PIVOT}(upper(carrier) FOR carrier IN ('a'))", "aggregates alone", "PIVOT (SUM"),
        (f"{PIVOT}(SUM(delay) FOR carrier IN ('a')) AS p (position, b)", "names of col", "PIVOT ("),
        (
            f"{PIVOT}(MAX(position) FOR (carrier, delay) IN (('a', 1) AS b))",
            "no column by which",
            "P",
        ),
        (
            f"{PIVOT}(SUM(delay) FOR (carrier, position) IN (('a', 1, 2) AS a))",
            "as many parts",
            "P",
        ),
        (
            f"SELECT a.position {FROM} a LEFT JOIN LATERAL ({JOINED}) b ON true",
            "LATERAL",
            "Name what it reads",
        ),
        (
            f"SELECT DISTINCT ON (carrier) position {FROM} ORDER BY carrier",
            "DISTINCT ON",
            "QUALIFY",
        ),
        (
            f"SELECT carrier AS position, SUM(to_number(carrier, '9')) AS n {FROM} GROUP BY 1",
            "SUM of a value whose type only Spark derives",
            "CAST(… AS DOUBLE)",
        ),
        (f"SELECT position, NTILE(0) OVER (ORDER BY delay) AS n {FROM}", "1 or more", "NTILE(4)"),
        (f"SELECT position, uniform(1, 9) AS n {FROM}", "another value at every run", "a time"),
        (f"SELECT position, shuffle(array(1, delay)) AS n {FROM}", "another value", "an id"),
        (f"SELECT position, reflect('a', 'b') AS n {FROM}", "calls what may", "in Python"),
        (f"SELECT position, parse_json(carrier) AS n {FROM}", "no table holds", "CAST("),
        (f"SELECT position, CAST(carrier AS TIME) AS n {FROM}", "a time of day", "as a text"),
        (f"SELECT position, to_json(struct(*)) AS n {FROM}", "name its fields", "struct(a, b)"),
        (f"SELECT position, hash(*) AS n {FROM}", "name columns", "Name the columns"),
        (f"SELECT position, abs(x -> x) AS n {FROM}", "a lambda belongs", "transform(lines"),
        (
            f"SELECT position, transform(array(delay), Delay -> delay + 1) AS n {FROM}",
            "spelled otherwise",
            "same letter case",
        ),
        (
            f"SELECT position, transform(array(delay), x -> SUM(x)) AS n {FROM}",
            "an aggregate inside of a lambda",
            "LATERAL VIEW",
        ),
        (
            f"SELECT carrier AS position, FIRST(delay, delay > 1) AS n {FROM} GROUP BY 1",
            "FIRST(…) is not in the dialect",
            "listed",
        ),
        (
            f"SELECT position, MAX_BY(delay, {AT}) OVER (PARTITION BY carrier ORDER BY {AT}) AS n "
            f"{FROM}",
            "MAX_BY before OVER",
            "without ORDER BY and a frame",
        ),
        (
            f"SELECT position, ANY_VALUE(delay) OVER (ORDER BY {AT}) AS n {FROM}",
            "ANY_VALUE before OVER",
            "over whole partitions",
        ),
        (
            f"SELECT position, SUM(DISTINCT distance) OVER (PARTITION BY carrier) AS n {FROM}",
            "SUM of distinct values of DOUBLE before OVER",
            "JOIN (SELECT k, AVG(DISTINCT x)",
        ),
        (
            f"SELECT position, COUNT(DISTINCT distance) OVER (PARTITION BY carrier) AS n {FROM}",
            "COUNT of distinct values of DOUBLE before OVER",
            "floating-point",
        ),
        (
            f"SELECT position, MODE(distance) OVER (PARTITION BY carrier) AS n {FROM}",
            "MODE of floating-point numbers before OVER",
            "MODE(CAST(x AS DECIMAL(18, 2)))",
        ),
        (f"{VALUES}('a', 1), ('b')) v(k, n) ON v.k = a.carrier", "other numbers", "each column"),
        (f"{VALUES}(1, 1), ('b', 2)) v(k, n) ON v.k = a.carrier", "no one type", "CAST"),
        (f"{VALUES}(1, 1), (2, 2)) v(k, n) ON v.k = a.carrier", "INT", "Convert"),
        (f"{VALUES}(delay, 1)) v(k, n) ON v.k = a.delay", "reads a column", "Write the values"),
        (f"{VALUES}(1, 1)) ON true", "without names", "AS v(k, name)"),
        (f"{VALUES}(1, 1)) v(k, K) ON v.k = a.delay", "without names", "AS v(k, name)"),
        (
            f"SELECT a.position {FROM} a NATURAL JOIN ({JOINED}) b",
            "NATURAL JOIN",
            "b USING (carrier)",
        ),
    ],
)
def test_what_is_said_elsewhere_is_refused_with_a_form_that_works(
    query: str, said: str, form: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rows_sql(query)
    assert said in caught.value.message
    assert caught.value.message.startswith("<sql>:4:")
    assert form in (caught.value.remedy or "")


def test_respect_nulls_is_what_is_so_without_it() -> None:
    query = f"SELECT position, LAG(delay) {{}} OVER (ORDER BY {AT}) AS n {FROM}"
    assert rows_sql(query.format("RESPECT NULLS")) == rows_sql(query.format(""))


@pytest.mark.parametrize("field", ["YEAR", "quarter", "WEEK", "DOW", "DOW_ISO", "doy", "SECONDS"])
def test_what_spark_takes_from_a_time_is_read(field: str) -> None:
    assert rows_sql(f"SELECT position, EXTRACT({field} FROM {AT}) AS e {FROM}")
    assert rows_sql(f"SELECT position, date_part('{field}', {AT}) AS e {FROM}")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"SELECT position {FROM} WHERE delay", "INT"),
        (f"SELECT position {FROM} WHERE delay > 0 AND position", "BIGINT"),
        (f"SELECT position, NOT distance AS n {FROM}", "DOUBLE"),
        (f"SELECT position, CASE WHEN {AT} THEN 1 END AS n {FROM}", "TIMESTAMP"),
        (f"SELECT position, if(delay + 1, 1, 2) AS n {FROM}", "INT"),
        (f"{GROUPS} GROUP BY carrier HAVING SUM(delay)", "BIGINT"),
        (f"SELECT position, COUNT(*) FILTER (WHERE delay) OVER () AS n {FROM}", "INT"),
        (f"SELECT a.position {FROM} a JOIN ({JOINED}) b ON a.carrier = b.carrier AND b.m", "INT"),
    ],
)
def test_a_condition_that_is_a_number_or_a_time_is_refused_at_its_place(
    query: str, said: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rows_sql(query)
    assert f"a condition is {said}, neither true nor false" in caught.value.message
    assert caught.value.message.startswith("<sql>:4:")


def test_what_a_case_compares_with_is_no_condition() -> None:
    assert rows_sql(f"SELECT position, CASE delay WHEN 1 THEN 2 END AS n {FROM} WHERE NOT NULL")


@pytest.mark.parametrize("path", ["$.a.b[0]", "$.a-b", "a", "$.*", "$[*].x", "$..a", "$.items[*]"])
def test_a_path_of_json_is_the_one_that_is_written(path: str) -> None:
    query = f"SELECT position, get_json_object(carrier, '{path}') AS j {FROM}"
    assert f"GET_JSON_OBJECT(`carrier`, '{path}')" in rows_sql(query)
