"""Forms of ksqlDB, Flink, Materialize, RisingWave and Spark: each is a form of the dialect."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.operators.shape import Strategy
from projections.sql.rendering.certified import uncertified
from projections.sql.statements.parse import parse_script
from tests.support.oracles.sql_world import SOURCES, planned

FROM = "FROM STREAM events.flight.departed"
OF_WINDOW = "carrier, window_start"
HOURLY = f"SELECT carrier, window_start, COUNT(*) AS n {FROM}"
TABLE = "STREAM events.flight.departed"

SAME = {
    "emit changes": (
        "carrier",
        f"SELECT carrier, COUNT(*) AS n {FROM} GROUP BY carrier EMIT CHANGES",
        f"SELECT carrier, COUNT(*) AS n {FROM} GROUP BY carrier",
    ),
    "tumbling": (
        OF_WINDOW,
        f"{HOURLY} WINDOW TUMBLING (SIZE 1 HOUR) WHERE delay > 1 GROUP BY carrier EMIT CHANGES",
        f"{HOURLY} WHERE delay > 1 GROUP BY carrier, TUMBLE(occurred_at, '1 hour')",
    ),
    "hopping": (
        "carrier, ws",
        f"SELECT carrier, WINDOWSTART AS ws, COUNT(*) AS n {FROM} "
        "WINDOW HOPPING (SIZE 1 HOUR, ADVANCE BY 10 MINUTES) GROUP BY carrier HAVING COUNT(*) > 1",
        f"SELECT carrier, window_start AS ws, COUNT(*) AS n {FROM} "
        "GROUP BY carrier, HOP(occurred_at, '10 minutes', '1 hour') HAVING COUNT(*) > 1",
    ),
    "session": (
        OF_WINDOW,
        f"{HOURLY} WINDOW SESSION (5 MINUTES) GROUP BY carrier",
        f"{HOURLY} GROUP BY carrier, SESSION(occurred_at, '5 minutes')",
    ),
    "join within": (
        "position",
        f"SELECT a.position, b.delay {FROM} a JOIN {TABLE} b WITHIN 2 HOURS ON a.flight = b.flight",
        f"SELECT a.position, b.delay {FROM} a JOIN {TABLE} b ON "
        "b.occurred_at >= a.occurred_at - INTERVAL '2' HOURS "
        "AND b.occurred_at <= a.occurred_at + INTERVAL '2' HOURS AND a.flight = b.flight",
    ),
    "function of a table": (
        OF_WINDOW,
        "SELECT carrier, window_start, COUNT(*) AS n FROM TUMBLE(STREAM events.flight.departed, "
        "occurred_at, INTERVAL '10 minutes') GROUP BY carrier, window_start",
        f"{HOURLY} GROUP BY carrier, TUMBLE(occurred_at, '10 minutes')",
    ),
    "star over a full join": (
        "carrier",
        "SELECT q.carrier FROM (SELECT * FROM (SELECT carrier FROM airlines) a FULL JOIN "
        "(SELECT carrier FROM airlines) b USING (carrier)) q",
        "SELECT q.carrier FROM (SELECT COALESCE(a.carrier, b.carrier) AS carrier FROM "
        "(SELECT carrier FROM airlines) a FULL JOIN (SELECT carrier FROM airlines) b "
        "ON a.carrier = b.carrier) q",
    ),
    "named arguments": (
        OF_WINDOW,
        f"SELECT carrier, window_start, COUNT(*) AS n FROM TABLE(HOP(DATA => TABLE {TABLE}, "
        "TIMECOL => DESCRIPTOR(occurred_at), SIZE => INTERVAL '10' MINUTES, "
        "SLIDE => INTERVAL '5' MINUTES)) GROUP BY carrier, window_start",
        f"{HOURLY} GROUP BY carrier, HOP(occurred_at, '5 minutes', '10 minutes')",
    ),
    "last moment of a window": (
        OF_WINDOW,
        "SELECT carrier, window_start, window_time, window_time AS at, COUNT(*) AS n FROM TABLE("
        f"TUMBLE(TABLE {TABLE}, DESCRIPTOR(occurred_at), INTERVAL '10' MINUTES)) "
        "GROUP BY carrier, window_start, window_end, window_time",
        "SELECT carrier, window_start, timestamp_micros(unix_micros(window_end) - 1000) AS "
        "window_time, timestamp_micros(unix_micros(window_end) - 1000) AS at, COUNT(*) AS n "
        f"{FROM} GROUP BY carrier, TUMBLE(occurred_at, '10 minutes')",
    ),
    "functions of a whole partition": (
        "position",
        "SELECT position, MAX_BY(carrier, delay) OVER (PARTITION BY flight) AS m, "
        f"MIN_BY(carrier, delay) OVER (PARTITION BY flight) AS l {FROM}",
        "SELECT position, LAST_VALUE(CASE WHEN NOT (delay) IS NULL THEN carrier END) OVER ("
        "PARTITION BY flight ORDER BY delay NULLS FIRST ROWS BETWEEN UNBOUNDED PRECEDING AND "
        "UNBOUNDED FOLLOWING) AS m, FIRST_VALUE(CASE WHEN NOT (delay) IS NULL THEN carrier END) "
        "OVER (PARTITION BY flight ORDER BY delay NULLS LAST ROWS BETWEEN UNBOUNDED PRECEDING AND "
        f"UNBOUNDED FOLLOWING) AS l {FROM}",
    ),
    "session of a table": (
        OF_WINDOW,
        f"SELECT carrier, window_start, COUNT(*) AS n FROM TABLE(SESSION(TABLE {TABLE} "
        "PARTITION BY carrier, DESCRIPTOR(occurred_at), INTERVAL '5' MINUTES)) "
        "GROUP BY carrier, window_start",
        f"{HOURLY} GROUP BY carrier, SESSION(occurred_at, '5 minutes')",
    ),
    "window of a row": (
        "position",
        "SELECT position, window_start, rank FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY "
        f"window_start ORDER BY delay DESC) AS rank FROM TABLE(TUMBLE(TABLE {TABLE}, DESCRIPTOR("
        "occurred_at), INTERVAL '10' MINUTES))) t WHERE rank <= 3",
        "SELECT position, window_start, rank FROM (SELECT position, window_start, ROW_NUMBER() "
        "OVER (PARTITION BY window_start ORDER BY delay DESC) AS rank FROM (SELECT position, "
        "delay, timestamp_micros(unix_micros(occurred_at) - pmod(unix_micros(occurred_at), "
        f"600000000)) AS window_start {FROM})) t WHERE rank <= 3",
    ),
    "window alone": (
        "window_start",
        f"SELECT window_start, COUNT(*) AS n {FROM} GROUP BY window(occurred_at, '1 hour')",
        f"SELECT window_start, COUNT(*) AS n {FROM} GROUP BY TUMBLE(occurred_at, '1 hour')",
    ),
    "date_bin": (
        "t",
        f"SELECT date_bin(INTERVAL '15 minutes', occurred_at) AS t, COUNT(*) AS n {FROM} "
        "GROUP BY 1",
        f"SELECT timestamp_micros(unix_micros(occurred_at) - pmod(unix_micros(occurred_at), "
        f"900000000)) AS t, COUNT(*) AS n {FROM} GROUP BY 1",
    ),
    "counts": (
        "carrier",
        f"SELECT carrier, APPROX_COUNT_DISTINCT(origin) AS n, EVERY(delay > 1) AS e, "
        f"ANY_VALUE(origin) AS o {FROM} GROUP BY carrier",
        f"SELECT carrier, COUNT(DISTINCT origin) AS n, BOOL_AND(delay > 1) AS e, "
        f"(origin) AS o {FROM} GROUP BY carrier",
    ),
    "elements by their alias": (
        "position, stop",
        "SELECT s.position, leg.stop FROM STREAM events.flight.served s, unnest(s.legs) AS leg",
        "SELECT s.position, leg.stop FROM STREAM events.flight.served s "
        "CROSS JOIN UNNEST(s.legs) AS leg (stop, n)",
    ),
    "patterns": (
        "position",
        f"SELECT position {FROM} WHERE carrier LIKE ANY ('a%', 'b%') AND origin NOT ILIKE 'X%' "
        "AND carrier IS DISTINCT FROM origin",
        f"SELECT position {FROM} WHERE (carrier LIKE 'a%' OR carrier LIKE 'b%') "
        "AND NOT (lower(origin) LIKE 'x%') AND NOT (carrier <=> origin)",
    ),
    "a value in the place of null": (
        "position",
        f"SELECT position, ISNULL(delay, 0) AS d, isnull(delay) AS n {FROM}",
        f"SELECT position, COALESCE(delay, 0) AS d, isnull(delay) AS n {FROM}",
    ),
    "choices": (
        "position",
        f"SELECT position, decode(carrier, 'UA', 1, 0) AS d, iff(delay > 1, 1, 2) AS i {FROM}",
        f"SELECT position, CASE WHEN carrier <=> 'UA' THEN 1 ELSE 0 END AS d, "
        f"IF(delay > 1, 1, 2) AS i {FROM}",
    ),
    "json": (
        "position",
        f"SELECT position, carrier -> 'a' -> 0 ->> 'b' AS x, json_value(carrier, '$.a') AS y "
        f"{FROM}",
        f"""SELECT position, get_json_object(carrier, "$['a'][0]['b']") AS x, """
        f"get_json_object(carrier, '$.a') AS y {FROM}",
    ),
    "days": (
        "position",
        f"SELECT position {FROM} WHERE CAST(occurred_at AS DATE) < DATE '1998-12-01' - "
        "INTERVAL '90' DAY + INTERVAL '3' MONTH",
        f"SELECT position {FROM} WHERE CAST(occurred_at AS DATE) < DATE '1998-12-02'",
    ),
    "hints": (
        "position",
        f"SELECT /*+ REPARTITION(3) */ position {FROM}",
        f"SELECT position {FROM}",
    ),
    "one of several and": (
        "position",
        f"SELECT a.position {FROM} a, {TABLE} b WHERE (a.flight = b.flight AND a.delay > 1) OR "
        "(a.flight = b.flight AND b.delay > 2)",
        f"SELECT a.position {FROM} a JOIN {TABLE} b ON a.flight = b.flight AND "
        "(a.delay > 1 OR b.delay > 2)",
    ),
    "names of columns": (
        "c",
        f"WITH t (c, n) AS (SELECT carrier, COUNT(*) {FROM} GROUP BY carrier) SELECT c, n FROM t",
        f"WITH t AS (SELECT carrier AS c, COUNT(*) AS n {FROM} GROUP BY carrier) "
        "SELECT c, n FROM t",
    ),
}


def rows_sql(key: str, query: str) -> str:
    return planned(f"CREATE PROJECTION p WITH (key = '{key}') AS {query};").rows_sql


@pytest.mark.parametrize("name", SAME)
def test_a_form_of_another_system_is_one_of_the_dialect(name: str) -> None:
    key, theirs, ours = SAME[name]
    assert rows_sql(key, theirs) == rows_sql(key, ours)


@pytest.mark.parametrize(
    ("statement", "key"),
    [
        ("CREATE MATERIALIZED VIEW v AS SELECT carrier, COUNT(*) AS n {} GROUP BY 1", ("carrier",)),
        ("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT DISTINCT carrier {}", ("carrier",)),
        ("CREATE TABLE V AS SELECT origin, MAX(delay) AS d {} GROUP BY origin", ("origin",)),
    ],
)
def test_a_materialized_view_is_a_projection(statement: str, key: tuple[str, ...]) -> None:
    (found,) = parse_script(SOURCES + statement.format(FROM)).projections
    assert (found.name, found.key) == ("v", key)


@pytest.mark.parametrize(
    ("query", "said", "form"),
    [
        (
            f"{HOURLY} WINDOW TUMBLING (SIZE 1 HOUR, GRACE PERIOD 1 DAY) GROUP BY carrier",
            "GRACE PERIOD 1 DAY",
            "lateness",
        ),
        (
            f"SELECT a.position {FROM} a JOIN {TABLE} b WITHIN 1 HOUR ON a.flight = b.flight "
            f"JOIN {TABLE} c WITHIN 1 HOUR ON c.flight = b.flight",
            "WITHIN of a join",
            "BETWEEN",
        ),
        (f"{HOURLY} WINDOW TUMBLING (1 HOUR) GROUP BY carrier", "not complete", "SIZE 1 HOUR"),
        (f"{HOURLY} WINDOW TUMBLING (SIZE 1 HOUR)", "without GROUP BY", "GROUP BY key"),
        (f"SELECT carrier, PERCENTILE(delay, 2) AS a {FROM} GROUP BY carrier", "part", "0.95"),
        (f"SELECT carrier, STRING_AGG(delay, ',') AS a {FROM} GROUP BY carrier", "texts", "CAST"),
        (f"SELECT carrier, LISTAGG(origin) AS a {FROM} GROUP BY carrier", "between", "', '"),
        (
            f"SELECT carrier, STDDEV(DISTINCT delay) AS a {FROM} GROUP BY carrier",
            "of distinct values",
            "SELECT DISTINCT",
        ),
        (
            f"SELECT carrier, MEDIAN(DISTINCT delay) AS a {FROM} GROUP BY carrier",
            "a percentile of distinct values",
            "SELECT DISTINCT",
        ),
        (
            f"SELECT carrier, PERCENTILE(delay, 0.5, 2) AS a {FROM} GROUP BY carrier",
            "does not take 3",
            "Leave out",
        ),
        (
            f"SELECT carrier, RANK() OVER (ORDER BY COUNT(*)) AS a {FROM} GROUP BY carrier "
            "HAVING carrier IN (SELECT carrier FROM airlines)",
            "not compiled here",
            "WHERE",
        ),
        (f"SELECT * {FROM}", "does not name columns", "Name the columns"),
        (
            f"SELECT e.position {FROM} e, LATERAL (SELECT label FROM airlines LIMIT 2) a",
            "LATERAL",
            "ORDER BY x LIMIT 3",
        ),
        (f"SELECT c FROM (SELECT carrier {FROM}) t (c, d)", "2 names", "each column"),
    ],
)
def test_what_means_something_else_is_refused(query: str, said: str, form: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rows_sql("carrier", query)
    assert said in caught.value.message
    assert form in (caught.value.remedy or "")


def test_sums_of_many_digits_and_days_are_kept_in_small() -> None:
    made = planned(
        "CREATE PROJECTION p WITH (key = 'carrier') AS SELECT carrier, "
        "SUM(CAST(delay AS DECIMAL(15, 2)) * (1 - CAST(delay AS DECIMAL(15, 2)))) AS s, "
        "SUM(CAST(delay AS DECIMAL(15, 2))) / SUM(CAST(delay AS DECIMAL(38, 4))) AS q, "
        "MAX(CAST(occurred_at AS DATE) + INTERVAL 1 MONTH) AS d, MEDIAN(delay) AS m "
        f"{FROM} GROUP BY carrier"
    )
    assert made.tree is not None
    assert uncertified(made.tree) is None
    assert made.strategy is Strategy.REGIONS
    types = {each.name: each.type for each in made.columns}
    assert types == {
        "carrier": "STRING",
        "s": "DECIMAL(38,4)",
        "q": "DECIMAL(38,11)",
        "d": "DATE",
        "m": "DOUBLE",
    }
