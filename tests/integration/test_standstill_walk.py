"""A walk over a whole stack in which one component after the other stands still, door by door.

By a fault of its own each, all of them at once: whatever may stand still while ingest moves.
"""

from __future__ import annotations

import json
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import httpx
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
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
AS_OF = """
CREATE SOURCE walk_places (place STRING, at TIMESTAMP, wind INT) WITH (
  topic = 'walk-places', format = 'json', key = place, event_time = at);
CREATE PROJECTION walked_as_of WITH (key = 'event_id', sink = 'topic:{changes}') AS
SELECT e.event_id, w.wind FROM STREAM events.walk.stepped e
LEFT JOIN walk_places FOR SYSTEM_TIME AS OF e.occurred_at w ON w.place = e.stream;
"""
TYPED = "typed/events.walk.torn"
HISTORY = "history/walk_places"
KEPT_UP = "log/_pending"
"""A table that upkeep looks after, and that nobody else reads here."""
STOPPED = {
    ("connector", FILES): "penstock doctor",
    ("copy", FILES): "penstock doctor",
    ("verification", FILES): "penstock doctor",
    ("projection", "walked"): "penstock projection status walked",
    ("table", TYPED): f"penstock table retry {TYPED}",
    ("table", HISTORY): f"penstock table retry {HISTORY}",
    ("sink", "walked_as_of"): "penstock projection status walked_as_of",
    ("upkeep", KEPT_UP): "penstock logs pipeline",
    ("delivery", "walked"): "penstock status",
    ("deciders", "workspace"): "penstock logs service",
}
"""What is made to stand still, and a part of the command that leads on."""


class Walk:
    """Stops components of a running stack, each by a fault of its own, and mends them again."""

    def __init__(self, stack: WholeStack) -> None:
        self.stack = stack
        self._mends: list[Callable[[], object]] = []
        self._changes = f"walked-{uuid.uuid4().hex[:8]}"
        broker = {"bootstrap.servers": stack.settings.required("kafka.bootstrap")}
        self._producer, self._admin = Producer(broker), AdminClient(broker)

    def stop_all(self) -> None:
        self.append("stepped", 2)
        self.append("torn", 1)
        self.await_table(TYPED)
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
        self.keep_a_history()
        self.tear(TYPED)
        self.tear(HISTORY)
        self.tear(KEPT_UP)
        self.place(11)
        self._admin.create_partitions([NewPartitions(self._changes, 2)])[self._changes].result()
        self.append("torn", 2)
        # The projection meets a row on which its query fails.
        self.append("stepped", 1)

    def keep_a_history(self) -> None:
        """Declare a topic whose history a projection asks for, and whose rows go to a topic."""
        statements = self.write("walked_as_of.sql", AS_OF.format(changes=self._changes))
        self.stack.command("projection", "apply", str(statements))
        remove = ("source", "remove", "walk_places", "--yes")
        drop = ("projection", "drop", "walked_as_of", "--yes")
        self._mends += [partial(self.stack.command, *remove), partial(self.stack.command, *drop)]
        for made in self._admin.create_topics([NewTopic("walk-places", 1)]).values():
            with suppress(KafkaException):  # By the walk before.
                made.result()
        self.place(10)
        self.await_table(HISTORY)
        until(self._sent, "the sink has sent", deadline_s=120)

    def place(self, wind: int) -> None:
        """Record a version of a place."""
        row = {"place": "walk-1", "at": "2024-05-01T10:00:00Z", "wind": wind}
        self._producer.produce("walk-places", json.dumps(row))
        self._producer.flush()

    def _sent(self) -> bool:
        sinks = self.stack.health().get("sinks", {})
        return bool(sinks.get("walked_as_of", {}).get("records"))

    def await_table(self, name: str) -> None:
        until(lambda: self._commits(name) > 0, f"{name} is there", deadline_s=120)

    def tear(self, name: str) -> None:
        """Put half a commit where a table's next one ought to be."""
        torn = Path(self.stack.lake.path(name)) / "_delta_log" / f"{self._commits(name):020}.json"
        self.write(str(torn.relative_to(self.stack.workspace)), "{torn")

    def _commits(self, name: str) -> int:
        log = Path(self.stack.lake.path(name)) / "_delta_log"
        return max((int(path.stem) + 1 for path in log.glob("*.json")), default=0)

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
    told = assert_told(walk, STOPPED)
    doors = {part: walk.asked(part, "/health/ready").json() for part in ("pipeline", "service")}
    assert {part: door["status"] for part, door in doors.items()} == dict.fromkeys(
        doors, "degraded"
    )
    metrics = "".join(walk.asked(part, "/metrics").text for part in doors)
    for component, name in STOPPED:
        labels = f'component="{component}",name="{name}"'
        assert f"penstock_standing_still{{{labels}}} 1.0" in metrics
    (projection,) = (p for p in walk.stack.command("projection", "list") if p["name"] == "walked")
    assert projection["stands_still"] == told["projection", "walked"]["cause"]
    tables = {t["name"]: t for t in walk.stack.command("table", "list")}
    assert tables[TYPED]["held"]
    assert tables[HISTORY]["held"]
    with pytest.raises(Misconfigured, match=r"walked\.toml"):
        walk.stack.command("wait", "--timeout", "60")
    (walk.stack.workspace / "sources" / "walked.toml").unlink()
    with pytest.raises(Unavailable, match="it does not go on by itself"):
        walk.stack.command("wait", "--timeout", "60")

    walk.mend_all()
    walk.until_all_moves()
    assert walk.stack.command("status")["state"] == "ready"


def assert_told(
    walk: Walk, stopped: Mapping[tuple[str, str], str]
) -> dict[tuple[str, str], dict[str, str]]:
    """Look at `status` and `doctor` for what stands still: cause and command of each."""
    shown = walk.stack.command("status", code=EXIT_UNHEALTHY)
    assert shown["state"] == "degraded"
    told = {(s["component"], s["name"]): s for s in shown["standing_still"]}
    code, doctor = walk.printed("doctor")
    assert code == EXIT_UNHEALTHY
    for (component, name), command in stopped.items():
        assert command in told[component, name]["command"]
        assert told[component, name]["cause"]
        assert f"{component} {name}" in doctor
    return told
