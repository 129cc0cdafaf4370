"""The whole stack, service and pipeline and all, as `penstock up` starts it: one per run.

A pytest plugin module. What a newcomer types is tried on it, and a bank is captured while
everything under it is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from apps.accounts import account
from apps.cli import build
from apps.settings import Settings, load
from lake.layout import Lake, changes_log
from lake.tables import Tables
from stack.control import kill_part, reset
from stack.logs import tail
from stack.status import parts
from stack.workspace import Workspace
from tests.docs.walkthrough import traced_functions
from tests.support.services.port_blocks import PortBlock
from tests.support.services.waiting import until
from tests.support.sources.source_database import SourceDatabase

SOURCE = "bank"
ACCOUNTS = 400
TABLES = ("public.accounts", "public.transfers")
_running: list[Path] = []
"""The workspace of the running stack of this process."""
BANK = f"""
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, note text);
INSERT INTO accounts SELECT i, 100, repeat('x', 60) FROM generate_series(1, {ACCOUNTS}) i;
CREATE TABLE transfers (id bigserial PRIMARY KEY, one int, other int, amount int);
"""
_MOVE = "UPDATE accounts SET balance = balance + %s WHERE id = %s"


class Teller(threading.Thread):
    """Moves money without rest: three rows of two tables a transaction. A crash may end one."""

    def __init__(self, dsn: str) -> None:
        super().__init__(name="teller", daemon=True)
        self.done = 0
        self._dsn = dsn
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.is_set():
            try:
                with psycopg.connect(self._dsn, connect_timeout=5) as connection:
                    while not self._end.is_set():
                        self._move(connection)
                        self.done += 1
            except psycopg.Error:
                self._end.wait(0.2)

    def finish(self) -> None:
        """Stop, and wait for it."""
        self._end.set()
        self.join(30)

    def _move(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        one, other = self.done * 7 % 200 + 1, self.done * 11 % 200 + 201
        with connection.transaction():
            connection.execute(_MOVE, (-1, one))
            connection.execute(_MOVE, (1, other))
            connection.execute(
                "INSERT INTO transfers (one, other, amount) VALUES (%s, %s, 1)", (one, other)
            )
        self._end.wait(0.02)


@dataclass
class WholeStack(SourceDatabase):
    """A running workspace that captures the bank, and the questions that tests ask of it."""

    workspace: Path
    dsn: str

    @property
    def settings(self) -> Settings:
        """Settings with the endpoints of the running stack."""
        return load(self.workspace)

    @property
    def lake(self) -> Lake:
        """The workspace's lake."""
        return Lake.at(self.settings.lake)

    def command(self, *words: str, code: int | None = 0) -> Any:
        """Run a command with --json; `code` None takes any exit code."""
        result = CliRunner().invoke(build(), [*words, "-w", str(self.workspace), "--json"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert code is None or result.exit_code == code, result.output
        return json.loads(result.stdout)

    def pid(self, part: str) -> int | None:
        """Return a part's process id once it is ready."""
        found = self._state(part)
        return found["pid"] if found["state"] == "ready" else None

    def kill(self, *parts: str) -> None:
        """Kill parts with -9, one right behind the other, and wait until they are back.

        A supervisor stops believing in a part that dies too often; then a person starts it.
        """
        # What it needs may just have died, and it with that.
        for part in parts:
            self.revive(part)
        killed = {part: kill_part(self.workspace, part) for part in parts}
        for part, pid in killed.items():
            self.revive(part, besides=pid)

    def revive(self, part: str, *, besides: int | None = None, deadline_s: float = 180) -> None:
        """Wait until a part runs, in another process than `besides`."""

        def back() -> bool:
            self.start_where_given_up(part)
            return self.pid(part) not in (None, besides)

        until(back, f"{part} is back", deadline_s=deadline_s)

    def start_where_given_up(self, part: str) -> None:
        """Start a part that died so often that its supervisor gave it up."""
        if self._state(part)["state"] == "failed":
            start(self.workspace)

    def _state(self, part: str) -> dict[str, Any]:
        (found,) = (each for each in parts(self.workspace) if each["name"] == part)
        return dict(found)

    def health(self) -> dict[str, Any]:
        """Return what the pipeline says of itself; empty while it does not answer."""
        return dict(account(self.settings, "pipeline") or {})

    def accounts(self) -> int:
        """Return the money in the table of the lake."""
        rows = self.command(
            "query", f'SELECT sum(balance)::BIGINT AS n FROM current."{SOURCE}.public.accounts"'
        )["rows"]
        return int(rows[0]["n"])

    def await_equal(self, *, deadline_s: float = 240) -> None:
        """Wait until source and lake are equal at one LSN, table by table."""
        problems: list[str] = []

        def equal() -> bool:
            try:
                found = self.command("source", "verify", SOURCE, "--timeout", "20", code=None)
            except Exception as error:
                problems.append(f"{type(error).__name__}: {error}")
                return False
            problems.append(json.dumps(found)[:2_000])
            return bool(found.get("equal"))

        try:
            until(equal, "source and lake are equal", deadline_s=deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {problems[-1:]}; {self.health()}") from error

    def doubled(self) -> int:
        """Return how many streamed rows the log has more than once."""
        rows = Tables().read(
            self.lake.path(changes_log(SOURCE)),
            columns=["table", "transaction_id", "lsn", "total_order", "snapshot"],
        )
        assert rows is not None
        places = [
            (row["table"], row["transaction_id"], row["lsn"], row["total_order"])
            for row in rows.to_pylist()
            if row["table"] in TABLES and not row["snapshot"]
        ]
        return len(places) - len(set(places))


def start(workspace: Path, *words: str) -> None:
    """Start every part that does not run."""
    penstock = Path(sys.executable).parent / "penstock"
    started = subprocess.run(
        [penstock, "up", "-w", workspace, *words],
        env={**os.environ, **traced_calls(workspace)[1]},
        capture_output=True,
        text=True,
        timeout=660,  # Longer than `penstock up` waits: it says which part is missing.
        check=False,
    )
    assert started.returncode == 0, started.stderr[-4_000:]


def traced_calls(workspace: Path) -> tuple[Path, dict[str, str]]:
    """Return a file for calls of the walkthrough's functions, and what makes processes note them.

    See `traced/sitecustomize.py`.
    """
    calls = workspace / "traced-calls"
    return calls, {
        "PYTHONPATH": str(Path(__file__).parent / "traced"),
        "TRACED_CALLS": str(calls),
        "TRACED_FUNCTIONS": " ".join(sorted(traced_functions())),
    }


@pytest.fixture(scope="session")
def whole_stack() -> Iterator[Path]:
    """Return the workspace of a running stack with every part."""
    workspace = Path(tempfile.mkdtemp(prefix="penstock newcomer "))
    _running.append(workspace)
    try:
        start(workspace, "--port-base", str(int(PortBlock.WHOLE)))
        yield workspace
    finally:
        _end()


def _end() -> None:
    while _running:
        workspace = _running.pop()
        reset(workspace)
        shutil.rmtree(workspace, ignore_errors=True)


@pytest.fixture(scope="session")
def whole_bank(whole_stack: Path) -> WholeStack:
    """Return the whole stack with the bank in its own server, captured and equal."""
    found = captured_bank(whole_stack)
    found.await_equal()
    return found


def captured_bank(workspace: Path) -> WholeStack:
    """Make the bank in a running stack's own server and capture it."""
    admin = load(workspace).required("postgres.dsn")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {SOURCE}".encode())
    dsn = make_conninfo(admin, dbname=SOURCE)
    found = WholeStack(workspace, dsn)
    found.execute(BANK)
    words = ("--dsn", dsn, "--tables", ",".join(TABLES))
    found.command("source", "add", SOURCE, *words)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport]:
    """Let a failure say what the stack is and what its parts logged: it is gone with the run."""
    report = yield
    if report.failed and _asks(item):
        for workspace in _running:
            logs = sorted(Workspace.at(workspace).logs.glob("*.log"))
            lines = [f"{part}: {line[:500]}" for part, line in tail(logs, lines=30)]
            report.sections.append(("what the parts of the stack logged last", "\n".join(lines)))
            report.sections.append(("penstock status", _status(workspace)))
    return report


def _status(workspace: Path) -> str:
    penstock = Path(sys.executable).parent / "penstock"
    try:
        words = [penstock, "status", "-w", workspace]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "no answer within a minute"
    return asked.stdout + asked.stderr


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests of the whole stack last: what it does when idle costs all others a tenth."""
    items.sort(key=_asks)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the stack behind its last test in a worker that goes on with other tests."""
    if nextitem is not None and _asks(item) and not _asks(nextitem):
        _end()


def _asks(item: pytest.Item) -> bool:
    return "whole_stack" in getattr(item, "fixturenames", ())
