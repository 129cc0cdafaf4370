"""A statement is compiled as Spark reads it, or refused: no word of it is passed by."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from sqlglot import exp, parse_one

from kernel.errors import InvalidRequest
from lake.table_columns import UTC_MICROS
from projections.run.database import (
    ORDER_TYPES,
    TEXT,
    Database,
    arrow_type,
    types_of,
)
from projections.sql.operators.tree import scans
from projections.sql.plans.key_steps import rows_sql
from projections.sql.plans.plan import Plan, plan
from projections.sql.rendering.certified import uncertified_in
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.statements.parse import parse_script
from projections.sql.values.expressions import never_fails, render
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
from projections.sql.words.places import Script, offset_of, with_offsets
from projections.sql.words.tokens import SPARK, parsed

COLUMNS = {
    "event_id": "STRING",
    "carrier": "STRING",
    "code": "STRING",
    "delay": "INT",
    "distance": "DOUBLE",
    "price": "DECIMAL(10,2)",
    "late": "BOOLEAN",
    "day": "DATE",
    "occurred_at": "TIMESTAMP",
}
FLIGHT = Relation(
    name="events.flight",
    columns=tuple(Column(name=name, type=kind) for name, kind in COLUMNS.items()),
    key=(),
    event_time="occurred_at",
)
START = datetime(2024, 1, 1, tzinfo=UTC)
FROM = "FROM STREAM events.flight"
OVER = "SUM(delay) OVER (PARTITION BY carrier ORDER BY occurred_at"


def planned(query: str, key: str = "event_id") -> Plan:
    text = f"CREATE PROJECTION p WITH (key = '{key}') AS {query};"
    (decl,) = parse_script(text).projections
    return plan(decl, MemoryCatalog(streams={FLIGHT.name: FLIGHT}))


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"SELECT event_id {FROM} UNION ALL SELECT code {FROM} ORDER BY event_id", "ORDER BY"),
        (f"SELECT event_id {FROM} UNION ALL SELECT code {FROM} LIMIT 3", "LIMIT"),
        (f"(SELECT event_id {FROM}) LIMIT 3", "LIMIT"),
        (f"SELECT event_id FROM ((SELECT event_id {FROM}) LIMIT 3) q", "LIMIT"),
        (f"SELECT event_id {FROM} UNION ALL BY NAME SELECT code {FROM}", "BY NAME"),
        (f"SELECT DISTINCT ON (carrier) event_id, carrier {FROM}", "DISTINCT ON"),
        (f"SELECT event_id, {OVER} ROWS 1 PRECEDING EXCLUDE CURRENT ROW) AS s {FROM}", "EXCLUDE"),
        (f"SELECT event_id, {OVER} GROUPS 1 PRECEDING) AS s {FROM}", "GROUPS"),
        (f"SELECT event_id, late = delay < 15 AS odd {FROM}", "comparison of a comparison"),
        (f"SELECT event_id, late = code LIKE 'x%' AS odd {FROM}", "comparison of a comparison"),
        (f"SELECT event_id {FROM} WHERE late = delay < 15", "comparison of a comparison"),
    ],
)
def test_what_is_not_compiled_is_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        planned(query)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("from_utc_timestamp(occurred_at, 'Europe/Berln')", "did you mean Europe/Berlin"),
        ("to_utc_timestamp(occurred_at, code)", "a zone that is not written out"),
        ("occurred_at AT TIME ZONE 'Europe/Berlin'", "AT TIME ZONE is not read"),
        ("TIMESTAMP '2024-01-01 00:00:00' AT TIME ZONE 'UTC'", "AT TIME ZONE is not read"),
        ("CAST(code AS TIMESTAMP) AT TIME ZONE 'Europe/Berlin'", "AT TIME ZONE is not read"),
        ("to_utc_timestamp(occurred_at, '+25:00')", "no time zone '.25:00'"),
        ("from_utc_timestamp(occurred_at, '+02:99')", "no time zone '.02:99'"),
    ],
)
def test_a_zone_is_a_literal_that_is_known(value: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        planned(f"SELECT event_id, {value} AS x {FROM}")


def expression(text: str) -> exp.Expr:
    script = Script(text=f"SELECT {text}", origin="<sql>")
    found: exp.Expr = parsed(script, SPARK.tokenize(script.text)).expressions[0]
    return found


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("t - INTERVAL 1 DAY 2 HOURS", "t - (INTERVAL '1' DAY + INTERVAL '2' HOURS)"),
        ("t - INTERVAL 1 DAY + INTERVAL 2 HOURS", "t - INTERVAL '1' DAY + INTERVAL '2' HOURS"),
        ("t - (INTERVAL 1 DAY 2 HOURS)", "t - (INTERVAL '1' DAY + INTERVAL '2' HOURS)"),
        ("t + INTERVAL 5 MIN", "t + INTERVAL '5' MINUTE"),
        ("t BETWEEN u - INTERVAL 1 H AND u", "t BETWEEN u - INTERVAL '1' HOUR AND u"),
    ],
)
def test_an_interval_of_several_units_is_one_value(written: str, read: str) -> None:
    assert render(expression(written)) == read


def typed(text: str) -> str:
    return type_of(expression(text), lambda node: COLUMNS.get(node.name, ""))


def certified(text: str) -> bool:
    return uncertified_in(expression(text), FLIGHT.columns) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("price / 3", "DECIMAL(14,6)"),
        ("price / (3)", "DECIMAL(14,6)"),
        ("price * ((2))", "DECIMAL(12,2)"),
        ("CAST(price AS DECIMAL)", "DECIMAL(10,0)"),
        ("CAST(price AS DECIMAL(7))", "DECIMAL(7,0)"),
        ("CAST(price AS NUMERIC)", "DECIMAL(10,0)"),
    ],
)
def test_a_decimal_has_the_size_that_spark_gives_it(text: str, kind: str) -> None:
    assert typed(text) == kind


@pytest.mark.parametrize(
    ("text", "ours"),
    [
        ("price BETWEEN 0 AND 1.55", True),
        ("price IN (1, 2.5, CAST(delay AS DECIMAL(20,10)))", True),
        ("price BETWEEN delay AND distance", True),
        # Each pair has a common type, and all three of them have none.
        ("wide BETWEEN CAST(delay AS DECIMAL(38,5)) AND CAST(delay AS DECIMAL(30,20))", False),
        ("wide IN (CAST(delay AS DECIMAL(38,5)), CAST(delay AS DECIMAL(30,20)))", False),
        ("price BETWEEN CAST(delay AS DECIMAL(30,20)) AND distance", False),
    ],
)
def test_several_values_are_compared_where_one_type_holds_them(text: str, ours: bool) -> None:
    assert certified(text.replace("wide", "CAST(delay AS DECIMAL(20,5))")) is ours


def test_a_chain_of_divisions_is_written_once() -> None:
    for sign in ("/", "%", "div"):
        chain = f" {sign} ".join(["delay"] * 16)
        assert certified(chain)
        assert len(DuckText().expression(expression(chain), FLIGHT.columns)) < 10_000


@pytest.mark.parametrize(
    ("call", "deep"),
    [("delay / ({})", 14), ("delay % ({})", 12), ("sign({})", 10), ("pmod(delay, {})", 7)],
)
def test_what_would_repeat_its_parts_again_and_again_is_left_to_spark(call: str, deep: int) -> None:
    text = "delay"
    for _ in range(deep):
        text = call.format(text)
    said = uncertified_in(expression(text), FLIGHT.columns)
    assert said is not None
    assert said.endswith("…, which is too long")


def test_a_decimal_without_a_size_is_said_to_the_other_engine_with_it() -> None:
    said = DuckText().expression(expression("CAST(CAST(price AS DECIMAL) AS INT)"), FLIGHT.columns)
    assert "DECIMAL(10,0)" in said


@pytest.mark.parametrize(
    ("text", "both"),
    [
        ("CASE delay WHEN 2 THEN 'two' ELSE 'no' END", True),
        ("CASE code WHEN '2' THEN 'two' ELSE 'no' END", True),
        ("CASE code WHEN 2 THEN 'two' ELSE 'no' END", False),
        ("CASE day WHEN '2024' THEN 1 ELSE 0 END", False),
        ("CASE WHEN late THEN 1 ELSE 0 END", True),
        ("CASE WHEN NOT late AND delay > 3 THEN 1 ELSE 0 END", True),
        ("if(delay, 1, 2)", False),
        ("late AND delay", False),
        ("NOT delay", False),
        ("late AND (delay > 3 OR code IS NULL)", True),
    ],
)
def test_what_each_engine_decides_by_rules_of_its_own_is_sparks(text: str, both: bool) -> None:
    assert certified(text) is both


PARKED = [
    {"event_id": "1", "carrier": "drive", "code": "7", "delay": 2, "distance": -0.0},
    {"event_id": "2", "carrier": "parked", "code": "n/a", "delay": 0, "distance": 0.0},
]


def computed(query: str, parked: Sequence[dict[str, object]] = PARKED) -> list[tuple[object, ...]]:
    """Return the first columns of what the small executor makes of a query over some rows."""
    made = planned(query)
    database = Database()
    for scan in scans(made.tree):
        fields = [(each.name, arrow_type(each)) for each in scan.columns]
        order = [("_time", UTC_MICROS), ("_seq_hi", pa.int64()), ("_seq_lo", pa.int64())]
        rows = [{**each, "_time": START, "_seq_hi": 0, "_seq_lo": 0} for each in parked]
        database.make(scan.view, types_of(scan.columns) | ORDER_TYPES)
        database.insert(scan.view, [pa.Table.from_pylist(rows, pa.schema([*fields, *order]))])
    found = database.connection.sql(rows_sql(made.tree, TEXT)).fetchall()
    return sorted(row[: len(made.columns)] for row in found)


@pytest.mark.parametrize(
    "condition",
    [
        "upper(carrier) = 'DRIVE' AND CAST(code AS BIGINT) IS NOT NULL",
        "upper(carrier) = 'DRIVE' AND CAST(code AS DOUBLE) IS NOT NULL",
        "carrier LIKE 'd%' AND delay > 1 AND CAST(code AS BIGINT) IS NOT NULL",
        "lower(carrier) <> 'parked' AND 100 / delay > 3",
        "delay > 1 AND carrier = 'drive'",
    ],
)
def test_a_condition_is_asked_only_where_those_before_it_hold(condition: str) -> None:
    assert computed(f"SELECT event_id {FROM} WHERE {condition}") == [("1",)]


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT DISTINCT event_id, distance {FROM}",
        f"SELECT event_id, distance {FROM} UNION SELECT event_id, distance {FROM}",
        f"SELECT event_id, distance {FROM} INTERSECT SELECT event_id, distance {FROM}",
        f"SELECT event_id, distance {FROM} EXCEPT SELECT code AS event_id, distance {FROM}",
        f"SELECT event_id, distance {FROM} INTERSECT ALL SELECT event_id, distance {FROM}",
        f"SELECT event_id, distance {FROM} EXCEPT ALL SELECT code AS event_id, distance {FROM}",
    ],
)
def test_of_two_zeros_a_distinct_row_has_the_one_without_a_sign(query: str) -> None:
    found = computed(query)
    assert [str(distance) for _, distance in found] == ["0.0", "0.0"]


@pytest.mark.parametrize("parked", [PARKED, PARKED[::-1]], ids=["one order", "the other"])
@pytest.mark.parametrize(
    "query",
    [
        " UNION ALL ".join([f"SELECT 'a' AS event_id, distance {FROM}"] * 2),
        f"SELECT 'a' AS event_id, distance {FROM} GROUP BY 'a'",
    ],
)
def test_of_two_zeros_in_one_place_the_one_without_a_sign_is_the_newest(
    query: str, parked: Sequence[dict[str, object]]
) -> None:
    assert [str(distance) for _, distance in computed(query, parked)] == ["0.0"]


@pytest.mark.parametrize(
    "call",
    [
        "date_trunc('day', occurred_at, 'UTC')",
        "instr(carrier, 'a', 1, 2)",
        "upper(carrier) || to_date(code, 'yyyy', 'x')",
        "hex(delay, (1, 2))",
        "regexp_replace(carrier, 'a')",
    ],
)
def test_an_argument_that_a_function_does_not_take_is_not_read_over(call: str) -> None:
    with pytest.raises(InvalidRequest, match=r"does not take \d arguments"):
        planned(f"SELECT event_id, {call} AS x {FROM}")
    with pytest.raises(InvalidRequest, match=r"does not take \d arguments"):
        planned(f"SELECT event_id, delay {FROM} WHERE {call} IS NOT NULL")


@pytest.mark.parametrize(
    "call",
    [
        "date_trunc('day', occurred_at)",
        "locate('a', carrier, 2)",
        "regexp_replace(carrier, 'a', 'b')",
        "greatest(delay, 1, 2, 3, 4)",
        "CASE WHEN delay IN (1, 2, 3) THEN substring(carrier, 1, 2) ELSE lpad(code, 3, '0') END",
        "CAST(price AS DECIMAL(12, 3))",
        "round(distance, least(1, 2))",
    ],
)
def test_arguments_that_a_function_takes_are_taken(call: str) -> None:
    assert planned(f"SELECT event_id, {call} AS x {FROM}").tree


KNOWN = f"(SELECT carrier {FROM} WHERE carrier > 'a')"
"""A subquery of one input without NULL."""


@pytest.mark.parametrize(
    ("condition", "inputs"),
    [
        (f"carrier NOT IN (SELECT carrier {FROM})", 4),
        (f"carrier NOT IN {KNOWN}", 3),
        (f"carrier IS NOT NULL AND carrier NOT IN (SELECT carrier {FROM})", 3),
        (f"NOT (carrier IN {KNOWN}) AND flight.Carrier IS NOT NULL", 2),
        (f"carrier NOT IN (SELECT f.carrier {FROM} f WHERE NOT carrier IN ('a')) AND delay > 1", 3),
        (f"carrier NOT IN {KNOWN} AND carrier NOT IN (SELECT code {FROM} WHERE code = 'b')", 5),
        (f"delay NOT IN (SELECT COUNT(*) AS n {FROM} GROUP BY carrier) AND 1 < delay", 2),
        (f"code NOT IN (SELECT carrier {FROM} WHERE carrier > 'a' GROUP BY CUBE(carrier))", 7),
        (f"carrier IS NULL AND carrier NOT IN {KNOWN}", 3),
        (f"coalesce(carrier, code) NOT IN {KNOWN} AND carrier > 'a'", 3),
    ],
)
def test_not_in_watches_for_null_where_there_may_be_one(condition: str, inputs: int) -> None:
    made = planned(f"SELECT event_id {FROM} WHERE {condition}")
    assert len(made.inputs) == inputs
    assert any("a NULL that it gives" in note for note in made.notes) == (inputs > 2)


PIVOT = f"(SELECT event_id, carrier, delay, late {FROM}) PIVOT "


@pytest.mark.parametrize(
    ("pivot", "names"),
    [
        ("(SUM(delay) FOR carrier IN ('a', 'b' AS other))", "event_id late a other"),
        ("(SUM(delay) AS d FOR carrier IN (('a')))", "event_id late a"),
        ("(MAX(delay) AS d, COUNT(*) AS n FOR carrier IN ('a', NULL AS o))", "event_id a_d o_n"),
        ("(COUNT(delay) FOR late IN (TRUE, false))", "event_id carrier true false"),
        ("(MAX(delay) FOR (carrier, late) IN (('a', true) AS a))", "event_id a"),
    ],
)
def test_a_pivot_has_the_columns_that_spark_gives_it(pivot: str, names: str) -> None:
    read = ", ".join(f"`{name}`" for name in names.split())
    made = planned(f"SELECT {read} FROM {PIVOT}{pivot}")
    assert [each.name for each in made.columns] == names.split()


def test_a_moment_that_is_written_out_is_no_error_for_any_row() -> None:
    assert never_fails(expression("t >= TIMESTAMP '2024-01-01' AND d < DATE '2024-01-02'"))
    assert not never_fails(expression("n > CAST('x' AS INT)"))
    assert not never_fails(expression("t >= CAST(text AS TIMESTAMP)"))


def test_a_long_chain_is_read_in_one_pass_or_refused() -> None:
    query = f"SELECT event_id {FROM} WHERE "
    planned(query + " OR ".join(f"code = 'x{number}'" for number in range(600)))
    for chain in (" + ".join(["delay"] * 2_000) + " > 3", "(" * 3_000 + "late" + ")" * 3_000):
        with pytest.raises(InvalidRequest, match="too many operators in a row") as refused:
            planned(query + chain)
        assert "IN (" in refused.value.remedy


def test_places_found_in_one_pass_are_those_of_each_node() -> None:
    text = "a + b * (c - 1) > abs(d) AND NOT e IN (1, f) OR CASE WHEN g IS NULL THEN 1 ELSE h END"
    node = parse_one(text, dialect="spark")
    whole = offset_of(node, 7)
    assert with_offsets(node, 7) == [(each, offset_of(each, whole)) for each in node.walk()]
