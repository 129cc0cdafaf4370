"""A connector that fails a moment after each start is named: its source stands still."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry

from apps.capture import capture_site
from apps.settings import load
from cdc import connect
from cdc.capture import CaptureStatus
from cdc.connect import ConnectClient, ConnectorStatus
from cdc.slots import unreadable
from cdc.upkeep import connector_keeper
from cdc.upkeep.connector_keeper import (
    FAILING,
    GOES_LOOKS,
    SLOW_LOOKS,
    STEADY_LOOKS,
    ConnectorKeeper,
)
from cdc.upkeep.slot_guard import SlotMetrics
from kernel.retry import Backoff
from lake.layout import Lake

FAILED, RUNNING = "FAILED", "RUNNING"


class Worker:
    """Answers as Kafka Connect does, with the state that the test sets."""

    def __init__(self) -> None:
        self.state = RUNNING
        self.trace = "java.lang.RuntimeException: no such column"
        self.restarts = 0
        self.begun: str | None = None
        """What a restart makes of the task at once; None while Connect does not come to it."""

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.restarts += 1
            self.state = self.begun or self.state
            return httpx.Response(202)
        if self.state == "gone":
            return httpx.Response(500, content=json.dumps({"message": "rebalancing"}))
        task = {"state": self.state, "worker_id": "w"}
        if self.state == FAILED:
            task["trace"] = self.trace
        document = {"connector": {"state": RUNNING, "worker_id": "w"}, "tasks": [task]}
        return httpx.Response(200, content=json.dumps(document))


@pytest.fixture
def keeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConnectorKeeper:
    (tmp_path / "penstock.toml").write_text(
        '[postgres]\ndsn = "postgresql://x@127.0.0.1:1/x"\n[registry]\nurl = "http://127.0.0.1:1"'
    )
    made = ConnectorKeeper(
        capture_site(load(tmp_path)), Lake.at(tmp_path), SlotMetrics(CollectorRegistry())
    )
    monkeypatch.setattr(connector_keeper, "BEGUN_S", 0.01)
    monkeypatch.setattr(connector_keeper, "BEGUN_LOOK_S", 0.0)
    monkeypatch.setattr(connect, "_PATIENCE", Backoff(attempts=2, base_s=0.0))
    monkeypatch.setattr(made, "_look_at", lambda name, source, connect: "as before")
    made._ensured["shop"] = "as before"
    return made


def look(keeper: ConnectorKeeper, worker: Worker, state: str) -> None:
    worker.state = state
    with ConnectClient("http://w", transport=httpx.MockTransport(worker.answer)) as client:
        keeper.forget_pauses()
        keeper._keep("shop", None, client)


def test_failing_over_and_over_is_a_state_until_it_runs_steadily(keeper: ConnectorKeeper) -> None:
    worker = Worker()
    for state in (FAILED, RUNNING, FAILED, RUNNING):
        look(keeper, worker, state)
    assert keeper.failing == {}
    look(keeper, worker, FAILED)
    assert "no such column" in keeper.failing["shop"]
    for _ in range(GOES_LOOKS - 1):
        look(keeper, worker, RUNNING)
    assert list(keeper.failing) == ["shop"]
    look(keeper, worker, RUNNING)
    assert keeper.failing == {}, "for now"
    look(keeper, worker, FAILED)
    assert list(keeper.failing) == ["shop"], "it was not steady"
    for _ in range(STEADY_LOOKS):
        look(keeper, worker, RUNNING)
    look(keeper, worker, FAILED)
    assert keeper.failing == {}


def test_one_that_goes_again_is_seen_before_it_may_be_restarted_again(
    keeper: ConnectorKeeper,
) -> None:
    worker = Worker()
    for _ in range(FAILING):
        worker.trace += "!"
        look(keeper, worker, FAILED)
    restarts = worker.restarts
    assert list(keeper.failing) == ["shop"]
    with ConnectClient("http://w", transport=httpx.MockTransport(worker.answer)) as client:
        for state in (RUNNING, FAILED, *[RUNNING] * GOES_LOOKS):
            worker.state = state
            keeper._keep("shop", None, client)
            said = keeper.states["shop"]
            assert said == "running" if state == RUNNING else "is restarted" in said
    assert keeper.failing == {}
    assert worker.restarts == restarts, "it had its pause"


def test_a_crash_is_counted_once_however_late_its_restart_comes(keeper: ConnectorKeeper) -> None:
    """While Connect's workers meet anew, the old state is told for some seconds."""
    worker = Worker()
    for _ in range(SLOW_LOOKS + 1):
        look(keeper, worker, FAILED)
    assert keeper.failing == {}
    assert worker.restarts == SLOW_LOOKS + 1
    assert "failed and is restarted" in keeper.states["shop"]
    look(keeper, worker, FAILED)
    assert "shop" in keeper.failing, "restarts that never begin"


def test_a_crash_is_counted_when_connect_goes_amid_its_restart(keeper: ConnectorKeeper) -> None:
    worker = Worker()
    worker.begun = "gone"
    for _ in range(FAILING):
        worker.trace += "!"
        look(keeper, worker, FAILED)
    assert "shop" in keeper.failing


def test_what_ended_with_its_server_has_not_crashed(keeper: ConnectorKeeper) -> None:
    """A database that is started again and again is no fault of what reads it."""
    worker = Worker()
    for start in range(FAILING + 1):
        keeper._servers["shop"] = f"start {start}"
        worker.trace += "!"
        look(keeper, worker, FAILED if start else RUNNING)
        look(keeper, worker, RUNNING)
    assert keeper.failing == {}
    for _ in range(FAILING):
        assert keeper.failing == {}
        look(keeper, worker, FAILED)
        look(keeper, worker, RUNNING)
    assert "shop" in keeper.failing, "by itself, on a server that stands"


def test_a_source_that_is_dropped_is_forgotten(
    keeper: ConnectorKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Worker()
    look(keeper, worker, FAILED)
    monkeypatch.setattr(keeper._guard, "forget", lambda name: None)
    monkeypatch.setattr(keeper._deployed, "entries", list)
    keeper._drop_missing({})
    known = (keeper._asked, keeper._wait, keeper._steady, keeper._crashes, keeper.states)
    assert not any("shop" in each for each in (*known, keeper._servers, keeper._ran_on))


def test_a_task_that_fails_within_its_start_crashes_each_time(keeper: ConnectorKeeper) -> None:
    worker = Worker()
    worker.begun = "RESTARTING"
    for _ in range(FAILING):
        assert keeper.failing == {}
        look(keeper, worker, FAILED)
    assert "no such column" in keeper.failing["shop"]


def test_another_cause_is_another_crash(keeper: ConnectorKeeper) -> None:
    worker = Worker()
    for number in range(FAILING):
        worker.trace = f"java.lang.RuntimeException: no such column {number}"
        look(keeper, worker, FAILED)
    assert "no such column 2" in keeper.failing["shop"]


def test_what_no_restart_mends_is_not_restarted(keeper: ConnectorKeeper) -> None:
    worker = Worker()
    worker.trace = "java.lang.X: 9 bytes, which is larger than the max.request.size configuration"
    for _ in range(3):
        look(keeper, worker, FAILED)
    assert worker.restarts == 0
    assert "kafka.max_record_bytes" in keeper.states["shop"]
    assert list(keeper.failing) == ["shop"]


def test_ddl_while_a_source_is_brought_up_to_date_is_seen_at_the_next_look(
    keeper: ConnectorKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key renamed in that moment would stay unknown until another change."""
    key, applied = "id", list[str]()

    def ensure(source: object, connect: ConnectClient) -> ConnectorStatus:
        nonlocal key
        applied.append(key)
        key = "number"
        return connect.status("w-shop")

    monkeypatch.setattr(keeper, "_look_at", lambda name, source, connect: key)
    monkeypatch.setattr(keeper, "_ensure", ensure)
    for _ in range(3):
        look(keeper, Worker(), RUNNING)
    assert applied == ["id", "number"]


@pytest.mark.parametrize(
    ("cause", "fix"),
    [
        ("FATAL: permission denied to start WAL sender", "penstock source check shop"),
        ('FATAL: password authentication failed for user "x"', "penstock source check shop"),
        ("no such column", "penstock source resume shop"),
    ],
)
def test_the_command_fits_the_cause(cause: str, fix: str) -> None:
    connector = ConnectorStatus(
        name="w-shop", connector=RUNNING, task=FAILED, worker="w", cause=cause
    )
    found = CaptureStatus(source="shop", connector=connector, watch=None, snapshot="completed")
    assert (found.state, found.remedy) == ("failed", fix)


def test_a_slot_that_cannot_pass_a_dropped_publication_is_lost() -> None:
    assert unreadable('ERROR: publication "penstock_w_shop" does not exist Where: slot') is not None
    assert unreadable("ERROR: no such column") is None
    assert unreadable(None) is None
