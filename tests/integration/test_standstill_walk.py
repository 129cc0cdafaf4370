"""A walk over a whole stack in which one component after the other stands still, door by door."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from apps.access import bearing
from apps.accounts import standing_still
from apps.cli import build
from apps.settings import load
from kernel.errors import EXIT_UNHEALTHY, Misconfigured, Unavailable
from service.standstills import Standstill
from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack

pytestmark = pytest.mark.timeout(600)
FILES = "sources/*.toml"
PROJECTION = """
CREATE PROJECTION walked WITH (key = 'event_id') AS
SELECT event_id, n, 100 / (n - 1) AS share, occurred_at FROM STREAM events.walk.stepped;
"""
TYPED = "typed/events.walk.torn"
STOPPED = {
    ("connector", FILES): "penstock doctor",
    ("copy", FILES): "penstock doctor",
    ("verification", FILES): "penstock doctor",
    ("projection", "walked"): "penstock projection status walked",
    ("table", TYPED): f"penstock table retry {TYPED}",
    ("delivery", "walked"): "penstock status",
    ("deciders", "workspace"): "penstock logs service",
}
"""What is made to stand still, and a part of the command that leads on."""


class Walk:
    """Stops components of a running stack, each by a fault of its own, and mends them again."""

    def __init__(self, stack: WholeStack) -> None:
        self.stack = stack
        self._mends: list[Callable[[], object]] = []

    def stop_all(self) -> None:
        self.append("stepped", 2)
        self.append("torn", 1)
        typed = Path(self.stack.lake.path(TYPED)) / "_delta_log"
        until(lambda: any(typed.glob("*.json")), "the typed table is there", deadline_s=120)
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
        following = f"{len(list(typed.glob('*.json'))):020}.json"
        self.write(str((typed / following).relative_to(self.stack.workspace)), "{torn")
        self.append("torn", 2)
        # The projection meets a row on which its query fails.
        self.append("stepped", 1)

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

    def until_all_moves(self) -> None:
        """Wait until nothing stands still; say what does if that never comes."""
        try:
            until(lambda: not self.standing(), "all moves again", deadline_s=100)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {[str(s) for s in self.standing().values()]}"
            ) from error

    def asked(self, part: str, path: str) -> httpx.Response:
        settings = self.stack.settings
        url = settings.required(f"{part}.url")
        return httpx.get(f"{url}{path}", headers=bearing(settings, url), trust_env=False)

    def printed(self, *words: str) -> tuple[int, str]:
        ran = CliRunner().invoke(build(), [*words, "-w", str(self.stack.workspace)])
        return ran.exit_code, ran.output


@pytest.fixture
def walk(whole_stack: Path) -> Iterator[Walk]:
    made = Walk(WholeStack(whole_stack, ""))
    made.until_all_moves()
    try:
        yield made
    finally:
        made.mend_all()


def test_each_component_that_stands_still_is_seen_at_every_door(walk: Walk) -> None:
    walk.stop_all()
    until(lambda: STOPPED.keys() <= walk.standing().keys(), "all stand still", deadline_s=180)
    shown = walk.stack.command("status", code=EXIT_UNHEALTHY)
    assert shown["state"] == "degraded"
    told = {(s["component"], s["name"]): s for s in shown["standing_still"]}
    for name, command in STOPPED.items():
        assert command in told[name]["command"]
        assert told[name]["cause"]
    doors = {part: walk.asked(part, "/health/ready").json() for part in ("pipeline", "service")}
    assert {part: door["status"] for part, door in doors.items()} == dict.fromkeys(
        doors, "degraded"
    )
    metrics = "".join(walk.asked(part, "/metrics").text for part in doors)
    code, doctor = walk.printed("doctor")
    assert code == EXIT_UNHEALTHY
    for component, name in STOPPED:
        labels = f'component="{component}",name="{name}"'
        assert f"penstock_standing_still{{{labels}}} 1.0" in metrics
        assert f"{component} {name}" in doctor
    (projection,) = (p for p in walk.stack.command("projection", "list") if p["name"] == "walked")
    assert projection["stands_still"] == told["projection", "walked"]["cause"]
    (table,) = (t for t in walk.stack.command("table", "list") if t["name"] == TYPED)
    assert table["held"]
    with pytest.raises(Misconfigured, match=r"walked\.toml"):
        walk.stack.command("wait", "--timeout", "60")
    (walk.stack.workspace / "sources" / "walked.toml").unlink()
    with pytest.raises(Unavailable, match="it does not go on by itself"):
        walk.stack.command("wait", "--timeout", "60")

    walk.mend_all()
    walk.until_all_moves()
    assert walk.stack.command("status")["state"] == "ready"
