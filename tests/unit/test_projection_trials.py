"""`projection test`: what holds, what differs and how it is shown, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from apps.cli import projection
from kernel.errors import EXIT_FAILED, EXIT_OK, InvalidRequest, NotFound
from projections.run.added_groups import AddedOperator
from tests.architecture.tree import ROOT

EXAMPLES = ROOT / "examples/projections"
SQL = """
CREATE SOURCE rates ON bank.public.rate
  WITH (key = 'currency', event_time = 'since', lateness = '30 days');
CREATE PROJECTION paid WITH (key = 'payer') AS
SELECT payer, COUNT(*) AS payments, SUM(amount) AS amount, MAX(occurred_at) AS last_at
FROM STREAM events.bank.paid GROUP BY payer;
CREATE PROJECTION rated WITH (key = 'event_id') AS
SELECT e.event_id, e.amount * r.rate AS euros FROM STREAM events.bank.paid e
JOIN rates FOR SYSTEM_TIME AS OF e.occurred_at r ON r.currency = e.currency;
"""
INPUTS = """
INPUT events.bank.paid (payer STRING, amount DOUBLE, currency STRING);
INPUT bank.public.rate (id INT, currency STRING, rate DOUBLE, since TIMESTAMP) KEY (id);
"""
PAID = "GIVEN events.bank.paid (payer, amount, occurred_at) VALUES\n"


def run(folder: Path, *arguments: str | Path) -> Result:
    app = typer.Typer()
    projection.register(app)
    options = ["--workspace", str(folder), *map(str, arguments)]
    return CliRunner().invoke(app, ["projection", "test", *options])


def played_in(folder: Path, steps: str) -> Result:
    """Run one test over the projections of this module."""
    (folder / "paid.sql").write_text(SQL)
    (folder / "paid.test").write_text(f"{INPUTS}TEST 'it';\n{steps}")
    return run(folder, "--json", folder / "paid.sql")


def differences(result: Result) -> list[tuple[str, str, object, object]]:
    (one,) = json.loads(result.stdout)["expectations"]
    return [
        (each["way"], each["kind"], each["expected"], each["found"]) for each in one["differences"]
    ]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.sql")), ids=lambda path: path.stem)
def test_every_example_holds(example: Path, tmp_path: Path) -> None:
    if example.stem == "01_sources":
        assert len(list(EXAMPLES.glob("*.test"))) == len(list(EXAMPLES.glob("*.sql"))) - 1
        return
    result = run(tmp_path, example)
    assert result.exit_code == EXIT_OK, result.stdout


def test_what_differs_is_shown_by_row_and_column(tmp_path: Path) -> None:
    (tmp_path / "paid.sql").write_text(SQL)
    steps = (
        f"{PAID} ('ada', 1.5, '2026-03-02 10:00:00'), ('bob', 2, '2026-03-02 10:00:00');\n"
        "EXPECT paid (payer, payments, amount) VALUES ('ada', 2, 1.5), ('cyd', 1, 1);"
    )
    (tmp_path / "paid.test").write_text(f"{INPUTS}TEST 'totals';\n{steps}")
    result = run(tmp_path, tmp_path)
    assert result.exit_code == EXIT_FAILED
    shown = result.stdout.split("\n")
    assert shown[0].startswith("FAILED")
    assert shown[0].endswith("paid.test:7: totals: paid")
    assert shown[1:5] == [
        "  in every order:",
        "    changed  payer 'ada': payments is 1, expected 2",
        "    missing  payer 'cyd', payments 1, amount 1.0",
        "    extra    payer 'bob', payments 1, amount 2.0",
    ]


def test_what_only_one_order_of_arrival_shows_is_named_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that keep nothing are right for one batch, and wrong row by row."""
    monkeypatch.setattr(AddedOperator, "keep", lambda self: None)
    steps = (
        f"{PAID} ('ada', 1, '2026-03-02 10:00:00'), ('ada', 2, '2026-03-02 10:01:00');\n"
        "EXPECT paid (payer, payments) VALUES ('ada', 2);"
    )
    result = played_in(tmp_path, steps)
    assert result.exit_code == EXIT_FAILED
    ways = {way for way, _, _, _ in differences(result)}
    assert "row by row" in ways
    assert "one batch" not in ways


def test_late_rows_and_duplicates_are_judged_as_ingest_does(tmp_path: Path) -> None:
    rows = (
        "GIVEN events.bank.paid (event_id, payer, amount, occurred_at) VALUES\n"
        "('1', 'ada', 1, '2026-03-02 10:00:00'), ('1', 'ada', 1, '2026-03-02 10:00:00'),\n"
        "('2', 'ada', 1, '2026-03-02 09:50:00'), ('3', 'ada', 1, '2026-03-02 09:49:59');\n"
    )
    result = played_in(tmp_path, f"{rows}EXPECT paid (payer, payments) VALUES ('ada', 2);")
    assert result.exit_code == EXIT_OK, result.stdout


def test_an_event_of_a_named_stream_has_its_entity_and_version(tmp_path: Path) -> None:
    (tmp_path / "seen.sql").write_text(
        "CREATE PROJECTION seen WITH (key = 'event_id') AS\n"
        "SELECT event_id, stream, entity_id, version FROM STREAM events.bank.paid"
    )
    steps = (
        "GIVEN events.bank.paid (event_id, stream, payer, occurred_at) VALUES\n"
        "  ('a', 'bank-7-x', 'ada', '2026-03-02 10:00:00'),\n"
        "  ('b', NULL, 'bob', '2026-03-02 10:00:00'),\n"
        "  ('c', 'bank-7-x', 'ada', '2026-03-02 09:00:00');\n"
        "EXPECT seen (event_id, stream, entity_id, version) VALUES\n"
        "  ('a', 'bank-7-x', '7-x', 0), ('b', 'bank-2', '2', 0), ('c', 'bank-7-x', '7-x', 1);"
    )
    (tmp_path / "seen.test").write_text(f"{INPUTS}TEST 'it';\n{steps}")
    result = run(tmp_path, tmp_path / "seen.sql")
    assert result.exit_code == EXIT_OK, result.stdout


def test_rows_of_tables_are_versions_that_are_replaced_moved_and_deleted(tmp_path: Path) -> None:
    give = "GIVEN bank.public.rate {} (id, currency, rate, since) VALUES {};\n"
    paid = (
        "GIVEN events.bank.paid (event_id, amount, currency, occurred_at) "
        "VALUES ('p', 10, 'USD', '2026-03-02 10:00:00');\n"
    )
    expect = "EXPECT rated (event_id, euros) VALUES ('p', {});\n"
    steps = [
        paid,
        "EXPECT rated NOTHING;\n",
        give.format("", "(1, 'USD', 2, '2026-03-01 00:00:00')"),
        expect.format(20),
        give.format(
            "", "(2, 'USD', 3, '2026-03-02 10:00:00'), (3, 'USD', 4, '2026-03-02 11:00:00')"
        ),
        expect.format(30),
        give.format("", "(2, 'EUR', 3, '2026-03-02 10:00:00')"),
        expect.format(20),
        give.format("DELETED", "(1, 'USD', 2, '2026-03-01 00:00:00')"),
        "EXPECT rated NOTHING;\n",
    ]
    result = played_in(tmp_path, "".join(steps))
    assert result.exit_code == EXIT_OK, result.stdout
    ways: Sequence[list[str]] = [e["ways"] for e in json.loads(result.stdout)["expectations"]]
    assert ways[0] == ["one batch", "row by row"]
    assert ways[-1] == ["one batch", "row by row", "shuffled"]


def test_tables_as_they_are_now_and_projections_over_each_other(tmp_path: Path) -> None:
    (tmp_path / "owed.sql").write_text(
        "CREATE PROJECTION owed WITH (key = 'name') AS SELECT c.name, SUM(p.cents) AS cents "
        "FROM STREAM events.bank.paid p JOIN bank.public.client c ON c.id = p.client "
        "GROUP BY c.name;"
        "CREATE PROJECTION debtors WITH (key = 'many') AS SELECT cents > 5 AS many, "
        "COUNT(*) AS n FROM owed GROUP BY cents > 5;"
    )
    (tmp_path / "owed.test").write_text(
        "INPUT events.bank.paid (client INT, cents BIGINT);"
        "INPUT bank.public.client (id INT, name STRING) KEY (id); TEST 'it';"
        "GIVEN events.bank.paid (client, cents, occurred_at) VALUES (1, 4, '2026-03-02'), "
        "(1, 4, '2026-03-02'), (2, 3, '2026-03-02');"
        "GIVEN bank.public.client (id, name) VALUES (1, 'ada'), (2, 'bob');"
        "EXPECT owed (name, cents) VALUES ('ada', 8), ('bob', 3);"
        "EXPECT debtors (many, n) VALUES (TRUE, 1), (FALSE, 1);"
        "GIVEN bank.public.client (id, name) VALUES (2, 'ada');"
        "EXPECT owed (name, cents) VALUES ('ada', 11);"
        "EXPECT debtors (many, n) VALUES (TRUE, 1);"
        "GIVEN bank.public.client DELETED (id) VALUES (1);"
        "EXPECT debtors (many, n) VALUES (FALSE, 1);"
    )
    result = run(tmp_path, tmp_path)
    assert result.exit_code == EXIT_OK, result.stdout


GOOD = f"{PAID} ('ada', 1, '2026-03-02 10:00:00');\n"
REFUSED = {
    "GIVEN events.bank.piad (payer) VALUES ('ada');": "5:1: there is no input events.bank.piad",
    "GIVEN events.bank.paid (paier) VALUES ('ada');": "5:1: .*no column paier; did you mean payer",
    "GIVEN events.bank.paid (payer) VALUES ('ada', 1);": "5:39: 2 values under 1 columns",
    "GIVEN events.bank.paid (payer) VALUES ('ada');": "5:40: a row of events.bank.paid without a",
    PAID + "('ada', 'much', '2026-03-02');": "6:9: 'much' is no DOUBLE",
    PAID + "('ada', 1, '2. March');": "6:12: '2. March' is no TIMESTAMP",
    PAID + "('ada', 1, now());": "6:12: expected a number, a quoted text",
    "GIVEN events.bank.paid DELETED (payer) VALUES ('a');": "5:1: events are not deleted",
    "GIVEN events.bank.paid (payer, payer) VALUES ('a', 'b');": "5:32: payer stands there twice",
    "GIVE events.bank.paid;": "5:1: expected INPUT or TEST or GIVEN or EXPECT, found 'GIVE'",
    GOOD + "EXPECT piad NOTHING;": "7:1: there is no projection piad; did you mean paid",
    GOOD + "EXPECT paid (paier) VALUES ('a');": "7:1: paid gives no column paier; did you mean pay",
    GOOD + "EXPECT paid (amount) VALUES (1);": "7:1: rows are compared by key, and payer of paid",
    GOOD + "EXPECT paid (payer) VALUES ('a'), ('a');": "7:36: two expected rows have the same key",
    GOOD + "EXPECT paid (payer, payments) VALUES ('a', 1.5);": "7:44: '1.5' is no BIGINT",
    GOOD + "EXPECT paid (payer) VALUES ('ada'": "7:34: expected \\)",
    GOOD: "4:1: test 'it' expects nothing",
    GOOD + "TEST 'it';": "7:1: two tests are named 'it'",
    GOOD + "INPUT events.bank.paid (x INT);": "7:1: events.bank.paid is declared twice",
    GOOD + "INPUT shop.public.t (x INT);": "7:1: shop.public.t is neither an event type nor",
    GOOD + "INPUT events.a.b (x BINARY);": "7:1: column x is BINARY: tests give",
    GOOD + "INPUT events.a.b (x ARRAY<INT>); GIVEN events.a.b (x) VALUES ('[a]');": (
        "7:63: '\\[a\\]' is no ARRAY<INT>"
    ),
}


@pytest.mark.parametrize("steps", REFUSED)
def test_a_bad_file_is_refused_at_its_place(steps: str, tmp_path: Path) -> None:
    expect = "" if steps == GOOD or "EXPECT" in steps else "\nEXPECT paid (payer) VALUES ('ada');"
    result = played_in(tmp_path, steps + expect)
    assert isinstance(result.exception, InvalidRequest)
    assert result.exception.remedy
    with pytest.raises(InvalidRequest, match=f"paid.test:{REFUSED[steps]}"):
        raise result.exception


def test_an_id_is_repeated_for_the_same_event_alone(tmp_path: Path) -> None:
    rows = "('1', 'ada', '2026-03-02 10:00:00'), ('1', 'bob', '2026-03-02 10:00:00')"
    steps = f"GIVEN events.bank.paid (event_id, payer, occurred_at) VALUES {rows};"
    result = played_in(tmp_path, f"{steps}EXPECT paid NOTHING;")
    with pytest.raises(InvalidRequest, match="event_id '1' was given before, with other values"):
        raise result.exception or AssertionError(result.stdout)


def test_a_query_that_cannot_be_computed_is_a_failure_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "share.sql").write_text(
        "CREATE PROJECTION share WITH (key = event_id) AS "
        "SELECT event_id, 1 / amount AS share FROM STREAM events.bank.paid"
    )
    steps = "GIVEN events.bank.paid (amount, occurred_at) VALUES (0, '2026-03-02');"
    (tmp_path / "share.test").write_text(
        f"INPUT events.bank.paid (amount INT); TEST 'none'; {steps} EXPECT share NOTHING;"
    )
    result = run(tmp_path, tmp_path / "share.test")
    assert result.exit_code == EXIT_FAILED
    assert "division by zero" in result.stdout


def test_a_place_without_tests_is_named(tmp_path: Path) -> None:
    for place, said in ((tmp_path, "has no tests"), (tmp_path / "x.sql", "there is no test file")):
        result = run(tmp_path, place)
        assert isinstance(result.exception, NotFound)
        assert said in result.exception.message


def test_what_names_of_tables_begin_with_is_no_log(tmp_path: Path) -> None:
    sql = "CREATE PROJECTION rates WITH (key = 'id') AS SELECT id, rate FROM STREAM bank.public;"
    (tmp_path / "rates.sql").write_text(sql)
    (tmp_path / "rates.test").write_text(f"{INPUTS}TEST 'it';\nEXPECT rates NOTHING;")
    found = run(tmp_path, "--json", tmp_path / "rates.sql")
    assert "there is no log named bank.public" in str(found.exception)
