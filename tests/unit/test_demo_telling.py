from __future__ import annotations

import io
import shlex
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from apps.cli.demo_options import DemoOptions
from examples.flights import closing, freshness, run, workspace
from examples.flights.narration import DemoCheck, Narration, Rate
from kernel.errors import Conflict
from lake.layout import Lake
from stack import control
from stack.workspace import Workspace

START = datetime(2013, 1, 1, tzinfo=UTC)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_steps_are_numbered_and_timed() -> None:
    clock = iter([10.0, 10.0, 15.0])
    told = io.StringIO()
    narration = Narration(told, clock=lambda: next(clock))
    narration.step("First")
    narration.step("Second")
    assert told.getvalue() == "\n 1. First  [0 s]\n\n 2. Second  [5 s]\n"


def test_progress_on_a_terminal_stays_on_one_line_until_something_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    told = Terminal()
    narration = Narration(told)
    narration.progress("one")
    narration.progress("two")
    narration.say("three")
    assert told.getvalue().count("\n") == 2
    assert told.getvalue().endswith("two\n    three\n")


def test_progress_is_no_wider_than_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What wraps is two lines, of which one would stay behind each time."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    told = Terminal()
    Narration(told).progress("3,000 of 34,000 flights, 1,000/s, 31 s left")
    assert told.getvalue() == "\r\x1b[2K    3,000 of 34,000 flights, "


def test_progress_on_a_dumb_terminal_has_no_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    told = Terminal()
    Narration(told).progress("one")
    assert told.getvalue() == "    one\n"


def test_progress_without_a_terminal_is_a_plain_line_now_and_then() -> None:
    now = [0.0]
    told = io.StringIO()
    narration = Narration(told, clock=lambda: now[0])
    for second in range(8):
        now[0] = float(second)
        narration.progress(f"{second}")
    assert told.getvalue() == "    0\n    3\n    6\n"


@pytest.mark.parametrize(("ended", "told"), [(KeyboardInterrupt, False), (ValueError, True)])
def test_a_demo_that_fails_shows_the_logs_and_one_that_is_interrupted_does_not(
    ended: type[BaseException], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = Workspace.at(tmp_path)
    stack.make()
    stack.log_of("kafka").write_text("no leader\n")
    monkeypatch.setattr(control, "down", lambda folder: True)
    shown = io.StringIO()
    try:
        raise ended
    except ended:
        run._stop(DemoOptions(keep=True), Narration(shown), tmp_path)
    assert ("kafka: no leader" in shown.getvalue()) == told
    assert "Stopping everything" in shown.getvalue()


def test_a_failed_check_shows_what_speaks_against_it_and_is_kept() -> None:
    told = io.StringIO()
    narration = Narration(told)
    narration.check(DemoCheck(title="good", holds=True, found="1 row", samples=("hidden",)))
    bad = DemoCheck(title="bad", holds=False, found="2 rows", samples=("row 7 differs",))
    narration.check(bad)
    assert told.getvalue() == "    ok  good: 1 row\n    NO  bad: 2 rows\n        row 7 differs\n"
    assert narration.failures == [bad]
    assert narration.document()["holds"] is False


def test_rate_says_how_long_it_will_take() -> None:
    now = [0.0]
    rate = Rate(1_000, clock=lambda: now[0])
    assert rate.describe(0) == "0 of 1,000 events"
    now[0] = 2.0
    assert rate.describe(200) == "200 of 1,000 events, 100/s, 8 s left"


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.95, 95), (1.0, 100)])
def test_quantiles_are_values_that_occurred(share: float, value: int) -> None:
    assert freshness.quantile(range(1, 101), share) == value


def test_freshness_is_the_age_at_the_first_commit_that_has_the_event(tmp_path: Path) -> None:
    def row(epoch: int, kind: str, name: str | None, seconds: float) -> dict[str, object]:
        at = START + timedelta(seconds=seconds)
        return {"epoch": epoch, "kind": kind, "name": name, "at": at}

    manifest = [
        row(1, "bound", None, 0.0),
        row(1, "committed", None, 1.0),
        row(2, "committed", None, 3.0),
        row(2, "projection", "projection/flight_status/g1", 5.0),
        row(2, "projection", "typed", 4.0),
    ]
    write_deltalake(str(tmp_path / "epochs"), pa.Table.from_pylist(manifest))
    events = [
        {"epoch": epoch, "position": place, "recorded_at": START + timedelta(seconds=second)}
        for place, (epoch, second) in enumerate([(1, 0.5), (1, 0.9), (2, 2.0)], start=1)
    ]
    write_deltalake(str(tmp_path / "log/events/store"), pa.Table.from_pylist(events))
    log, status = freshness.measure(
        Lake(str(tmp_path)), "store", after=1, up_to=3, projections=("flight_status", "never_ran")
    )
    assert (log.name, log.events, round(log.p50_s, 3), round(log.p95_s, 3)) == ("log", 2, 0.1, 1.0)
    assert (status.name, status.events) == ("flight_status", 2)
    assert round(status.p95_s, 3) == 4.1


def test_commands_to_try_survive_a_path_with_spaces(tmp_path: Path) -> None:
    folder = tmp_path / "a place" / "demo"
    commands = closing.try_next(folder, Lake(str(folder / "lake")))
    assert len(commands) == 5
    for command in commands:
        words = shlex.split(command)
        program = Path(words[0]).name
        assert program in ("penstock", "python")
        assert any(str(folder) in word for word in words)
        if program == "python":
            compile(words[2], "<command>", "exec")


def test_tables_are_listed_without_their_generations(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    for name in ("projection/a", "projection/a/_gen/2", "projection/b"):
        write_deltalake(str(tmp_path / name), rows)
    told = io.StringIO()
    throughput = {"events": 10.0, "posting_s": 2.0, "through_s": 5.0}
    closing.figures(Narration(told), Lake(str(tmp_path)), [], throughput)
    lines = [line.strip() for line in told.getvalue().splitlines()]
    assert "projection/a  3 rows" in lines
    assert "projection/b  3 rows" in lines
    assert not [line for line in lines if "_gen" in line]


def test_an_earlier_demo_is_cleared_away_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "my demo"
    made = workspace.prepare(folder)
    assert (made / "penstock.toml").exists()
    assert {path.stem for path in (made / "schemas").iterdir()} >= {"flight.departed"}
    (made / "lake").mkdir()
    assert not (workspace.prepare(folder) / "lake").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(Conflict, match="not the demo's"):
        workspace.prepare(other)
    assert (other / "thesis.txt").exists()


def test_hashes_of_every_table_are_asked_for() -> None:
    answer = {"tables": [{"table": "public.planes", "equal": True, "rows": 3}]}
    found = closing.hashes_agree(answer, tables=["planes", "weather"])
    assert [(check.holds, check.found) for check in found] == [
        (True, "rows 3"),
        (False, "no answer"),
    ]
