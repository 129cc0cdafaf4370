"""How much the operators of a plan keep, as `projection explain` tells it."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from apps.cli import projection
from projections.run.input_measures import measured
from projections.sql.operators.shape import InputKind
from projections.sql.plans.explain import document, page
from projections.sql.plans.plan import Plan
from projections.sql.plans.state_bounds import REMEDY, InputMeasure, in_bytes, state_bounds
from replay.subject import subject_of
from tests.support.oracles.sql_world import planned
from tests.unit.test_projection_rounds import PERSONS, Rounds

FLIGHTS = "events.flight.departed"
FROM = f"FROM STREAM {FLIGHTS}"
MEASURES = {(InputKind.STREAM, FLIGHTS): InputMeasure(rows=1_000, per_second=2.0, text_bytes=20.0)}


def made(query: str, key: str = "flight", *, options: str = "") -> Plan:
    return planned(f"CREATE PROJECTION p WITH (key = '{key}'{options}) AS {query}")


def late(_: str) -> timedelta:
    return timedelta(minutes=5)


def test_a_join_of_streams_grows_with_them_and_says_so() -> None:
    found = made(
        f"SELECT a.flight, b.delay {FROM} a JOIN STREAM {FLIGHTS} b ON a.flight = b.flight "
        "AND b.occurred_at BETWEEN a.occurred_at AND a.occurred_at + INTERVAL 1 HOUR"
    )
    *newest, left, right = document(found, late, MEASURES)["state"]
    assert [each["keeps"] for each in (left, right)] == ["left rows", "right rows"]
    assert (left["operator"], left["bounded"], left["remedy"]) == ("inner join", False, REMEDY)
    assert (left["formula"], left["seconds"]) == (f"rows({FLIGHTS})", None)
    assert (left["rows"], left["rows_per_second"], left["rows_per_day"]) == (1_000, 2.0, 172_800)
    assert left["bytes"] == 1_000 * left["row_bytes"]
    assert left["bytes_per_day"] == 172_800 * left["row_bytes"]
    # What is computed of the pairs has a factor that nothing bounds.
    assert {each["formula"] for each in newest} == {f"rows({FLIGHTS}) * pairs of a row"}
    told = page(found, late, MEASURES)
    assert f"inner join keeps left rows: rows({FLIGHTS}), while the log has them" in told
    assert "now about 1,000 rows" in told
    assert "at the measured 2 rows/s 172,800 rows" in told
    assert f"unbounded: {REMEDY}" in told


def test_without_measures_there_are_symbols_alone() -> None:
    found = made(
        f"SELECT flight, window_start, COUNT(*) AS n {FROM} "
        "GROUP BY flight, SESSION(occurred_at, '10 minutes')",
        key="flight, window_start",
    )
    states = document(found)["state"]
    assert [(each["keeps"], each["formula"]) for each in states] == [
        ("its input", f"rows({FLIGHTS})"),
        ("what it gave out", f"rows({FLIGHTS})"),
    ]
    assert {each["rows"] for each in states} == {each["bytes_per_day"] for each in states} == {None}
    assert "not measured; about" in page(found)


@pytest.mark.parametrize(
    ("group", "reach", "times"),
    [
        ("TUMBLE(occurred_at, '1 hour')", timedelta(hours=1), 1),
        ("HOP(occurred_at, '20 minutes', '1 hour')", timedelta(hours=1), 3),
        ("SESSION(occurred_at, '10 minutes')", timedelta(minutes=10), 1),
    ],
)
def test_final_rows_wait_for_a_length_of_time(group: str, reach: timedelta, times: int) -> None:
    found = made(
        f"SELECT flight, window_start, COUNT(*) AS n {FROM} GROUP BY flight, {group}",
        key="flight, window_start",
        options=", emit = 'final'",
    )
    states = document(found, late, MEASURES)["state"]
    (waiting,) = (each for each in states if each["operator"] == "final rows")
    seconds = (reach + timedelta(minutes=5)).total_seconds()
    assert (waiting["bounded"], waiting["seconds"]) == (True, seconds)
    assert waiting["rows"] == 2 * times * seconds
    assert waiting["rows_per_day"] is waiting["remedy"] is None
    assert waiting["formula"].startswith(f"{times} * rate(" if times > 1 else "rate(")
    assert f"about {round(2 * times * seconds):,} rows" in page(found, late, MEASURES)


def test_a_query_of_one_step_keeps_nothing() -> None:
    found = made(f"SELECT flight, COUNT(*) AS n {FROM} GROUP BY flight")
    assert state_bounds(found) == ()
    assert document(found)["state"] == []
    assert "\n  state\n" not in page(found)


@pytest.mark.parametrize(
    ("size", "told"), [(7, "7 bytes"), (1_234, "1.23 kB"), (5.6e8, "560 MB"), (2e15, "2000 TB")]
)
def test_sizes_are_told_as_people_say_them(size: float, told: str) -> None:
    assert in_bytes(size) == told


def test_rows_and_their_rate_are_those_of_the_lake(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    for _ in range(4):
        rounds.seen("abcde" * 20)  # One visit a minute.
    site = rounds.made.site
    persons, numbers = (subject_of(site, name) for name in ("persons", "numbers"))
    (of_stream,) = measured(site.lake, site.tables, persons.plan, persons.catalog).values()
    assert of_stream.rows == 400
    assert of_stream.per_second == pytest.approx(1 / 60, rel=0.02)
    assert of_stream.text_bytes == 1
    rounds.step()
    (of_table,) = measured(site.lake, site.tables, numbers.plan, numbers.catalog).values()
    assert (of_table.rows, of_table.per_second) == (5, None)
    bounds = state_bounds(numbers.plan)
    assert bounds
    assert all(each.bounded for each in bounds), "one row of each key"


def test_one_odd_time_makes_no_other_rate(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path)
    rounds.seen("ab" * 50)
    rounds.position = 10**8
    rounds.seen("a")
    subject = subject_of(rounds.made.site, "persons")
    site = rounds.made.site
    (found,) = measured(site.lake, site.tables, subject.plan, subject.catalog).values()
    assert found.per_second == pytest.approx(1 / 60, rel=0.1)


def test_explain_measures_the_lake_that_is_there(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path / "lake")
    rounds.seen("ab" * 60)
    (tmp_path / "penstock.toml").touch()
    source = "CREATE SOURCE visits ON events.visit WITH (lateness = '30 minutes');"
    hours = """
    CREATE PROJECTION hours WITH (key = 'window_end', emit = 'final') AS
    SELECT window_end, COUNT(*) AS n FROM STREAM events.visit
    GROUP BY TUMBLE(occurred_at, '1 hour');
    """
    file = tmp_path / "made.sql"
    file.write_text(source + hours + PERSONS)
    app = typer.Typer()
    projection.register(app)
    options = ["--workspace", str(tmp_path)]
    asked = CliRunner().invoke(app, ["projection", "explain", str(file), "--json", *options])
    assert asked.exit_code == 0, asked.output
    final, persons = json.loads(asked.stdout)
    (waiting,) = (each for each in final["state"] if each["operator"] == "final rows")
    assert waiting["seconds"] == 90 * 60
    assert waiting["rows"] == pytest.approx(90, abs=2)
    assert persons["state"][0]["rows"] == 120
    told = CliRunner().invoke(app, ["projection", "explain", str(file), *options])
    assert "final rows keeps rows that wait for the watermark: rate(events.visit) *" in told.stdout
