"""Forms of a query that mean the same have the same plan."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from tests.support.oracles.sql_world import planned

STREAM = "STREAM events.flight.departed"
FROM = f"FROM {STREAM}"
BY_CARRIER = f"COUNT(*) AS n {FROM} GROUP BY carrier"
OVER = "OVER (ORDER BY {} DESC)"


def rows_sql(query: str, key: str) -> str:
    return planned(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}").rows_sql


def around(groups: str, items: str, qualify: str) -> str:
    return f"SELECT {items} FROM ({groups}) penstock_groups QUALIFY {qualify}"


@pytest.mark.parametrize(
    ("written", "groups", "items", "qualify"),
    [
        (
            f"SELECT carrier, {BY_CARRIER} QUALIFY ROW_NUMBER() {OVER.format('n')} = 1",
            f"SELECT carrier, {BY_CARRIER}",
            "carrier, n",
            f"ROW_NUMBER() {OVER.format('n')} = 1",
        ),
        (
            f"SELECT carrier, {BY_CARRIER} HAVING n > 1 QUALIFY n > 2 AND carrier <> 'x'",
            f"SELECT carrier, {BY_CARRIER} HAVING n > 1",
            "carrier, n",
            "n > 2 AND carrier <> 'x'",
        ),
        (
            f"SELECT carrier {FROM} GROUP BY carrier "
            f"QUALIFY RANK() {OVER.format('MAX(delay) + 1')} <= 3",
            f"SELECT carrier, MAX(delay) AS penstock_group_0 {FROM} GROUP BY carrier",
            "carrier",
            f"RANK() {OVER.format('penstock_group_0 + 1')} <= 3",
        ),
        (
            f"SELECT carrier, SUM(delay) AS late {FROM} GROUP BY carrier, lower(origin) "
            "QUALIFY SUM(COUNT(*)) OVER (PARTITION BY lower(origin)) > 2",
            "SELECT carrier, SUM(delay) AS late, COUNT(*) AS penstock_group_0, "
            f"lower(origin) AS penstock_group_1 {FROM} GROUP BY carrier, lower(origin)",
            "carrier, late",
            "SUM(penstock_group_0) OVER (PARTITION BY penstock_group_1) > 2",
        ),
        (
            f"SELECT carrier, {BY_CARRIER} QUALIFY COUNT(*) FILTER (WHERE delay >= 15) > 3",
            f"SELECT carrier, COUNT(*) AS n, COUNT(*) FILTER (WHERE delay >= 15) AS "
            f"penstock_group_0 {FROM} GROUP BY carrier",
            "carrier, n",
            "penstock_group_0 > 3",
        ),
        (
            f"SELECT carrier {FROM} GROUP BY ROLLUP (carrier) "
            f"QUALIFY GROUPING(carrier) = 0 AND RANK() {OVER.format('COUNT(*)')} = 1",
            "SELECT carrier, GROUPING(carrier) AS penstock_group_0, "
            f"COUNT(*) AS penstock_group_1 {FROM} GROUP BY ROLLUP (carrier)",
            "carrier",
            f"penstock_group_0 = 0 AND RANK() {OVER.format('penstock_group_1')} = 1",
        ),
        (
            f"SELECT carrier, window_start, COUNT(*) AS n {FROM} "
            "GROUP BY carrier, TUMBLE(occurred_at, '1 hour') "
            "QUALIFY ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY n DESC) = 1",
            f"SELECT carrier, window_start, COUNT(*) AS n, window_end AS penstock_group_0 {FROM} "
            "GROUP BY carrier, TUMBLE(occurred_at, '1 hour')",
            "carrier, window_start, n",
            "ROW_NUMBER() OVER (PARTITION BY penstock_group_0 ORDER BY n DESC) = 1",
        ),
        (
            f"SELECT RANK() {OVER.format('SUM(delay)')} AS r, carrier, {BY_CARRIER} QUALIFY r <= n",
            "SELECT carrier, COUNT(*) AS n, SUM(delay) AS penstock_group_0 "
            f"{FROM} GROUP BY carrier",
            f"RANK() {OVER.format('penstock_group_0')} AS r, carrier, n",
            "r <= n",
        ),
    ],
)
def test_qualify_of_groups_stands_around_them(
    written: str, groups: str, items: str, qualify: str
) -> None:
    assert rows_sql(written, "carrier") == rows_sql(around(groups, items, qualify), "carrier")


@pytest.mark.parametrize(
    ("written", "groups", "items"),
    [
        (
            f"SELECT carrier, SUM(delay) AS late, RANK() {OVER.format('SUM(delay)')} AS r {FROM} "
            "GROUP BY carrier",
            "SELECT carrier, SUM(delay) AS late, SUM(delay) AS penstock_group_0 "
            f"{FROM} GROUP BY carrier",
            f"carrier, late, RANK() {OVER.format('penstock_group_0')} AS r",
        ),
        (
            "SELECT COUNT(*) / SUM(COUNT(*)) OVER (PARTITION BY lower(origin)) AS share, carrier "
            f"{FROM} GROUP BY 2, lower(origin) HAVING MAX(delay) > 3",
            "SELECT carrier, COUNT(*) AS penstock_group_0, lower(origin) AS penstock_group_1 "
            f"{FROM} GROUP BY carrier, lower(origin) HAVING MAX(delay) > 3",
            "penstock_group_0 / SUM(penstock_group_0) OVER (PARTITION BY penstock_group_1) AS "
            "share, carrier",
        ),
        (
            f"SELECT DISTINCT carrier, LAG(MAX(delay), 1, 0) {OVER.format('window_end')} AS before "
            f"{FROM} GROUP BY carrier, TUMBLE(occurred_at, '1 hour')",
            f"SELECT carrier, MAX(delay) AS penstock_group_0, window_end AS penstock_group_1 {FROM}"
            " GROUP BY carrier, TUMBLE(occurred_at, '1 hour')",
            f"DISTINCT carrier, LAG(penstock_group_0, 1, 0) {OVER.format('penstock_group_1')} AS "
            "before",
        ),
        (
            "SELECT carrier, SUM(COUNT(*)) FILTER (WHERE GROUPING(carrier) = 0) OVER () AS n "
            f"{FROM} GROUP BY ROLLUP (1)",
            "SELECT carrier, COUNT(*) AS penstock_group_0, GROUPING(carrier) AS penstock_group_1 "
            f"{FROM} GROUP BY ROLLUP (carrier)",
            "carrier, SUM(penstock_group_0) FILTER (WHERE penstock_group_1 = 0) OVER () AS n",
        ),
    ],
)
def test_over_beside_group_by_is_over_the_groups(written: str, groups: str, items: str) -> None:
    meant = f"SELECT {items} FROM ({groups}) penstock_groups"
    assert rows_sql(written, "carrier") == rows_sql(meant, "carrier")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            f"SELECT carrier, RANK() {OVER.format('COUNT(*)')} AS r {FROM} GROUP BY carrier, 2",
            "stands in SELECT and QUALIFY only",
        ),
        (
            f"SELECT carrier, RANK() {OVER.format('COUNT(*)')} AS carrier {FROM} GROUP BY carrier",
            "two columns are named carrier",
        ),
    ],
)
def test_over_of_groups_that_means_nothing_is_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        rows_sql(query, "carrier")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            f"SELECT carrier, MAX(delay) AS delay {FROM} GROUP BY carrier "
            "QUALIFY ROW_NUMBER() OVER (ORDER BY delay DESC) = 1",
            "delay in QUALIFY is a column of the input and a name given by AS",
        ),
        (
            f"SELECT carrier, RANK() OVER (ORDER BY COUNT(*)) AS delay {FROM} GROUP BY carrier "
            "QUALIFY delay = 1",
            "delay in QUALIFY is a column of the input and a name given by AS",
        ),
    ],
)
def test_qualify_of_groups_that_could_mean_two_things_is_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        rows_sql(query, "carrier")
    assert caught.value.remedy == "Group in a subquery, and write OVER in the query around it."


A, B = f"{STREAM} a", f"{STREAM} b"
NEAR = "b.occurred_at > a.occurred_at AND b.occurred_at < a.occurred_at + INTERVAL 1 HOUR"
WEATHER = "weather FOR SYSTEM_TIME AS OF a.occurred_at w"
PAIR = "SELECT a.position AS p, b.position AS q FROM"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (
            f"{PAIR} {A}, {B} WHERE a.flight = b.flight AND {NEAR} AND a.delay > 0 AND b.delay > 1",
            f"{PAIR} {A} JOIN {B} ON a.flight = b.flight AND {NEAR} AND b.delay > 1 "
            "WHERE a.delay > 0",
        ),
        (
            f"{PAIR} {A} CROSS JOIN {B} WHERE a.flight = b.flight AND (a.delay > 0 OR b.delay > 0)",
            f"{PAIR} {A} JOIN {B} ON a.flight = b.flight AND (a.delay > 0 OR b.delay > 0)",
        ),
        (
            f"{PAIR} {A}, (SELECT position, flight {FROM}) b, {STREAM} stream "
            "WHERE a.flight = b.flight AND stream.flight = b.flight AND a.origin = stream.origin",
            f"{PAIR} {A} JOIN (SELECT position, flight {FROM}) b ON a.flight = b.flight "
            f"JOIN {STREAM} stream ON stream.flight = b.flight AND a.origin = stream.origin",
        ),
        (
            f"SELECT a.position AS p, w.wind AS q FROM {A}, {WEATHER} WHERE w.origin = a.origin",
            f"SELECT a.position AS p, w.wind AS q FROM {A} JOIN {WEATHER} ON w.origin = a.origin",
        ),
        (
            f"SELECT position AS p, label AS q FROM {A}, airlines b "
            "WHERE a.carrier = b.carrier AND position > 3",
            f"SELECT position AS p, label AS q FROM {A} JOIN airlines b "
            "ON a.carrier = b.carrier WHERE position > 3",
        ),
        (
            f"SELECT position AS p, label AS q FROM {A}, airlines b WHERE a.carrier = b.carrier "
            "AND label <> '' AND a.delay / length(b.label) > 1",
            f"SELECT position AS p, label AS q FROM {A} JOIN airlines b ON a.carrier = b.carrier "
            "WHERE label <> '' AND a.delay / length(b.label) > 1",
        ),
    ],
)
def test_a_comma_with_a_condition_is_a_join(written: str, meant: str) -> None:
    assert rows_sql(written, "p") == rows_sql(meant, "p")


def test_a_comma_without_a_condition_is_a_join_of_each_with_each() -> None:
    comma = f"{PAIR} {A}, {B} WHERE a.delay > 0"
    assert rows_sql(comma, "p") == rows_sql(f"{PAIR} {A} CROSS JOIN {B} WHERE a.delay > 0", "p")


def test_a_column_called_stream_stays_one_behind_a_comma() -> None:
    inner = f"SELECT position, origin AS stream {FROM}"
    query = f"SELECT position IS DISTINCT FROM 3 AS p, stream FROM ({inner}) x"
    assert rows_sql(query, "p") == rows_sql(query.replace(", stream FROM", ", x.stream FROM"), "p")


@pytest.mark.parametrize("side", ["", "LEFT "])
@pytest.mark.parametrize("joined", ["airlines b", f"(SELECT carrier, origin {FROM}) b"])
def test_a_column_by_which_is_joined_is_that_of_the_left_side(side: str, joined: str) -> None:
    query = f"SELECT {{}} AS p, position AS q FROM {A} {side}JOIN {joined} USING (carrier)"
    assert rows_sql(query.format("carrier"), "p") == rows_sql(query.format("a.carrier"), "p")


def test_a_version_is_looked_up_by_a_column_of_both() -> None:
    query = f"SELECT a.position AS p, {{}} AS q, w.wind FROM {A} LEFT JOIN {WEATHER} USING (origin)"
    assert rows_sql(query.format("origin"), "p") == rows_sql(query.format("a.origin"), "p")


@pytest.mark.parametrize("column", ["label", "carrier"])
def test_using_joins_with_the_input_that_has_the_column(column: str) -> None:
    first = f"{FROM} a JOIN airlines b USING (carrier)"
    further = f"(SELECT carrier, label {FROM} d JOIN airlines e USING (carrier)) c"
    using = f"SELECT a.position AS p, c.label AS q {first} JOIN {further} USING ({column})"
    side = "b" if column == "label" else "a"
    on = using.replace(f"c USING ({column})", f"c ON c.{column} = {side}.{column}")
    assert rows_sql(using, "p") == rows_sql(on, "p")


def test_using_a_column_of_two_inputs_is_refused() -> None:
    query = f"{PAIR} {A} JOIN {B} ON a.flight = b.flight JOIN airlines c USING (carrier)"
    with pytest.raises(InvalidRequest, match="carrier is a column of a and of b") as caught:
        rows_sql(query, "p")
    assert caught.value.remedy == "Say which one: ON c.carrier = a.carrier."


COUNTED = f"COUNT(*) AS n {FROM} GROUP BY carrier"
BY_HOUR = f"SELECT carrier, window_start AS s, window_end AS e, {COUNTED}, {{}}"


@pytest.mark.parametrize(
    ("window", "meant"),
    [
        ("window(occurred_at, '10 minutes')", "TUMBLE(occurred_at, '10 minutes')"),
        ("WINDOW(occurred_at, '1 hour', '5 minutes')", "HOP(occurred_at, '5 minutes', '1 hour')"),
        ("window(occurred_at, '1 h', '5 m', '2 m')", "HOP(occurred_at, '5 m', '1 h', '2 m')"),
        ("window(occurred_at, '1 h', '5 m', '-3 m')", "HOP(occurred_at, '5 m', '1 h', '62 m')"),
        ("session_window(occurred_at, '5 minutes')", "SESSION(occurred_at, '5 minutes')"),
    ],
)
def test_windows_of_spark_are_those_of_the_dialect(window: str, meant: str) -> None:
    word = window.partition("(")[0]
    written = BY_HOUR.format(window).replace("window_start AS s", f"{word}.start AS s")
    written = written.replace("window_end AS e", f"{window}.end AS e")
    assert rows_sql(written, "carrier, s") == rows_sql(BY_HOUR.format(meant), "carrier, s")
    unnamed = written.replace(".start AS s", ".start")
    assert rows_sql(unnamed, "carrier, start") == rows_sql(
        BY_HOUR.format(meant).replace("AS s", "AS start"), "carrier, start"
    )


@pytest.mark.parametrize("behind", ["", " FILTER (WHERE delay > 0)"])
@pytest.mark.parametrize(
    ("several", "one"),
    [
        ("PERCENTILE(delay, array({}, {}))", "PERCENTILE(delay, {})"),
        ("percentile_approx(delay, array({}, {}))", "percentile_approx(delay, {})"),
        (
            "PERCENTILE_CONT(array({}, {})) WITHIN GROUP (ORDER BY delay)",
            "PERCENTILE(delay, {})",
        ),
    ],
)
def test_several_percentiles_are_an_array_of_them(several: str, one: str, behind: str) -> None:
    parts = [f"{one.format(part)}{behind}" for part in (0.5, 0.9)]
    meant = f"CASE WHEN ({parts[0]}) IS NOT NULL THEN array({parts[0]}, {parts[1]}) END"
    query = f"SELECT carrier, {{}} AS p {FROM} GROUP BY carrier"
    written = f"{several.format(0.5, 0.9)}{behind}"
    assert rows_sql(query.format(written), "carrier") == rows_sql(query.format(meant), "carrier")


@pytest.mark.parametrize("kind", ["TUMBLE", "HOP", "SESSION"])
def test_bounds_are_functions_of_the_same_window(kind: str) -> None:
    lengths = "INTERVAL '5' MINUTE" + (", INTERVAL '1' HOUR" if kind == "HOP" else "")
    arguments = f"(occurred_at, {lengths})"
    meant = BY_HOUR.format(f"{kind}{arguments}") + " HAVING window_end > window_start"
    written = meant.replace("window_start", f"{kind}_START{arguments}")
    written = written.replace("window_end", f"{kind.lower()}_end{arguments}")
    assert rows_sql(written, "carrier, s") == rows_sql(meant, "carrier, s")


def test_the_last_moment_of_a_window_is_a_millisecond_before_its_end() -> None:
    query = f"SELECT carrier, window_start AS s, {{}} AS e, {COUNTED}, TUMBLE(occurred_at, '1 h')"
    last = query.format("TUMBLE_ROWTIME(occurred_at, '1 h')")
    meant = query.format("timestamp_micros(unix_micros(window_end) - 1000)")
    assert rows_sql(last, "carrier, s") == rows_sql(meant, "carrier, s")


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("TUMBLE", "carrier, window_start, window_end"),
        ("HOP", "window_end, carrier"),
        ("CUMULATE", "window_start, window_end, carrier"),
    ],
)
def test_a_window_of_a_table_is_one_of_its_groups(kind: str, by: str) -> None:
    lengths = "INTERVAL '10' MINUTES" + ("" if kind == "TUMBLE" else ", INTERVAL '1' HOUR")
    items = "x.carrier, window_end AS e, COUNT(*) AS n"
    key = "carrier, e"
    written = (
        f"SELECT {items} FROM TABLE({kind}(TABLE {STREAM}, DESCRIPTOR(occurred_at), {lengths})) x "
        f"WHERE delay > 0 GROUP BY {by} HAVING COUNT(*) > 1"
    )
    meant = (
        f"SELECT {items} {FROM} x WHERE delay > 0 "
        f"GROUP BY carrier, {kind}(occurred_at, {lengths}) HAVING COUNT(*) > 1"
    )
    assert rows_sql(written, key) == rows_sql(meant, key)
    inside, around_it = (f"SELECT carrier, e, n FROM ({each}) y" for each in (written, meant))
    assert rows_sql(inside, key) == rows_sql(around_it, key)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            f"SELECT carrier FROM TABLE(SESSION(TABLE {STREAM} PARTITION BY carrier, "
            "DESCRIPTOR(occurred_at), '1 hour'))",
            "SESSION of a table without GROUP BY",
        ),
        (
            f"SELECT carrier FROM TABLE(SESSION(TABLE {STREAM} PARTITION BY carrier, "
            "DESCRIPTOR(occurred_at), '1 hour')) GROUP BY carrier",
            "SESSION of a table that GROUP BY does not name",
        ),
        (
            f"SELECT carrier FROM TABLE(SESSION(TABLE {STREAM} PARTITION BY origin, "
            "DESCRIPTOR(occurred_at), '1 hour')) GROUP BY carrier, window_start",
            "SESSION of a table by other columns than GROUP BY",
        ),
        (
            f"SELECT carrier, TUMBLE_START(occurred_at, '1 hour') AS s {FROM} GROUP BY carrier",
            "goes with no window in GROUP BY",
        ),
        (
            f"SELECT carrier, TUMBLE_END(occurred_at, '1 hour') AS s {FROM} "
            "GROUP BY carrier, TUMBLE(occurred_at, '2 hours')",
            "goes with no window in GROUP BY",
        ),
        (
            f"SELECT carrier {FROM} GROUP BY carrier, window(occurred_at, '1 h', '1 h', '5 m', 1)",
            "goes with no window in GROUP BY",
        ),
    ],
)
def test_a_window_that_is_none_is_refused_with_the_form(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        rows_sql(query, "carrier")
    assert "select window_start and window_end" in caught.value.remedy


def test_a_window_in_from_is_refused_with_the_form() -> None:
    query = f"SELECT carrier FROM TUMBLE({STREAM.split()[1]}, '1 hour') x GROUP BY carrier"
    with pytest.raises(InvalidRequest, match="is not a window of a table") as caught:
        rows_sql(query, "carrier")
    assert "GROUP BY key, TUMBLE(ts, " in caught.value.remedy


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("FLOOR(occurred_at TO HOUR)", "date_trunc('HOUR', occurred_at)"),
        (
            "CEIL(occurred_at TO DAY)",
            "(CASE WHEN date_trunc('DAY', occurred_at) = occurred_at THEN "
            "date_trunc('DAY', occurred_at) ELSE "
            "date_trunc('DAY', occurred_at) + INTERVAL 1 DAY END)",
        ),
        (
            "SPLIT_INDEX(origin, '--', 2)",
            "(CASE WHEN origin <> '' AND length(origin) - length(replace(origin, '--', '')) >= 4 "
            "THEN split_part(origin, '--', 3) END)",
        ),
        ("MAP['a', delay, 'b', 2]", "map('a', delay, 'b', 2)"),
        (
            "JSON_QUERY(origin, '$.a[0]')",
            "(CASE WHEN schema_of_variant(try_variant_get(try_parse_json(origin), '$.a[0]', "
            "'variant')) LIKE 'OBJECT%' OR schema_of_variant(try_variant_get(try_parse_json("
            "origin), '$.a[0]', 'variant')) LIKE 'ARRAY%' THEN get_json_object(origin, '$.a[0]') "
            "END)",
        ),
        (
            "JSON_EXISTS(origin, '$.a')",
            "(CASE WHEN origin IS NOT NULL THEN "
            "try_variant_get(try_parse_json(origin), '$.a', 'variant') IS NOT NULL END)",
        ),
        ("TO_TIMESTAMP_LTZ(delay, 3)", "timestamp_millis(delay)"),
        ("dateadd(HOUR, 2, occurred_at)", "timestampadd(HOUR, 2, occurred_at)"),
        ("struct(carrier, delay + 1)", "named_struct('carrier', carrier, 'col2', delay + 1)"),
    ],
)
def test_a_form_of_others_is_one_of_spark(written: str, meant: str) -> None:
    query = f"SELECT position AS p, {{}} AS v {FROM}"
    assert rows_sql(query.format(written), "p") == rows_sql(query.format(meant), "p")
