"""The walk goes on over a captured database: what brings its rows stands still, piece by piece."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from cdc.connect import ConnectClient
from cdc.connectors import replication_name
from cdc.verification.rounds import FOLDER
from kernel.errors import Unavailable
from schemas.identifiers import OUTBOX
from tests.support.services.standstill_walk import Walk, assert_told
from tests.support.services.waiting import until
from tests.support.services.whole_stack import SOURCE, WholeStack

pytestmark = [pytest.mark.timeout(600), pytest.mark.matrix]
CONNECTORS = {("connector", name): "penstock restart connect" for name in (SOURCE, OUTBOX)}
LOOPS = {("loop", name): "penstock restart pipeline" for name in ("copies", "verify")}
MOVE = "INSERT INTO transfers (one, other, amount) VALUES (1, 2, 0)"
_SENDER = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s"

_READER = """
SELECT pid FROM pg_stat_activity
WHERE wait_event_type = 'Lock' AND datname = current_database() AND application_name = 'penstock'
"""


@pytest.fixture
def walk(whole_bank: WholeStack) -> Iterator[Walk]:
    made = Walk(whole_bank)
    made.until_all_moves()
    try:
        yield made
    finally:
        made.mend_all()


def connector(walk: Walk, name: str) -> str:
    return f"{walk.stack.settings.name}-{name}"


def backend(walk: Walk, question: str, value: str) -> int:
    with psycopg.connect(walk.stack.dsn) as connection:
        row = connection.execute(question.encode(), (value,)).fetchone()
    assert row is not None
    return int(row[0])


def hang(walk: Walk, pid: int) -> None:
    """Stop one process of PostgreSQL: a session, or what sends the WAL to a connector."""
    os.kill(pid, signal.SIGSTOP)
    walk.mend_by(lambda: os.kill(pid, signal.SIGCONT))


def assert_metrics(walk: Walk, *stopped: tuple[str, str]) -> None:
    assert walk.asked("pipeline", "/health/ready").json()["status"] == "degraded"
    metrics = walk.asked("pipeline", "/metrics").text
    for component, name in stopped:
        labels = f'component="{component}",name="{name}"'
        assert f"penstock_standing_still{{{labels}}} 1.0" in metrics


def listed(walk: Walk) -> dict[str, Any]:
    """Return what `source list` says of the captured database."""
    (found,) = walk.stack.command("source", "list")["sources"]
    document: dict[str, Any] = found
    return document


def test_a_paused_connector_is_told_to_those_who_wait(walk: Walk) -> None:
    walk.stack.command("source", "pause", SOURCE)
    walk.mend_by(lambda: walk.stack.command("source", "resume", SOURCE))
    until(lambda: walk.stack.health()["connectors"][SOURCE] == "paused", "it is paused")
    assert listed(walk)["state"] == "paused"
    assert walk.stack.command("status")["state"] == "ready", "it is paused on purpose"
    with pytest.raises(Unavailable, match=f"it is paused.*penstock source resume {SOURCE}"):
        walk.stack.command("wait", "--timeout", "2")
    walk.mend_all()
    walk.stack.command("wait", "--timeout", "60")


def test_a_connector_that_fails_is_seen_at_every_door(walk: Walk) -> None:
    name = connector(walk, SOURCE)
    with ConnectClient(walk.stack.settings.required("connect.url")) as connect:
        config = connect.config(name)
        assert config is not None
        connect.apply(name, config | {"publication.name": "walked_nowhere"})
    walk.mend_by(lambda: walk.stack.command("source", "resume", SOURCE))
    stopped = {("connector", SOURCE): f"penstock source status {SOURCE}"}
    until(lambda: SOURCE in walk.stack.health()["failing"], "it fails", deadline_s=90)
    told = assert_told(walk, stopped)
    assert "ublication autocreation" in told["connector", SOURCE]["cause"]
    assert_metrics(walk, *stopped)
    # It is started again and again: between two failures it starts.
    until(lambda: listed(walk)["state"] == "failed", "the list says that it failed")
    assert listed(walk)["standing_still"]
    with pytest.raises(Unavailable, match="ublication autocreation"):
        walk.stack.command("wait", "--timeout", "60")
    walk.mend_all()
    walk.until_all_moves()
    walk.stack.await_equal()


def test_connectors_that_run_and_bring_nothing_are_seen_at_every_door(walk: Walk) -> None:
    walk.append("stepped", 3)
    for name in (SOURCE, OUTBOX):
        slot = replication_name(walk.stack.settings.name, name)
        hang(walk, backend(walk, _SENDER, slot))
    walk.stack.execute(MOVE)
    walk.append("stepped", 4)
    until(lambda: walk.stands(*CONNECTORS), "both hang", deadline_s=150)
    told = assert_told(walk, CONNECTORS)
    assert all("has brought nothing for" in told[name]["cause"] for name in CONNECTORS)
    assert_metrics(walk, *CONNECTORS)
    with pytest.raises(Unavailable, match=f"connector {SOURCE} stands still"):
        walk.stack.command("wait", "--timeout", "1")
    walk.mend_all()
    walk.until_all_moves()
    walk.stack.command("wait", "--timeout", "60")
    walk.stack.await_equal()


def test_copies_and_verification_that_hang_are_seen_at_every_door(walk: Walk) -> None:
    held = "snapshot.after_chunk=hold"
    readers: list[int] = []
    with psycopg.connect(walk.stack.dsn) as connection:
        # What reads the source waits here, until it is stopped.
        connection.execute("LOCK TABLE accounts, transfers IN ACCESS EXCLUSIVE MODE")
        # A table is due again after minutes. What nobody knows of is due at once.
        shutil.rmtree(walk.stack.settings.state_dir / FOLDER, ignore_errors=True)
        walk.restart_with(PENSTOCK_FAILPOINTS=held, PENSTOCK_PIPELINE_STANDSTILL_SECONDS="5")

        def waits() -> bool:
            readers[:] = [row[0] for row in connection.execute(_READER).fetchall()]
            return bool(readers)

        def reads() -> bool:
            still = walk.standing().get(("loop", "verify"))
            return still is not None and "a range to compare" in still.cause

        # Others read tables too: while it stands still it is among those who wait.
        until(reads, "verification reads the table", deadline_s=60)
        until(waits, "sessions wait for the tables", deadline_s=60)
        for reader in readers:
            hang(walk, reader)
    walk.stack.command("source", "resnapshot", SOURCE, "--tables", "public.accounts", "--yes")
    until(lambda: walk.stands(*LOOPS), "both hang", deadline_s=60)
    told = assert_told(walk, LOOPS)
    assert all("has not moved on for" in told[name]["cause"] for name in LOOPS)
    assert_metrics(walk, *LOOPS)
    walk.append("stepped", 6)
    walk.stack.execute(MOVE)
    walk.stack.command("wait", "--timeout", "60")
    walk.mend_all()
    walk.until_all_moves()
    walk.stack.await_equal()
