"""What is planned, and what is refused with reason, place and a form that works."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from kernel.errors import InvalidRequest, Misconfigured
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.explain import document, page
from projections.sql.plans.key_steps import WindowBounds, key_steps, keys_sql
from projections.sql.plans.plan import InputKind, Plan, Strategy, plan
from projections.sql.rendering.spark_text import SparkText
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import (
    Column,
    MemoryCatalog,
    Relation,
    catalog_from,
)
from tests.support.oracles.sql_world import CATALOG, planned

FROM = "FROM STREAM events.flight.departed e"
AS_OF = "weather FOR SYSTEM_TIME AS OF e.occurred_at w"
JOIN = f"LEFT JOIN {AS_OF} ON w.origin = e.origin"


def made(query: str, key: str = "flight", options: str = "") -> Plan:
    return planned(f"CREATE PROJECTION p WITH (key = '{key}'{options}) AS {query}")


def test_one_stream_keeps_the_newest_row_of_each_key() -> None:
    found = made(f"SELECT flight, delay + 1 AS d, upper(lower(origin)) AS o {FROM} WHERE delay > 0")
    assert (found.strategy, found.stateful, found.cost) == (
        Strategy.NEWEST,
        False,
        "new rows only",
    )
    assert not found.small, "one case within another is Spark's alone"
    assert found.columns == (
        Column(name="flight", type="STRING"),
        Column(name="d", type="INT"),
        Column(name="o", type="STRING"),
    )
    assert [(one.kind, one.name, one.view) for one in found.inputs] == [
        (InputKind.STREAM, "events.flight.departed", "in_0")
    ]
    assert found.freshness == timedelta(seconds=1)


def test_groups_are_computed_again_within_their_times() -> None:
    found = made(
        f"SELECT carrier, window_start, window_end, AVG(delay) AS mean {FROM} "
        "GROUP BY carrier, HOP(occurred_at, '1 hour', '3 hours')",
        key="carrier, window_start",
    )
    assert (found.strategy, found.stateful, found.small) == (Strategy.KEYS, True, True)
    steps = key_steps(found.tree)
    assert steps.equal == (("carrier", "carrier"),)
    assert steps.window == WindowBounds(
        column="occurred_at", start="window_start", end=None, size_us=3 * 3600 * 10**6
    )
    assert [column.type for column in found.columns] == [
        "STRING",
        "TIMESTAMP",
        "TIMESTAMP",
        "DOUBLE",
    ]


@pytest.mark.parametrize(
    ("select", "key", "start", "end"),
    [
        ("window_start AS s, window_end AS e", "s, e", "s", "e"),
        ("window_end AS e", "e", None, "e"),
    ],
)
def test_time_bounds_follow_the_key(
    select: str, key: str, start: str | None, end: str | None
) -> None:
    found = made(f"SELECT {select} {FROM} GROUP BY TUMBLE(occurred_at, '1 minute')", key=key)
    assert key_steps(found.tree).window == WindowBounds(
        column="occurred_at", start=start, end=end, size_us=60 * 10**6
    )


def test_a_window_over_an_expression_has_no_bounds() -> None:
    found = made(
        f"SELECT window_start {FROM} GROUP BY TUMBLE(occurred_at + INTERVAL 1 HOUR, '1 minute')",
        key="window_start",
    )
    assert key_steps(found.tree).window is None


def test_a_join_as_of_never_sees_a_later_version() -> None:
    found = made(f"SELECT e.flight, w.wind, w.valid_from AS since {FROM} {JOIN}")
    assert (found.strategy, found.stateful) == (Strategy.NEWEST, False)
    assert [(one.kind, one.name) for one in found.inputs] == [
        (InputKind.STREAM, "events.flight.departed"),
        (InputKind.HISTORY, "weather"),
    ]
    (lookup,) = key_steps(found.tree).lookups
    assert (lookup.equal, lookup.time) == ((("origin", "origin"),), "occurred_at")
    for text in (found.rows_sql, keys_sql(lookup.keys, found.key, SparkText())):
        assert "`w.valid_from` <= `e.occurred_at`" in text
        assert "`e.occurred_at` < `w.valid_to`" in text


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT e.flight {FROM} JOIN {AS_OF} ON w.origin = e.origin",
        f"SELECT e.flight {FROM} {JOIN} WHERE w.wind > 1",
    ],
)
def test_rows_that_a_lookup_may_take_back_are_computed_again(query: str) -> None:
    assert made(query).strategy is Strategy.KEYS


def test_identifiers_cannot_leave_their_quotes() -> None:
    relation = Relation(
        name="s", columns=(Column(name="a` b", type="INT"),), key=(), event_time=None
    )
    text = "CREATE PROJECTION p WITH (key = k) AS SELECT x.`a`` b` AS k FROM STREAM s AS `x``y`"
    decl = parse_script(text.replace("SELECT x.", "SELECT ")).projections[0]
    found = plan(decl, MemoryCatalog(streams={"s": relation}))
    assert "`a`` b` AS `k`" in found.rows_sql


def test_names_are_found_in_any_case_and_written_in_their_own() -> None:
    found = made(f"SELECT E.FLIGHT, Delay AS Delay {FROM}", key="flight")
    assert (found.key, [column.name for column in found.columns]) == (
        ("FLIGHT",),
        ["FLIGHT", "Delay"],
    )
    assert "`flight` AS `FLIGHT`" in found.rows_sql


def test_the_fingerprint_follows_the_inputs_but_not_freshness() -> None:
    query = f"SELECT e.flight, w.wind {FROM} {JOIN}"
    first = made(query)
    assert first.fingerprint == made(query, options=", freshness = '1 hour'").fingerprint
    statement = f"CREATE PROJECTION p WITH (key = 'flight') AS {query}"
    sources = parse_script(
        "CREATE SOURCE weather ON demo.public.weather WITH (key = origin, event_time = wind)"
    ).sources
    other = plan(parse_script(statement).projections[0], DeclaredCatalog(CATALOG, sources))
    assert first.fingerprint != other.fingerprint


def test_explain_says_what_is_kept_and_what_late_rows_do() -> None:
    found = made(f"SELECT carrier, SUM(distance) AS total {FROM} GROUP BY carrier", key="carrier")
    text = page(found)
    for part in ("late rows: until", "rounded once", "added to the rows of their groups", "in_0"):
        assert part in text
    answer = json.loads(json.dumps(document(found)))
    assert answer["operators"][-1] == "    stream events.flight.departed (carrier, distance)"
    assert not any("state:" in line for line in answer["operators"])
    assert "no zero with a sign" not in text
    found = made(f"SELECT carrier, MAX(distance) AS most {FROM} GROUP BY carrier", key="carrier")
    assert "no zero with a sign" in page(found)
    assert answer["columns"][1] == {
        "name": "total",
        "type": "DOUBLE",
        "from": ["events.flight.departed.distance"],
    }


REFUSED = [
    ("SELECT * {FROM}", "*", "* does not name columns"),
    ("SELECT e.* {FROM}", "e.*", "* does not name columns"),
    ("SELECT flight, delay + 1 {FROM}", "delay", "an expression without a name"),
    ("SELECT flight, (SELECT MAX(delay) {FROM}) {FROM}", "MAX", "an expression without a name"),
    ("SELECT flight, delay AS flight {FROM}", "delay", "two columns are named flight"),
    ("SELECT flight, delay AS _d {FROM}", "delay", "'_d' cannot name a column"),
    ("SELECT flight, dealy {FROM}", "dealy", "no input has a column dealy; did you mean delay?"),
    ("SELECT flight, e.dealy AS d {FROM}", "e.dealy", "has no column dealy; did you mean delay?"),
    ("SELECT flight, x.delay AS d {FROM}", "x.delay", "x is neither an alias nor a column"),
    ("SELECT flight, e.delay.x AS d {FROM}", "e.delay.x", "delay is INT and has no field x"),
    ("SELECT flight, _time AS t {FROM}", "_time", "no input has a column _time"),
    ("SELECT flight, origin {FROM} {JOIN}", "origin {FROM}", "is a column of e and of w"),
    ("SELECT flight, window_start {FROM}", "window_start", "window_start needs a window"),
    ("SELECT flight, rand() AS r {FROM}", "rand", "gives another value at every run"),
    ("SELECT flight, current_timestamp() AS r {FROM}", "current", "another value at every run"),
    ("SELECT flight, sketchy(origin) AS r {FROM}", "sketchy", "is not in the dialect"),
    ("SELECT flight {FROM} WHERE sum(delay) OVER () > 1", "sum", "in SELECT and QUALIFY"),
    ("SELECT flight, mode(delay) OVER (ORDER BY delay) AS r {FROM}", "mode", "MODE before OVER"),
    ("SELECT flight, rank() OVER () AS r {FROM}", "", "RANK needs ORDER BY in OVER"),
    (
        "SELECT flight, bit_and(distance) AS x {FROM} GROUP BY flight",
        "",
        "BIT_AND is of whole numbers, and this is DOUBLE",
    ),
    (
        "SELECT flight, last_value(delay) OVER (ORDER BY occurred_at DESC RANGE BETWEEN "
        "INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) AS r {FROM}",
        "last_value",
        "LAST_VALUE needs a frame of ROWS",
    ),
    (
        "SELECT flight, LAG(delay, 1, origin) OVER (ORDER BY occurred_at) AS r {FROM}",
        "origin",
        "the default is a literal of the type of the value, INT",
    ),
    (
        "SELECT flight, LAG(delay, 1, 'none') OVER (ORDER BY occurred_at) AS r {FROM}",
        "",
        "the default is a literal of the type of the value, INT",
    ),
    (
        "SELECT flight, LAG(delay, -1) OVER (ORDER BY occurred_at) AS r {FROM}",
        "",
        "the offset is a number, 0 or more",
    ),
    (
        "SELECT flight, SUM(delay) OVER (ORDER BY occurred_at ROWS BETWEEN 1 PRECEDING AND 2 "
        "PRECEDING) AS r {FROM}",
        "",
        "a frame that ends before it begins",
    ),
    (
        "SELECT flight, max(delay) OVER (ORDER BY delay RANGE BETWEEN INTERVAL 1 HOUR PRECEDING "
        "AND CURRENT ROW) AS r {FROM}",
        "max",
        "a RANGE over INT by a length of time",
    ),
    (
        "SELECT flight, max(delay) OVER (ORDER BY occurred_at RANGE BETWEEN INTERVAL 99999999 DAYS "
        "PRECEDING AND CURRENT ROW) AS r {FROM}",
        "max",
        "a RANGE of no fixed length",
    ),
    ("SELECT flight, (SELECT 1) AS r {FROM}", "1", "one value of all its rows"),
    ("SELECT flight, count(*) AS n {FROM}", "count", "an aggregate in n without GROUP BY"),
    ("SELECT flight {FROM} ORDER BY flight", "flight", "ORDER BY has no meaning"),
    ("SELECT flight {FROM} LIMIT 3", "3", "LIMIT without ORDER BY"),
    (
        "SELECT flight {FROM} WHERE flight NOT IN (SELECT flight, origin {FROM})",
        "flight NOT",
        "NOT IN (SELECT …) compares with one column",
    ),
    (
        "SELECT flight {FROM} UNION ALL SELECT delay, origin {FROM}",
        "delay",
        "have 1 and 2 columns",
    ),
    ("SELECT flight {FROM} UNION ALL SELECT delay {FROM}", "delay", "is STRING above and INT"),
    (
        "SELECT 'x' AS flight {FROM} GROUP BY SESSION(occurred_at, '1 hour')",
        "",
        "a session is of a key",
    ),
    ("SELECT flight {FROM} HAVING delay > 1", "delay", "HAVING without GROUP BY"),
    ("SELECT flight {FROM} WHERE count(*) > 1", "count", "cannot stand here"),
    ("SELECT 1 AS flight", "", "a SELECT without FROM"),
    ("SELECT flight FROM STREAM events.fligth", "events", "there is no log named events.fligth"),
    ("SELECT flight FROM events.flight.departed", "events", "is a log, not a table"),
    ("SELECT label AS flight FROM STREAM airlines", "airlines", "is a table, not a log"),
    ("SELECT flight FROM (SELECT 1 AS flight) x", "1", "VALUES behind FROM"),
    ("SELECT flight FROM STREAM s", "s", "is a projection"),
    ("SELECT wind AS flight FROM weather FOR SYSTEM_TIME AS OF x y", "weather", "a joined table"),
    ("SELECT e.flight {FROM} RIGHT {J}", "weather", "AS OF belongs to a joined table"),
    (
        "SELECT e.flight {FROM} JOIN airlines a USING (carrier) RIGHT {J}",
        "weather",
        "RIGHT JOIN of a table as of a time",
    ),
    ("SELECT e.flight {FROM} FULL {J}", "weather", "FULL JOIN of a table as of a time"),
    (
        "SELECT e.flight {FROM} FULL JOIN airlines a USING (carrier) JOIN airlines b "
        "USING (carrier)",
        "airlines b",
        "USING (carrier) behind a FULL JOIN by it",
    ),
    (
        "SELECT e.flight {FROM} WHERE NOT EXISTS (SELECT COUNT(*) FROM airlines a "
        "WHERE a.carrier = e.carrier)",
        "",
        "EXISTS of an aggregate",
    ),
    (
        "SELECT flight, LAG(now()) OVER (PARTITION BY flight ORDER BY occurred_at) AS x {FROM}",
        "now",
        "another value at every run",
    ),
    ("SELECT e.flight {FROM} JOIN {AS_OF}", "weather", "equates nothing: a version is"),
    ("SELECT e.flight {FROM} JOIN airlines e ON 1 = 1", "airlines", "two inputs are named e"),
    ("SELECT e.flight {FROM} JOIN {AS_OF} ON w.wind = e.delay", "weather", "missing: origin"),
    ("SELECT e.flight {FROM} JOIN {AS_OF} ON w.origin > e.origin", "weather", "is of a key"),
    ("SELECT e.flight {FROM} JOIN {AS_OF} ON w.origin = e.delay", "w.origin", "STRING with INT"),
    (
        "SELECT e.flight {FROM} JOIN weather FOR SYSTEM_TIME AS OF w.hour w ON w.origin = e.origin",
        "w.hour",
        "AS OF must be a time of e",
    ),
    (
        "SELECT flight {FROM} JOIN weather FOR SYSTEM_TIME AS OF e.delay w ON w.origin = e.origin",
        "e.delay",
        "AS OF is INT, not a time",
    ),
    (
        "SELECT e.flight {FROM} JOIN weather VERSION AS OF 3 w ON w.origin = e.origin",
        "weather",
        "only FOR SYSTEM_TIME AS OF",
    ),
    (
        "SELECT e.flight {FROM} {JOIN} JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at a "
        "ON a.origin = w.origin",
        "a.origin",
        "this condition of a reads another joined table",
    ),
    ("SELECT w.origin AS flight {FROM} {JOIN}", "w.origin AS", "comes from a joined table"),
    ("SELECT distance AS flight {FROM}", "distance", "is a floating-point number"),
    ("SELECT flight, n AS m {FROM} GROUP BY flight", "n AS", "no input has a column n"),
    ("SELECT flight {FROM} GROUP BY flight, TUMBLE(delay, '1 hour')", "delay", "INT, not a time"),
    ("SELECT flight {FROM} GROUP BY flight, TUMBLE(occurred_at)", "TUMBLE", "has 1 arguments"),
    (
        "SELECT flight {FROM} GROUP BY flight, TUMBLE(occurred_at, '1 month')",
        "'1 month'",
        "is no length of a window",
    ),
    (
        "SELECT flight {FROM} GROUP BY flight, HOP(occurred_at, '2 hours', '1 hour')",
        "HOP",
        "the step 2 hours is longer than the size 1 hour",
    ),
    (
        "SELECT flight {FROM} GROUP BY flight, CUMULATE(occurred_at, '2 hours', '5 hours')",
        "CUMULATE",
        "5 hours is not a multiple of 2 hours",
    ),
    (
        "SELECT flight {FROM} GROUP BY flight, HOP(occurred_at, '1 second', '1 day')",
        "HOP",
        "every row would be in 86400 windows",
    ),
    (
        "SELECT flight {FROM} GROUP BY 1, TUMBLE(occurred_at, '1 s'), TUMBLE(occurred_at, '2 s')",
        "TUMBLE(occurred_at, '2",
        "two windows in one GROUP BY",
    ),
    (
        "SELECT flight {FROM} {JOIN} GROUP BY flight, TUMBLE(w.hour, '1 s')",
        "w.hour",
        "must come from events.flight.departed alone",
    ),
    ("SELECT flight, TUMBLE(occurred_at, '1 s') AS x {FROM}", "TUMBLE", "stands in GROUP BY only"),
    (
        "SELECT flight {FROM} GROUP BY CUBE (flight, origin, carrier), CUBE (delay, position)",
        "flight",
        "32 sets of groups",
    ),
    (
        "SELECT flight {FROM} GROUP BY CUBE (flight, origin, carrier, delay, position)",
        "flight",
        "32 sets of groups",
    ),
    (
        "SELECT flight, GROUPING(flight, origin) AS g {FROM} GROUP BY CUBE (flight, origin)",
        "GROUPING(flight",
        "GROUPING of 2 expressions",
    ),
    ("SELECT flight, (SELECT MAX(delay) + wind {FROM}) AS m {FROM}", "MAX", "one value of all"),
    ("SELECT v.k AS flight FROM (VALUES (1)) AS v(k)", "1", "VALUES behind FROM"),
    (
        "SELECT flight {FROM} INTERSECT ALL SELECT delay {FROM}",
        "delay",
        "of a INTERSECT ALL is STRING above and INT",
    ),
    ("SELECT flight {FROM} GROUP BY 3", "3", "there are 1 columns"),
    ("SELECT flight, approx_top_k(delay) AS x {FROM} GROUP BY 1", "approx", "order of arrival"),
    ("SELECT flight, sum(max(delay)) AS x {FROM} GROUP BY flight", "max", "MAX(…) inside SUM(…)"),
    (
        "SELECT flight, max(delay) AS delay {FROM} GROUP BY flight HAVING delay > 1",
        "delay > 1",
        "a column of the input and a name given by AS",
    ),
]


@pytest.mark.parametrize(("query", "at", "reason"), REFUSED, ids=[each[2] for each in REFUSED])
def test_what_is_not_compiled_is_refused_at_its_place(query: str, at: str, reason: str) -> None:
    parts = {
        "FROM": FROM,
        "JOIN": JOIN,
        "AS_OF": AS_OF,
        "J": f"JOIN {AS_OF} ON w.origin = e.origin",
    }
    text = f"CREATE PROJECTION p WITH (key = flight) AS\n{query.format(**parts)}"
    sources = parse_script(
        "CREATE SOURCE weather ON demo.public.weather WITH (key = origin, event_time = hour);"
        "CREATE SOURCE airlines ON demo.public.airlines;"
    ).sources
    catalog = MemoryCatalog(
        streams=CATALOG.streams,
        histories=CATALOG.histories,
        latests=CATALOG.latests,
        projections={"s": Relation(name="s", columns=(), key=(), event_time=None)},
    )
    decl = parse_script(text, origin="a.sql").projections[0]
    with pytest.raises(InvalidRequest) as caught:
        plan(decl, DeclaredCatalog(catalog, sources))
    assert reason in caught.value.message
    assert caught.value.remedy
    if at and at != "*":
        column = text.splitlines()[1].rindex(at.format(**parts)) + 1
        assert (caught.value.fields["line"], caught.value.fields["column"]) == (2, column)


@pytest.mark.parametrize(
    ("query", "key", "reason", "fix"),
    [
        (f"SELECT flight {FROM}", "delay", "the SELECT gives no column delay", "Add delay"),
        (
            f"SELECT carrier, window_start, count(*) AS n {FROM} "
            "GROUP BY carrier, TUMBLE(occurred_at, '1 hour')",
            "carrier",
            "GROUP BY TUMBLE is not in the key",
            "key = 'carrier, window_start'",
        ),
        (
            f"SELECT carrier AS c, origin, count(*) AS n {FROM} GROUP BY carrier, origin",
            "c",
            "GROUP BY origin is not in the key",
            "key = 'c, origin'",
        ),
        (
            f"SELECT carrier, flight, count(*) AS n {FROM} GROUP BY carrier",
            "carrier, flight",
            "key column flight is not in GROUP BY",
            "key = 'carrier'",
        ),
        (
            f"SELECT carrier, window_start {FROM} GROUP BY 1, CUMULATE(occurred_at, '1 s', '1 m')",
            "carrier, window_start",
            "windows of CUMULATE differ in window_end",
            "key = 'carrier, window_end'",
        ),
        (
            f"SELECT w.wind, count(*) AS n {FROM} {JOIN} GROUP BY w.wind",
            "wind",
            "comes from a joined table",
            "Use columns of e",
        ),
    ],
)
def test_a_key_that_does_not_hold_is_refused(query: str, key: str, reason: str, fix: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        made(query, key=key)
    assert fix in caught.value.remedy


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (", sink = 'x'", "sink = 'x' names no topic and no category of events"),
        (", sink = 'topic:a b'", "names no topic and no category of events"),
        (", sink = 'topic:..'", "names no topic and no category of events"),
        (", sink_partitions = '3'", "sink_partitions is said of no topic"),
        (", sink = 'event:A-b'", "names no topic and no category of events"),
        (", sink = 'event:x', sink_partitions = '3'", "sink_partitions is said of no topic"),
        (", sink = 'topic:x', sink_partitions = '0'", "is no number of partitions"),
        (", sink = 'topic:x', sink_partitions = '²'", "is no number of partitions"),
    ],
)
def test_a_sink_that_cannot_be_is_refused(options: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        made(f"SELECT flight {FROM}", options=options)


def test_the_plan_says_what_a_sink_does() -> None:
    plain = made(f"SELECT flight {FROM}")
    sent = made(f"SELECT flight {FROM}", options=", sink = 'topic:x', sink_partitions = '3'")
    assert [note for note in sent.notes if note not in plain.notes] == [
        "each change goes to the Kafka topic x once, as Avro under its key: the new row, for a row "
        "that is gone a null (a tombstone); a swap of generations sends what differs"
    ]
    assert sent.fingerprint == plain.fingerprint


def test_an_external_topic_is_the_stream_of_its_name() -> None:
    script = parse_script(
        "CREATE SOURCE s (k INT) WITH (topic = t, format = json);"
        "CREATE PROJECTION p WITH (key = k) AS SELECT k FROM STREAM s"
    )
    columns = (Column(name="k", type="INT"),)
    topic = Relation(name="topics.s", columns=columns, key=(), event_time="kafka_timestamp")
    known = MemoryCatalog(streams={"topics.s": topic})
    made = plan(script.projections[0], DeclaredCatalog(known, script.sources))
    assert [each.name for each in made.inputs] == ["topics.s"]


def test_a_declared_source_must_fit_its_table() -> None:
    script = parse_script(
        "CREATE SOURCE s ON demo.public.weather WITH (key = 'orign');"
        "CREATE PROJECTION p WITH (key = flight) AS SELECT e.flight FROM STREAM "
        "events.flight.departed e JOIN s FOR SYSTEM_TIME AS OF e.occurred_at w ON w.origin = 1"
    )
    with pytest.raises(InvalidRequest, match="has no column orign"):
        plan(script.projections[0], DeclaredCatalog(CATALOG, script.sources))


def test_a_declared_category_is_another_name_for_its_log() -> None:
    script = parse_script(
        "CREATE SOURCE departures ON events.flight WITH (lateness = '1 hour');"
        "CREATE PROJECTION p WITH (key = k) AS SELECT k FROM STREAM departures"
    )
    log = Relation(
        name="events.flight", columns=(Column(name="k", type="INT"),), key=(), event_time=None
    )
    found = plan(
        script.projections[0],
        DeclaredCatalog(MemoryCatalog(streams={"events.flight": log}), script.sources),
    )
    assert found.inputs[0].name == "events.flight"


def test_a_field_under_a_name_of_our_own_is_refused() -> None:
    log = Relation(name="s", columns=(Column(name="_time", type="INT"),), key=(), event_time=None)
    decl = parse_script("CREATE PROJECTION p WITH (key = k) AS SELECT k FROM STREAM s").projections
    with pytest.raises(InvalidRequest, match="has a column _time"):
        plan(decl[0], MemoryCatalog(streams={"s": log}))


def test_catalog_documents_are_read_or_refused() -> None:
    found = catalog_from(
        {"streams": {"events.a": {"columns": {"k": "INT"}, "key": ["k"], "event_time": "t"}}}
    )
    assert found.stream("events.a") == Relation(
        name="events.a", columns=(Column(name="k", type="INT"),), key=("k",), event_time="t"
    )
    for wrong in ({"tables": {}}, {"streams": []}, {"streams": {"a": {}}}):
        with pytest.raises(Misconfigured, match="catalog document"):
            catalog_from(wrong)


@pytest.mark.parametrize(
    ("side", "either"),
    [
        ("FULL", "a.carrier, b.carrier"),
        ("FULL OUTER", "a.carrier, b.carrier"),
        ("RIGHT", "b.carrier, a.carrier"),
    ],
)
def test_a_column_of_both_sides_is_the_value_of_either(side: str, either: str) -> None:
    join = f"{FROM.removesuffix('e')} a {side} JOIN airlines b USING (carrier)"
    short, long = (
        made(f"SELECT {written} AS flight {join}").rows_sql
        for written in ("carrier", f"COALESCE({either})")
    )
    assert short == long


def test_a_column_of_either_side_and_of_another_input_is_ambiguous() -> None:
    join = f"{FROM.removesuffix('e')} a FULL JOIN airlines b USING (carrier)"
    with pytest.raises(InvalidRequest, match="carrier is a column of"):
        made(f"SELECT carrier AS flight {join} JOIN airlines c ON c.label = a.origin")


@pytest.mark.parametrize(
    ("key", "copied", "strategy"),
    [
        ("id", ("id",), Strategy.NEWEST),
        ("shop", ("id",), Strategy.KEYS),
        ("shop", None, Strategy.NEWEST),
        ("id", (), Strategy.KEYS),
    ],
)
def test_rows_of_one_copy_share_a_place_and_are_told_apart_by_all_that_they_hold(
    key: str, copied: tuple[str, ...] | None, strategy: Strategy
) -> None:
    kinds = {"id": "BIGINT", "shop": "STRING", "tags": "ARRAY<STRING>", "more": "MAP<STRING, INT>"}
    columns = tuple(Column(name=n, type=t) for n, t in kinds.items())
    relation = Relation(name="s", columns=columns, key=(), event_time=None, copied=copied)
    statement = (
        f"CREATE PROJECTION p WITH (key = {key}) AS "
        "SELECT id, shop, tags, more, slice(tags, 1, 1)[0] AS tag FROM STREAM s"
    )
    found = plan(parse_script(statement).projections[0], MemoryCatalog(streams={"s": relation}))
    assert found.strategy is strategy
    for value in ("`shop`", "`tags`", "to_json(struct(`more`))", "to_json(struct(`tag`))"):
        assert (f"{value} DESC" in found.rows_sql) is (strategy is Strategy.KEYS)


def test_the_newest_of_several_rows_in_one_place_is_told_by_its_value_whatever_its_type() -> None:
    kinds = {"id": "BIGINT", "tags": "ARRAY<STRING>", "more": "MAP<STRING, INT>"}
    columns = tuple(Column(name=n, type=t) for n, t in kinds.items())
    relation = Relation(name="s", columns=columns, key=(), event_time=None, copied=())
    statement = "CREATE PROJECTION p WITH (key = id) AS SELECT id, tags, more FROM STREAM s"
    decl = parse_script(f"{statement} GROUP BY id").projections[0]
    text = plan(decl, MemoryCatalog(streams={"s": relation})).rows_sql
    for name, order in (("__a0", "`__a0`"), ("__a1", "to_json(struct(`__a1`))")):
        assert f"`{name}` IS NOT NULL, {order})" in text
