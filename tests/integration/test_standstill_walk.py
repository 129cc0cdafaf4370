"""A walk over a whole stack in which one component after the other stands still, door by door."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from apps.access import bearing
from apps.cli import build
from apps.settings import load
from apps.standstills import Standstill, standing_still
from kernel.errors import EXIT_UNHEALTHY, Misconfigured, Unavailable
from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack

pytestmark = pytest.mark.timeout(900)
FILES = "sources/*.toml"
PROJECTION = """
CREATE PROJECTION walked WITH (key = 'event_id') AS
SELECT event_id, n, 100 / (n - 1) AS share, occurred_at FROM STREAM events.walk.stepped;
"""
TYPED = "typed/events.walk.torn"
SOURCE = "kept"
HISTORY = f"history/{SOURCE}.public.item"
STOPPED = {
    ("connector", FILES): "penstock doctor",
    ("copy", FILES): "penstock doctor",
    ("verification", FILES): "penstock doctor",
    ("projection", "walked"): "penstock projection status walked",
    ("table", TYPED): f"penstock table retry {TYPED}",
    ("table", HISTORY): f"penstock table retry {HISTORY}",
    ("delivery", "walked"): "penstock status",
    ("deciders", "workspace"): "penstock logs service",
}
"""What is made to stand still, and a part of the command that leads on."""


class Walk:
    """Stops components of a running stack, each by a fault of its own, and mends them again."""

    def __init__(self, stack: WholeStack) -> None:
        self.stack = stack
        self._mends: list[Callable[[], object]] = []

    def capture(self) -> None:
        """Capture a table with its history. It is removed after all else was mended."""
        admin = self.stack.settings.required("postgres.dsn")
        drop = f"DROP DATABASE IF EXISTS {SOURCE} WITH (FORCE)"
        run(admin, drop, f"CREATE DATABASE {SOURCE}")
        self._mends.append(lambda: run(admin, drop))
        self.stack.dsn = make_conninfo(admin, dbname=SOURCE)
        run(self.stack.dsn, "CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item VALUES (1)")
        added = (SOURCE, "--dsn", self.stack.dsn, "--tables", "public.item")
        self.stack.command("source", "add", *added)
        self._mends.append(lambda: self.stack.command("source", "remove", SOURCE, "--yes"))
        file = self.stack.workspace / "sources" / f"{SOURCE}.toml"
        file.write_text(f'{file.read_text()}\n[table."public.item"]\nhistory = true\n')

    def stop_all(self) -> None:
        """Stop all but ingest, which everything else goes through."""
        self.capture()
        self.append("stepped", 2)
        self.append("torn", 1)
        for name in (TYPED, HISTORY):
            there = self.log_of(name).exists
            until(there, f"the table {name} is there", deadline_s=120)
        self.write("sources/walked.toml", "[[torn")
        self.write("deciders/walked.py", "def (")
        with socket.create_server(("127.0.0.1", 0)) as closed:
            url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        secret = self.write("walked.secret", "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz")
        lines = ['kind = "webhook"', f'url = "{url}"', f'secret = "file:{secret}"', "start = 0"]
        self.write("deliveries/walked.toml", "\n".join([*lines, "[filter]", 'category = "walk"']))
        query = self.write("walked.sql", PROJECTION)
        self.stack.command("projection", "apply", str(query))
        drop = ("projection", "drop", "walked", "--yes")
        self._mends.append(lambda: self.stack.command(*drop))
        self.tear(TYPED)
        self.tear(HISTORY)
        self.append("torn", 2)
        run(self.stack.dsn, "INSERT INTO item VALUES (2)")
        # The projection meets a row on which its query fails.
        self.append("stepped", 1)

    def stop_ingest(self) -> dict[tuple[str, str], str]:
        """Tear the log of events: ingest cannot append to it, nor upkeep look after it."""
        (log,) = Path(self.stack.lake.root, "log/events").iterdir()
        name = self.stack.lake.name_at(f"log/events/{log.name}")
        self._mends.append(lambda: self.stack.command("restart", "pipeline"))
        self.tear(name)
        self.append("stepped", 3)
        return {
            ("ingest", "ingest"): "penstock restart pipeline",
            ("upkeep", name): "penstock logs",
        }

    def log_of(self, table: str) -> Path:
        return Path(self.stack.lake.path(table)) / "_delta_log"

    def tear(self, table: str) -> None:
        """Leave what a disk that lost half a write leaves in the place of the next version."""
        log = self.log_of(table)
        last = max(int(path.stem) for path in log.glob("*[0-9].json"))
        self.write(str((log / f"{last + 1:020}.json").relative_to(self.stack.workspace)), "{torn")

    def mend_all(self) -> None:
        while self._mends:
            self._mends.pop()()

    def append(self, kind: str, n: int) -> None:
        self.stack.command("append", "walk-1", kind, f'{{"n": {n}}}')

    def write(self, name: str, text: str) -> Path:
        path = self.stack.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self._mends.append(lambda: path.unlink(missing_ok=True))
        return path

    def standing(self) -> dict[tuple[str, str], Standstill]:
        return {(s.component, s.name): s for s in standing_still(load(self.stack.workspace))}

    def asked(self, part: str, path: str) -> httpx.Response:
        settings = self.stack.settings
        url = settings.required(f"{part}.url")
        return httpx.get(f"{url}{path}", headers=bearing(settings, url), trust_env=False)

    def printed(self, *words: str) -> tuple[int, str]:
        ran = CliRunner().invoke(build(), [*words, "-w", str(self.stack.workspace)])
        return ran.exit_code, ran.output


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


@pytest.fixture
def walk(whole_stack: Path) -> Iterator[Walk]:
    made = Walk(WholeStack(whole_stack, ""))
    until(lambda: not made.standing(), "all moves", deadline_s=120)
    try:
        yield made
    finally:
        made.mend_all()


def test_each_component_that_stands_still_is_seen_at_every_door(walk: Walk) -> None:
    walk.stop_all()
    until(lambda: STOPPED.keys() <= walk.standing().keys(), "all stand still", deadline_s=180)
    stopped = STOPPED | walk.stop_ingest()
    until(lambda: stopped.keys() <= walk.standing().keys(), "ingest stands still", deadline_s=120)
    until(lambda: walk.stack.command("status", code=None)["state"] == "unready", "it is told")
    shown = walk.stack.command("status", code=EXIT_UNHEALTHY)
    # A pipeline without ingest is not even ready.
    assert shown["state"] == "unready"
    told = {(s["component"], s["name"]): s for s in shown["standing_still"]}
    for name, command in stopped.items():
        assert command in told[name]["command"]
        assert told[name]["cause"]
    doors = {part: walk.asked(part, "/health/ready").json() for part in ("pipeline", "service")}
    statuses = {part: door["status"] for part, door in doors.items()}
    assert statuses == {"pipeline": "unready", "service": "degraded"}
    metrics = "".join(walk.asked(part, "/metrics").text for part in doors)
    code, doctor = walk.printed("doctor")
    assert code == EXIT_UNHEALTHY
    for component, name in stopped:
        labels = f'component="{component}",name="{name}"'
        assert f"penstock_standing_still{{{labels}}} 1.0" in metrics
        assert f"{component} {name}" in doctor
    (projection,) = (p for p in walk.stack.command("projection", "list") if p["name"] == "walked")
    assert projection["stands_still"] == told["projection", "walked"]["cause"]
    held = {t["name"] for t in walk.stack.command("table", "list") if t["held"]}
    assert {TYPED, HISTORY} <= held
    with pytest.raises(Misconfigured, match=r"walked\.toml"):
        walk.stack.command("wait", "--timeout", "60")
    (walk.stack.workspace / "sources" / "walked.toml").unlink()
    with pytest.raises(Unavailable, match="it does not go on by itself"):
        walk.stack.command("wait", "--timeout", "60")

    walk.mend_all()
    until(lambda: not walk.standing(), "all moves again", deadline_s=180)
    assert walk.stack.command("status")["state"] == "ready"
