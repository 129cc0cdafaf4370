"""Plans of several steps: how they are kept, what `explain` says, what only Spark computes."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp, parse_one

from kernel.errors import ContractViolation, InvalidRequest
from projections.run.database import TEXT
from projections.run.dataflow import Dataflow
from projections.run.key_runs import all_sql
from projections.sql.operators.shape import ORDER
from projections.sql.operators.tree import Join, Map, Scan, scans, walk
from projections.sql.plans.explain import document, page
from projections.sql.plans.key_steps import rows_sql
from projections.sql.plans.plan import Plan, Strategy, plan
from projections.sql.rendering.batch import whole
from projections.sql.statements.parse import parse_script
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from tests.support.oracles.region_world import Kept, stream_rows, tree_of
from tests.support.oracles.sql_world import Fact, Reading, World, planned

FROM = "FROM STREAM events.flight.departed"


def made(query: str, key: str = "flight") -> Plan:
    return planned(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}")


def test_explain_names_region_need_and_state_of_each_operator() -> None:
    found = made(
        f"SELECT flight, window_start, COUNT(*) AS n {FROM} WHERE delay > 0 "
        "GROUP BY flight, SESSION(occurred_at, '10 minutes')",
        key="flight, window_start",
    )
    assert (found.strategy, found.stateful, found.cost) == (
        Strategy.REGIONS,
        True,
        "rows of the touched regions",
    )
    assert document(found)["operators"] == [
        "one row of each flight, window_start, by itself",
        "  sessions with a gap of 10 minutes | region: the sessions that a row joins, extends or "
        "splits; needs their rows | state: its input (2 columns) and what it gave out",
        "    filter by 2 conditions",
        "      stream events.flight.departed (flight, delay, occurred_at)",
    ]
    told = page(found)
    assert "  operators\n    one row of each flight, window_start, by itself\n" in told
    assert "engine: small changes in the pipeline's own process" in told
    assert "changed rows" not in told


COUNT = f"COUNT(*) AS n {FROM} GROUP BY flight"


@pytest.mark.parametrize(
    ("query", "key", "unique"),
    [
        (f"SELECT flight, {COUNT}, SESSION(occurred_at, '1 hour')", "flight", False),
        (
            f"SELECT flight, window_end AS e, {COUNT}, SESSION(occurred_at, '1 hour')",
            "flight, e",
            True,
        ),
        (f"SELECT DISTINCT flight, origin {FROM}", "flight, origin", True),
        (f"SELECT DISTINCT flight, origin {FROM}", "flight", False),
        (f"SELECT n, flight FROM (SELECT flight, {COUNT}) x", "flight", True),
        (f"SELECT n, flight FROM (SELECT flight, {COUNT}) x", "n", False),
        (f"SELECT concat(flight, '!') AS f FROM (SELECT flight, {COUNT}) x", "f", False),
        (
            "SELECT flight, s FROM (SELECT flight, window_start AS s, "
            f"{COUNT}, HOP(occurred_at, '1 hour', '2 hours')) x",
            "flight, s",
            True,
        ),
        (
            "SELECT flight, s FROM (SELECT flight, window_start AS s, "
            f"{COUNT}, CUMULATE(occurred_at, '1 hour', '2 hours')) x",
            "flight, s",
            False,
        ),
        (f"SELECT flight {FROM} UNION ALL SELECT flight {FROM}", "flight", False),
    ],
)
def test_only_groups_with_their_own_key_need_no_choice(query: str, key: str, unique: bool) -> None:
    tree = made(query, key).tree
    assert tree is not None
    assert tree.unique == unique


@pytest.mark.parametrize("bound", ["window_start", "window_end"])
def test_groups_of_final_windows_with_their_own_key_need_no_choice(bound: str) -> None:
    query = f"SELECT flight, {bound} AS b, {COUNT}, HOP(occurred_at, '1 hour', '2 hours')"
    tree = planned(f"CREATE PROJECTION p WITH (key = 'flight, b', emit = 'final') AS {query}").tree
    assert tree is not None
    assert tree.unique


def test_a_range_says_how_far_a_row_reaches() -> None:
    found = made(
        "SELECT position, COUNT(*) OVER (PARTITION BY flight ORDER BY occurred_at RANGE BETWEEN "
        f"INTERVAL 90 MINUTES PRECEDING AND CURRENT ROW) AS n {FROM}",
        key="position",
    )
    assert "1 hour 30 minutes of the partition after a row; needs 1 hour 30 minutes before" in (
        page(found)
    )


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("initcap(origin)", "INITCAP(`origin`)"),
        ("lower(upper(origin))", "LOWER(UPPER(`origin`))"),
        ("CAST(delay AS FLOAT)", "CAST(`delay` AS FLOAT)"),
        ("to_json(struct(origin, delay))", "TO_JSON(NAMED_STRUCT('origin', `origin`"),
        ("transform(array(delay), x -> x + delay)[0]", "TRANSFORM(ARRAY(`delay`), x ->"),
        ("regexp_replace(origin, 'x*', '-')", "REGEXP_REPLACE(`origin`, 'x*', '-')"),
        ("origin > 1", "`origin` > 1"),
    ],
)
def test_what_only_spark_computes_is_computed_whole_and_named(value: str, named: str) -> None:
    found = made(f"SELECT flight, {value} AS v FROM (SELECT flight, origin, delay {FROM}) x")
    assert (found.strategy, found.cost) == (Strategy.WHOLE, "everything, at every run")
    assert "engine: Spark, which computes everything at every run, because of " in found.notes[0]
    assert named in found.notes[0]


def test_a_stream_joined_without_a_bound_is_said_to_be_kept_whole() -> None:
    join = f"SELECT a.flight {FROM} a JOIN STREAM events.flight.departed b ON b.flight = a.flight"
    assert "a join of streams without a bound in time keeps both sides whole" in made(join).notes
    bounded = f"{join} AND b.occurred_at < a.occurred_at"
    assert not any("without a bound" in note for note in made(bounded).notes)


def test_only_columns_that_are_read_are_scanned_and_conditions_come_before_joins() -> None:
    found = made(
        f"SELECT a.flight, b.delay AS d {FROM} a JOIN STREAM events.flight.departed b "
        "ON b.flight = a.flight AND b.position > a.position WHERE a.carrier = 'AA' AND b.delay > 0"
    )
    assert found.tree is not None
    first, second = scans(found.tree)
    assert {each.name for each in first.columns} == {"flight", "carrier", "position"}
    assert {each.name for each in second.columns} == {"flight", "delay", "position"}
    (join,) = (node for node in walk(found.tree) if isinstance(node, Join))
    assert isinstance(join.left, Map)
    assert isinstance(join.left.input, Scan)
    assert len(join.left.where) == 1


def test_a_key_of_a_group_may_move_but_is_no_floating_point_number() -> None:
    inner = f"SELECT flight, COUNT(*) AS n, SUM(distance) AS far {FROM} GROUP BY flight"
    assert made(f"SELECT n, COUNT(*) AS c FROM ({inner}) x GROUP BY n", key="n").key == ("n",)
    with pytest.raises(InvalidRequest, match="key column far is a floating-point number"):
        made(f"SELECT far, n FROM ({inner}) x", key="far")
    with pytest.raises(InvalidRequest, match="key column far is a floating-point number"):
        made(f"SELECT far, COUNT(*) AS c FROM ({inner}) x GROUP BY far", key="far")


OVERFLOWS = ["delay * 2147483647", "delay + 2147483647", "CAST(delay + 2147483647L AS INT)"]
COMPARED = [f"{value} {sign}" for value in OVERFLOWS for sign in ("> 3", "= 3", "IN (3, 4)")]
OTHERS = [
    *("3 < delay + 2147483647", "-delay - 2147483647 < 3", "delay + 2147483647 IN (3)"),
    *("delay + 2147483647 BETWEEN 3 AND 4", "CAST(delay + 2147483647 AS BIGINT) > 3"),
    "CASE delay + 2147483647 WHEN 3 THEN 1 ELSE 0 END",
    "CASE 3 WHEN delay + 2147483647 THEN 1 ELSE 0 END",
]
ASKED_FOR_NULL = [
    *(
        "delay + 2147483647 IS NULL",
        "delay * 2147483647 IS NOT NULL",
        "isnull(-delay - 2147483647)",
    ),
    *("isnotnull(delay + 2147483647)", "nvl2(delay + 2147483647, 1, 2)"),
    "delay + 2147483647 <=> NULL",
]


@pytest.mark.parametrize(
    "value",
    ["position / delay", "position % delay", *OVERFLOWS, *COMPARED, *OTHERS, *ASKED_FOR_NULL],
)
def test_what_spark_refuses_in_a_row_is_refused_here_too(value: str) -> None:
    found = made(f"SELECT flight, {value} AS v FROM (SELECT flight, position, delay {FROM}) x")
    assert found.tree is not None
    delay = 0 if "position" in value else 3
    fact = Fact(1, 1, "f1", "AA", "JFK", 5, delay, 0.5)
    flow = Dataflow(found.tree)
    (scan,) = scans(found.tree)
    flow.add(scan, [stream_rows(World(facts=(fact,), readings=()))])
    with pytest.raises(ContractViolation, match="the query cannot be computed: "):
        flow.round()
    flow.close()


def test_a_round_without_news_changes_nothing() -> None:
    found = made(f"SELECT flight, COUNT(*) AS n FROM (SELECT flight {FROM}) x GROUP BY flight")
    assert found.tree is not None
    flow = Dataflow(found.tree)
    assert flow.round().num_rows == 0
    empty: list[pa.Table] = []
    flow.add(scans(found.tree)[0], empty)
    assert flow.round().num_rows == 0
    flow.close()


def test_facts_are_taken_back_after_rounds_in_which_they_only_came() -> None:
    # A list is not added to: its operator keeps the rows.
    rows = f"(SELECT flight, origin {FROM}) x"
    listed = "STRING_AGG(origin, ',') AS origins"
    found = made(f"SELECT flight, COUNT(*) AS n, {listed} FROM {rows} GROUP BY flight")
    assert found.tree is not None
    flow = Dataflow(found.tree)
    (scan,) = scans(found.tree)
    facts = [
        stream_rows(World(facts=(Fact(n, 1, "f1", "AA", "JFK", 5, 0, 0.5),), readings=()))
        for n in (1, 2, 3)
    ]
    told = []
    for number, weight in ((0, 1), (1, 1), (1, -1), (2, 1), (0, -1), (2, -1)):
        flow.add(scan, [facts[number]], weight=weight)
        told.append(sorted((row["n"], row["_w"]) for row in flow.round().to_pylist()))
    more, less = [(1, -1), (2, 1)], [(1, 1), (2, -1)]
    assert told == [[(1, 1)], more, less, more, less, [(1, -1)]]
    flow.close()


def rows_of(query: str, fact: Fact) -> list[dict[str, object]]:
    plan = made(query)
    flow = Dataflow(plan.tree)
    flow.add(scans(plan.tree)[0], [stream_rows(World(facts=(fact,), readings=()))])
    rows = flow.round().to_pylist()
    flow.close()
    return rows


@pytest.mark.parametrize(
    ("delay", "quick", "slow"), [(0, False, True), (1, True, True), (None, None, None)]
)
def test_conditions_are_asked_from_left_to_right(
    delay: int | None, quick: bool | None, slow: bool | None
) -> None:
    """As Spark does: what stands behind one that decides is no error."""
    (row,) = rows_of(
        "SELECT flight, (delay <> 0 AND 6 / delay > 2) AS quick, "
        f"(delay = 0 OR 6 / delay > 2) AS slow {FROM} "
        "WHERE delay IS NULL OR delay < 3 OR 6 / (delay - delay) > 1",
        Fact(1, 1, "f1", "AA", "JFK", 5, delay, 0.5),
    )
    assert (row["quick"], row["slow"]) == (quick, slow)


def test_conditions_of_a_join_are_asked_from_left_to_right() -> None:
    """One that is an error in some pairs is asked where those before it hold."""
    join = f"{FROM} a LEFT JOIN STREAM events.flight.departed b ON b.flight = a.flight"
    plan = made(
        f"SELECT a.position AS own, b.position AS other {join} "
        "AND b.position > a.position AND CAST(b.carrier AS BIGINT) > a.position",
        key="own",
    )
    facts = tuple(
        Fact(n, 1, "f1", carrier, "JFK", 5, 0, 0.5) for n, carrier in enumerate(["AA", "7"])
    )
    flow = Dataflow(plan.tree)
    for scan in scans(plan.tree):
        flow.add(scan, [stream_rows(World(facts=facts, readings=()))])
    assert {row["own"]: row["other"] for row in flow.round().to_pylist()} == {0: 1, 1: None}
    flow.close()


@pytest.mark.parametrize(
    ("conditions", "others"),
    [
        ("a.carrier <> 'AA' AND CAST(a.carrier AS BIGINT) = b.position + 6", {1: 1}),
        ("b.carrier <> 'AA' AND b.position = CAST(b.carrier AS BIGINT) - 6", {0: 1, 1: 1}),
        ("b.carrier <> 'AA' AND CAST(b.carrier AS BIGINT) > 5", {0: 1, 1: 1}),
        ("b.position > a.position AND CAST(b.carrier AS BIGINT) > 5", {0: 1}),
        ("b.position < a.position AND CAST(a.carrier AS BIGINT) > 5", {1: 0}),
    ],
)
@pytest.mark.parametrize("kind", ["LEFT", "INNER"])
def test_conditions_on_one_side_of_a_join_are_asked_in_their_order(
    kind: str, conditions: str, others: dict[int, int | None]
) -> None:
    """Those of one side are asked before rows are paired where they are no error in any row."""
    plan = made(
        f"SELECT a.position AS own, b.position AS other {FROM} a "
        f"{kind} JOIN STREAM events.flight.departed b ON b.flight = a.flight AND {conditions}",
        key="own",
    )
    facts = tuple(
        Fact(n, 1, "f1", carrier, "JFK", 5, 0, 0.5) for n, carrier in enumerate(["AA", "7"])
    )
    flow = Dataflow(plan.tree)
    for scan in scans(plan.tree):
        flow.add(scan, [stream_rows(World(facts=facts, readings=()))])
    wanted = others if kind == "INNER" else {0: None, 1: None} | others
    assert {row["own"]: row["other"] for row in flow.round().to_pylist()} == wanted
    flow.close()


def test_a_condition_on_one_side_is_asked_of_rows_that_are_paired() -> None:
    join = "JOIN STREAM events.flight.departed b ON b.flight = a.flight"
    for side in "ab":
        plan = made(
            f"SELECT a.position AS own {FROM} a {join} AND a.carrier = b.origin "
            f"AND 6 / {side}.delay > 1",
            key="own",
        )
        facts = (Fact(1, 1, "f1", "AA", "AA", 5, 2, 0.5), Fact(2, 1, "f2", "AA", "JFK", 5, 0, 0.5))
        flow = Dataflow(plan.tree)
        for scan in scans(plan.tree):
            flow.add(scan, [stream_rows(World(facts=facts, readings=()))])
        assert [row["own"] for row in flow.round().to_pylist()] == [1]
        flow.close()


AS_OF = "JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at w ON w.origin = e.origin"


@pytest.mark.parametrize(
    ("kind", "conditions", "winds"),
    [
        ("LEFT", "w.wind <> e.delay AND 10 / (w.wind - e.delay) > 0", {2: 5}),
        ("INNER", "w.wind <> e.delay AND 10 / (w.wind - e.delay) > 0", {2: 5}),
        # Of a row that no version holds for nothing is asked, nor of a version that has ended.
        ("LEFT", "10 / e.delay > 0", {1: 3, 2: 5}),
        ("LEFT", "6 / (w.wind - 8 + e.delay) > 0", {2: 5}),
        ("LEFT", "6 / w.wind > 0", {1: 3, 2: 5}),
    ],
)
def test_a_version_is_looked_up_before_it_is_asked_what_it_has(
    kind: str, conditions: str, winds: dict[int, int | None]
) -> None:
    statement = (
        "CREATE PROJECTION p WITH (key = 'position') AS "
        f"SELECT e.position, w.wind {FROM} e {kind} {AS_OF} AND {conditions}"
    )
    facts = (
        Fact(1, 1, "f1", "AA", "JFK", 15, 3, 0.5),
        Fact(2, 1, "f2", "AA", "JFK", 25, 4, 0.5),
        Fact(3, 1, "f3", "AA", "LGA", 25, 0, 0.5),
        Fact(4, 1, "f4", "AA", "JFK", 35, 3, 0.5),
    )
    winds_of = enumerate([(10, 3), (20, 5), (30, None), (40, 0)])
    readings = tuple(Reading(n, 1, "JFK", minute, wind) for n, (minute, wind) in winds_of)
    now = World(facts=facts, readings=readings)
    tree = tree_of(statement)
    assert 'CASE WHEN ("__met") THEN ' in rows_sql(tree, TEXT)
    table = Kept(tree)
    table.epoch(now.until(0), now)
    table.close()
    found = {row["position"]: row["wind"] for row in table.rows.values()}
    assert found == (winds if kind == "INNER" else dict.fromkeys(range(1, 5)) | winds)


def test_a_row_without_a_time_is_of_no_session_and_goes_as_it_came() -> None:
    plan = made(
        f"SELECT flight, window_start, COUNT(*) AS n {FROM} "
        "GROUP BY flight, SESSION(CASE WHEN delay > 0 THEN occurred_at END, '10 minutes')",
        key="flight, window_start",
    )
    (scan,) = scans(plan.tree)
    timeless, timed = (
        stream_rows(World(facts=(Fact(1, 1, "f1", "AA", "JFK", 5, delay, 0.5),), readings=()))
        for delay in (None, 3)
    )
    flow = Dataflow(plan.tree)
    flow.add(scan, [timeless])
    assert flow.round().num_rows == 0
    flow.add(scan, [timeless], weight=-1)
    flow.add(scan, [timed])
    assert [(row["n"], row["_w"]) for row in flow.round().to_pylist()] == [(1, 1)]
    flow.close()


def test_a_long_chain_of_conditions_is_computed() -> None:
    asked = " OR ".join(f"delay = {number}" for number in range(400))
    fact = Fact(1, 1, "f1", "AA", "JFK", 5, 399, 0.5)
    assert len(rows_of(f"SELECT flight {FROM} WHERE {asked}", fact)) == 1


def test_the_type_of_each_part_is_asked_once() -> None:
    asked: list[str] = []

    def kind(node: exp.Expr) -> str:
        asked.append(node.name)
        return "DECIMAL(10,2)"

    names = [f"a{number}" for number in range(25)]
    assert type_of(parse_one(" + ".join(names), dialect="spark"), kind) == "DECIMAL(34,2)"
    assert asked == names


def test_a_groups_place_is_that_of_its_greatest_row_whatever_is_null_in_it() -> None:
    """All of it is one aggregate: three of them go through the rows three times."""
    moments = ("NULL", "'2013-01-01'", "'2013-01-02'", "'infinity'", "'-infinity'")
    numbers = ("NULL", "-1", "0", "5")
    places = [f"({t}, {a}, {b})" for t in moments for a in numbers for b in numbers]
    pairs = ", ".join(
        f"({n}, {row[1:]}"
        for n, (one, two) in enumerate((one, two) for one in places for two in places[::7])
        for row in (one, two)
    )
    columns = zip(("t", "a", "b"), ("TIMESTAMP", "BIGINT", "BIGINT"), ORDER, strict=True)
    types = ", ".join(f"CAST({value} AS {kind}) AS {name}" for value, kind, name in columns)
    rows = f"(SELECT n, {types} FROM (VALUES {pairs}) AS v(n, t, a, b))"
    one = ", ".join(TEXT.of_greatest_row(name, ORDER) for name in ORDER)
    each = ", ".join(TEXT.of_greatest(name, TEXT.row(ORDER)) for name in ORDER)
    with duckdb.connect() as connection:
        found = [
            connection.execute(f"SELECT n, {calls} FROM {rows} GROUP BY n ORDER BY n").fetchall()
            for calls in (one, each)
        ]
        plan = connection.execute(f"EXPLAIN SELECT n, {one} FROM {rows} GROUP BY n").fetchall()
    assert found[0] == found[1]
    assert len(found[0]) > 900
    assert str(plan).count("max(#") == 1


def test_a_query_is_written_anew_where_an_input_has_another_type() -> None:
    """An INT that became a DOUBLE leaves all of a plan as it was, but not what engines are asked.

    What a CAST of it makes is cut off, where the number as it stands would be rounded.
    """

    def of(kind: str) -> Plan:
        columns = (Column(name="k", type="STRING"), Column(name="x", type=kind))
        relation = Relation(name="r", columns=columns, key=(), event_time=None)
        text = "CREATE PROJECTION p WITH (key = 'k') AS SELECT k, CAST(x AS INT) AS y FROM STREAM r"
        (decl,) = parse_script(text).projections
        return plan(decl, MemoryCatalog(streams={"r": relation}))

    whole_numbers, doubles = of("INT"), of("DOUBLE")
    assert whole_numbers == doubles
    before, after = (all_sql(TEXT, each) for each in (whole_numbers, doubles))
    assert before != after
    assert after == whole(doubles.tree, TEXT)
