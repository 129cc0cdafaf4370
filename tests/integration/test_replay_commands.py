"""`penstock replay`, `projection` and the reading commands on a lake, as a person types them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from click.testing import Result
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from apps.cli import build
from kernel.errors import (
    EXIT_FAILED,
    EXIT_NEEDS_CONFIRMATION,
    Conflict,
    InvalidRequest,
    NotFound,
    exit_code,
)
from kernel.positions import Epoch
from lake.layout import Lake
from lake.table_columns import QUARANTINE
from lake.writer import ArrowWriter, Guard
from tests.support.lake.small_lake import (
    DELAYS,
    LATEST,
    SOURCES,
    WINDY,
    SmallLake,
    some_departures,
    some_readings,
)

RUNNER = CliRunner()


@dataclass
class Workspace:
    """A workspace whose stack is stopped; only its lake is there."""

    folder: Path
    small: SmallLake
    app: typer.Typer

    def call(self, *words: str) -> Result:
        return RUNNER.invoke(self.app, [*words, "--workspace", str(self.folder)])

    def answer(self, *words: str, code: int = 0) -> Any:
        """Run a command with `--json`; return its document."""
        result = self.call(*words, "--json")
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    def text(self, *words: str) -> str:
        result = self.call(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refusal(self, *words: str) -> BaseException:
        result = self.call(*words)
        assert result.exception is not None, result.output
        return result.exception

    def file(self, text: str) -> str:
        path = self.folder / "declared.sql"
        path.write_text(text)
        return str(path)


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    return build()


@pytest.fixture
def here(spark: SparkSession, app: typer.Typer, tmp_path: Path) -> Workspace:
    small = SmallLake(spark, Lake.at(tmp_path / "lake"))
    return Workspace(tmp_path, small, app)


def filled(here: Workspace) -> Workspace:
    here.small.deploy("latest")
    for n in (1, 2):
        here.small.epoch(some_departures(n, n * 100, 40), some_readings(n, n * 100, 5))
        here.small.run("latest")
    return here


def test_a_replay_from_plan_to_rollback(here: Workspace) -> None:
    filled(here)
    plan = here.answer("replay", "plan", "latest")
    assert (plan["live_generation"], plan["generation"], plan["epochs"]) == (1, 2, [1, 2])
    assert plan["inputs"][0]["rows"] == 80
    assert "to go back" in here.text("replay", "plan", "latest")
    chosen = here.answer("replay", "plan", "latest", "--where", "flight = 1")
    assert (chosen["base"]["where"], chosen["base"]["epoch"]) == ("flight = 1", 2)
    for option in ("--from", "--from-savepoint"):
        refused = here.refusal("replay", "apply", "latest", "--where", "flight = 1", option, "1")
        assert isinstance(refused, InvalidRequest)
    built = here.answer("replay", "apply", "latest")
    assert (built["generation"], built["state"], built["epoch"]) == (2, "built", 2)
    refused = here.answer("replay", "swap", "latest", code=EXIT_NEEDS_CONFIRMATION)
    assert refused["needs"] == "--yes"
    verified = here.answer("replay", "verify", "latest", "--generation", "2")
    assert verified["equal"]
    assert "equal" in here.text("replay", "verify", "latest")
    swapped = here.answer("replay", "swap", "latest")
    assert (swapped["generation"], swapped["replaced"], swapped["epoch"]) == (2, 1, 2)
    assert [r["state"] for r in here.answer("replay", "status")] == ["swapped"]
    assert here.answer("replay", "rollback", "latest")["generation"] == 1
    assert "rolled back" in here.text("replay", "status", "latest")
    assert isinstance(here.refusal("replay", "rollback", "latest"), NotFound)


def test_a_replay_into_another_lake_leaves_its_own_alone(here: Workspace) -> None:
    filled(here)
    sandbox = here.folder / "sandbox"
    there = ("--lake", str(sandbox))
    own = here.refusal("replay", "apply", "latest", "--lake", str(here.small.lake.root))
    assert isinstance(own, Conflict)
    mended = here.refusal("replay", "apply", "latest", *there, "--where", "flight = 1")
    assert isinstance(mended, InvalidRequest)
    told = here.text("replay", "apply", "latest", *there)
    assert f"latest as of epoch 2 is the table at {sandbox}/projection/latest" in told
    assert here.answer("replay", "verify", "latest", *there)["equal"]
    assert [r["state"] for r in here.answer("replay", "status", *there)] == ["verified"]
    assert here.answer("replay", "status") == []
    for command in ("resume", "pause"):
        missing = here.refusal("replay", command, "latest", *there)
        assert isinstance(missing, NotFound)
        assert f"penstock replay status latest --lake {sandbox}" in missing.remedy


def test_a_generation_that_differs_is_swapped_only_when_told_to(here: Workspace) -> None:
    filled(here)
    sql = here.file(LATEST.replace("delay,", "delay + 1 AS delay,"))
    planned = here.answer("replay", "plan", "latest", "--sql", sql)
    assert planned["change"] == "new generation"
    plan = here.folder / "plan.json"
    plan.write_text(json.dumps(planned | {"basis": planned["basis"] | {"generation": 7}}))
    assert isinstance(here.refusal("replay", "apply", "latest", "--plan", str(plan)), Conflict)
    plan.write_text(json.dumps(planned))
    here.answer("replay", "apply", "latest", "--plan", str(plan))
    differs = here.answer("replay", "verify", "latest", code=EXIT_FAILED)
    assert differs["differing"] == differs["live_rows"]
    report = here.folder / "verify.html"
    expected = here.answer(
        "replay",
        "verify",
        "latest",
        "--expect",
        "built.delay = live.delay + 1",
        "--report",
        str(report),
    )
    assert (expected["verdict"], expected["differing"]) == (
        "different as expected",
        expected["expected"],
    )
    assert "different as expected" in report.read_text()
    here.answer("replay", "verify", "latest", code=EXIT_FAILED)
    (drift,) = differs["drift"]
    assert (drift["name"], drift["greatest"]) == ("delay", 1.0)
    refused = here.answer("replay", "swap", "latest", code=EXIT_NEEDS_CONFIRMATION)
    assert "differs" in refused["reason"]
    for words in (("--yes",), ("--yes", "--reason", " "), ("--reason", "asked for")):
        here.answer("replay", "swap", "latest", *words, code=EXIT_NEEDS_CONFIRMATION)
    asked = ("--yes", "--reason", "delays begin at one, says the auditor")
    assert here.answer("replay", "swap", "latest", *asked)["generation"] == 2
    (kept,) = here.answer("replay", "status", "latest")
    assert kept["detail"]["reason"] == "delays begin at one, says the auditor"
    assert exit_code(here.refusal("replay", "cancel", "latest")) == EXIT_FAILED


@pytest.mark.matrix
def test_a_cancelled_generation_cannot_be_swapped(here: Workspace) -> None:
    filled(here)
    here.answer("replay", "apply", "latest")
    assert here.answer("replay", "cancel", "latest")["state"] == "cancelled"
    assert isinstance(here.refusal("replay", "swap", "latest", "--yes", "--reason", "x"), NotFound)
    assert isinstance(here.refusal("replay", "plan", "nothing"), NotFound)


def test_projections_are_deployed_paused_and_dropped(here: Workspace) -> None:
    here.small.deploy()
    here.small.epoch(some_departures(1, 1, 10), some_readings(1, 1, 5))
    first = here.answer("projection", "apply", here.file(SOURCES + LATEST + DELAYS))
    assert [(d["name"], d["outcome"], d["waits"]) for d in first] == [
        ("weather", "unchanged", None),
        ("latest", "created", None),
        ("delays", "created", None),
    ]
    again = here.answer("projection", "apply", here.file(DELAYS))
    assert [d["outcome"] for d in again] == ["unchanged"]
    faster = DELAYS.replace("WITH (", "WITH (freshness = '5 seconds', ")
    assert here.answer("projection", "apply", here.file(faster))[0]["outcome"] == "changed"
    other = here.refusal("projection", "apply", here.file(DELAYS.replace("AVG", "MAX")))
    assert isinstance(other, Conflict)
    assert "replay apply delays" in other.remedy
    here.small.run("delays")
    assert here.answer("projection", "pause", "delays")["status"] == "paused"
    listed = {p["name"]: p for p in here.answer("projection", "list")}
    assert (listed["delays"]["status"], listed["delays"]["epoch"]) == ("paused", 1)
    assert (listed["latest"]["status"], listed["latest"]["epoch"]) == ("live", None)
    here.answer("projection", "resume", "delays")
    assert here.answer("projection", "status", "delays")["freshness_s"] == 5.0
    here.answer("projection", "drop", "delays", code=EXIT_NEEDS_CONFIRMATION)
    here.answer("projection", "drop", "delays", "--yes")
    assert isinstance(here.refusal("projection", "status", "delays"), NotFound)
    back = here.answer("projection", "apply", here.file(DELAYS))
    assert [(d["outcome"], d["generation"]) for d in back] == [("created", 2)]
    here.small.epoch(some_departures(2, 100, 10), [])
    assert here.small.run("delays").whole
    assert here.answer("query", "SELECT max(_epoch) AS e FROM delays")["rows"] == [{"e": 2}]


def test_a_projection_over_nothing_yet_waits_and_a_wrong_one_is_refused(here: Workspace) -> None:
    here.small.deploy()
    here.small.epoch(some_departures(1, 1, 10), some_readings(1, 1, 5))
    later = LATEST.replace("events.flight.departed", "events.train.departed")
    (waiting,) = here.answer("projection", "apply", here.file(later))
    assert "events.train.departed" in waiting["waits"]
    wrong = here.refusal("projection", "apply", here.file(DELAYS.replace("delay", "dellay")))
    assert isinstance(wrong, InvalidRequest)
    assert [p["name"] for p in here.answer("projection", "list")] == ["latest"]
    validated = here.answer("projection", "validate", here.file(later))
    assert "events.train.departed" in validated["projections"][0]["waits"]
    (explained,) = here.answer("projection", "explain", here.file(SOURCES + DELAYS))
    assert explained["name"] == "delays"


def test_versions_that_begin_at_capture_say_so(here: Workspace) -> None:
    here.small.deploy()
    here.small.epoch(some_departures(1, 1, 10), some_readings(1, 1, 5))
    windy = here.file(WINDY)
    assert "warnings" not in here.answer("projection", "validate", windy)["projections"][0]
    captured = WINDY.replace(
        "ON w.origin = f.origin", "ON w.origin = f.origin AND w.hour = f.occurred_at"
    )
    by_commit = here.file(captured.replace("JOIN weather", "JOIN demo.public.weather"))
    told = (
        "the versions of demo.public.weather begin where its capture did, at "
        "2013-01-01T00:00:00.000+00:00: what is asked as of a time before finds none"
    )
    (checked,) = here.answer("projection", "validate", by_commit)["projections"]
    assert checked["warnings"] == [told]
    assert f"windy: ok\n  warning: {told}\n" in here.text("projection", "validate", by_commit)
    assert told in here.answer("projection", "explain", by_commit)[0]["notes"]
    declared = here.file(
        "CREATE SOURCE w2 ON demo.public.weather;" + captured.replace("JOIN weather", "JOIN w2")
    )
    assert "the versions of w2 begin where its capture did, at" in here.text(
        "projection", "explain", declared
    )


def test_tables_epochs_and_queries_are_read_with_the_stack_stopped(here: Workspace) -> None:
    filled(here)
    answer = here.answer("query", "SELECT count(*) AS n FROM latest", "--epoch", "1")
    assert (answer["epoch"], answer["columns"]) == (1, ["n"])
    assert "flight" in here.text("query", "SELECT flight FROM latest ORDER BY 1 LIMIT 1")
    at = here.answer("epoch", "show", "1")["at"]
    assert here.answer("query", "SELECT 1 FROM latest", "--at", at)["epoch"] == 1
    assert isinstance(here.refusal("query", "SELECT 1", "--at", "yesterday"), InvalidRequest)
    assert [e["epoch"] for e in here.answer("epoch", "list", "-n", "1")] == [2]
    assert "epoch 2, committed" in here.text("epoch", "show", "2")
    names = [t["name"] for t in here.answer("table", "list")]
    assert {"projection/latest", "typed/events.flight.departed"} <= set(names)
    path = here.text("table", "path", "latest").strip()
    assert path == str(here.folder / "lake/projection/latest")
    history = here.answer("table", "history", "latest")
    assert [c["operation"] for c in history] == ["MERGE", "WRITE", "CREATE TABLE"]
    assert isinstance(here.refusal("table", "path", "nothing"), NotFound)


def test_records_in_quarantine_show_their_bytes(here: Workspace) -> None:
    assert here.text("quarantine", "list").strip() == "nothing is in quarantine"
    record = {
        "epoch": 1,
        "topic": "events.flight",
        "partition": 0,
        "offset": 7,
        "stage": "decode",
        "reason": "not Avro",
        "key": b"flight-1",
        "value": b"\x00\xff",
        "headers": json.dumps({"type": b"departed".hex()}),
    }
    rows = pa.Table.from_pylist([record], schema=QUARANTINE)
    lake = here.small.lake
    ArrowWriter(here.small.tables).append(lake.quarantine, rows, Guard("q", Epoch(1)))
    listed = here.answer("quarantine", "list")
    assert (listed["count"], listed["records"][0]["reason"]) == (1, "not Avro")
    shown = here.answer("quarantine", "show", "events.flight", "0", "7")
    assert (shown["key"], shown["value"]) == ("flight-1", "00ff")
    assert shown["headers"] == {"type": "departed"}
    assert isinstance(here.refusal("quarantine", "show", "events.flight", "0", "8"), NotFound)
