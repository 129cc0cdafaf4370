"""A walk over a whole stack in which one component after the other stands still, door by door.

By a fault of its own each: first what may stand still while all others move, all of it at once,
then ingest, then a lane, the parts of the stack, and the loops of the pipeline.
"""

from __future__ import annotations

import json
import signal
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from typer.testing import CliRunner

from apps.access import bearing
from apps.accounts import standing_still
from apps.cli import build
from apps.settings import load
from kernel.errors import EXIT_UNHEALTHY, Misconfigured, PenstockError, Unavailable
from schemas.registry import ConfluentRegistry
from service.standstills import Standstill
from stack.control import kill_part, restart
from stack.workspace import Workspace
from tests.support.lake.topic_stream import FIELDS, READING, reading
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
LANE = "walk_readings"
READINGS = f"CREATE SOURCE {LANE} WITH (topic = 'walk-readings', format = 'avro');"
HELD = "sink.before_commit=hold,projection.before_commit=hold@2,quarantine.after_outcomes=hold"
"""Where the loops of sinks, of projections and of ingest are held, in this order."""
HANGS = ("kafka", "connect", "pipeline", "service")
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
        self.make("walk-places")
        self.place(10)
        self.await_table(HISTORY)
        until(self._sent, "the sink has sent", deadline_s=120)

    def place(self, wind: int) -> None:
        """Record a version of a place."""
        row = {"place": "walk-1", "at": "2024-05-01T10:00:00Z", "wind": wind}
        self.send("walk-places", json.dumps(row).encode())

    def make(self, topic: str) -> None:
        for made in self._admin.create_topics([NewTopic(topic, 1)]).values():
            with suppress(KafkaException):  # By the walk before.
                made.result()

    def send(self, topic: str, value: bytes) -> None:
        self._producer.produce(topic, value)
        self._producer.flush()

    def declare_readings(self) -> None:
        """Declare a topic in Avro: of a schema that is new, only the registry can tell."""
        self.make("walk-readings")
        self.stack.command("projection", "apply", str(self.write("readings.sql", READINGS)))
        self._mends.append(partial(self.stack.command, "source", "remove", LANE, "--yes"))

    def schema(self, *more: str) -> int:
        """Register a reading with further fields; return the schema's number."""
        added = [{"name": each, "type": ["null", "long"], "default": None} for each in more]
        told = READING | {"fields": [*FIELDS, *added]}
        registry = ConfluentRegistry(self.stack.settings.required("registry.url"))
        return registry.register("walk-readings-value", json.dumps(told))

    def records(self) -> int:
        """Return how many records of the lane are in the log."""
        listed = self.stack.command("source", "list")["topics"]
        return next((int(t["records"]) for t in listed if t["source"] == LANE), 0)

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

    def stands(self, *names: tuple[str, str]) -> bool:
        """Say whether all of these stand still, by component and name."""
        return {*names} <= self.standing().keys()

    def until_all_moves(self) -> None:
        """Wait until nothing stands still; say what does if that never comes."""
        try:
            until(lambda: not self.standing(), "all moves again", deadline_s=100)
        except AssertionError as error:
            raise AssertionError(
                f"{error}: {[str(s) for s in self.standing().values()]}"
            ) from error

    def freeze(self, part: str) -> Callable[[], None]:
        """Stop a part's processes, as a machine that hangs would; return what lets them go on."""
        first = psutil.Process(kill_part(self.stack.workspace, part, signal.SIGSTOP))
        stopped = [first, *first.children(recursive=True)]
        for each in stopped:
            each.suspend()

        def go_on() -> None:
            for each in stopped:
                with suppress(psutil.NoSuchProcess):
                    each.resume()

        self._mends.append(go_on)
        return go_on

    def restart_with(self, **variables: str) -> None:
        """Start the pipeline again with variables of its own; mended by another start without."""
        workspace = Workspace.at(self.stack.workspace)
        (before,) = (part for part in workspace.read_plan().parts if part.name == "pipeline")

        def start(more: Mapping[str, str]) -> None:
            plan = workspace.read_plan()
            parts = {part.name: part for part in plan.parts}
            parts["pipeline"] = replace(parts["pipeline"], env={**before.env, **more})
            workspace.write_plan(replace(plan, parts=tuple(parts.values())))
            restart(self.stack.workspace, "pipeline")

        self._mends.append(partial(start, {}))
        start(variables)

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
    until(lambda: walk.stands(*STOPPED), "all stand still", deadline_s=180)
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
    walk: Walk, stopped: Mapping[tuple[str, str], str], *, state: str = "degraded"
) -> dict[tuple[str, str], dict[str, str]]:
    """Look at `status` and `doctor` for what stands still: cause and command of each."""
    shown = walk.stack.command("status", code=EXIT_UNHEALTHY)
    assert shown["state"] == state
    told = {(s["component"], s["name"]): s for s in shown["standing_still"]}
    code, doctor = walk.printed("doctor")
    assert code == EXIT_UNHEALTHY
    for (component, name), command in stopped.items():
        assert command in told[component, name]["command"]
        assert told[component, name]["cause"]
        assert f"{component} {name}" in doctor
    return told


@pytest.mark.matrix
def test_ingest_that_stands_still_is_seen_at_every_door(walk: Walk) -> None:
    walk.tear("epochs")
    walk.append("stepped", 3)
    # Not ready for its supervisor either, which asks now and then.
    stopped = {("ingest", "ingest"): "penstock ", ("part", "pipeline"): "penstock restart pipeline"}
    until(lambda: walk.stands(*stopped), "it stands still", deadline_s=60)
    assert_told(walk, stopped, state="unready")
    health = walk.asked("pipeline", "/health/ready")
    assert (health.status_code, health.json()["status"]) == (503, "unready")
    labels = 'component="ingest",name="ingest"'
    metrics = walk.asked("pipeline", "/metrics").text
    assert f"penstock_standing_still{{{labels}}} 1.0" in metrics
    with pytest.raises(PenstockError, match="epochs"):
        walk.stack.command("wait", "--timeout", "0")
    walk.mend_all()
    walk.until_all_moves()
    walk.stack.command("wait", "--timeout", "60")


@pytest.mark.matrix
def test_a_lane_whose_registry_hangs_is_seen_at_every_door(walk: Walk) -> None:
    walk.declare_readings()
    before = walk.records()
    walk.send("walk-readings", reading(walk.schema(), 1, 20.5))
    until(lambda: walk.records() > before, "what all know is read", deadline_s=120)
    read, new = walk.records(), walk.schema(f"more_{uuid.uuid4().hex[:8]}")
    go_on = walk.freeze("registry")
    walk.send("walk-readings", reading(new, 2, 20.5) + b"\0")
    lane = ("source", LANE)
    stopped = {("part", "registry"): "penstock restart registry", lane: "penstock status"}
    until(lambda: walk.stands(*stopped), "the lane is held", deadline_s=120)
    told = assert_told(walk, stopped, state="unready")
    assert "does not answer" in told[lane]["cause"]
    assert walk.asked("pipeline", "/health/ready").json()["status"] == "degraded"
    labels = f'component="source",name="{LANE}"'
    assert f"penstock_standing_still{{{labels}}} 1.0" in walk.asked("pipeline", "/metrics").text
    (listed,) = (t for t in walk.stack.command("source", "list")["topics"] if t["source"] == LANE)
    assert listed["standing_still"] == [told[lane]]
    shown = walk.stack.command("source", "status", LANE, code=EXIT_UNHEALTHY)
    assert shown["standing_still"] == [told[lane]]
    with pytest.raises(Unavailable, match=f"source {LANE} stands still"):
        walk.stack.command("wait", "--timeout", "1")
    go_on()
    until(lambda: walk.records() > read, "the lane is read again", deadline_s=120)
    walk.mend_all()
    walk.until_all_moves()


@pytest.mark.matrix
def test_parts_that_hang_are_seen_at_every_door(walk: Walk) -> None:
    stopped = {("part", name): f"penstock restart {name}" for name in HANGS}
    for name in HANGS:
        walk.freeze(name)
    until(lambda: walk.stands(*stopped), "all hang", deadline_s=30)
    assert_told(walk, stopped, state="unready")
    with pytest.raises(Unavailable, match="part pipeline stands still"):
        walk.stack.command("wait", "--timeout", "1")
    walk.mend_all()
    walk.until_all_moves()


@pytest.mark.matrix
def test_a_store_that_hangs_is_seen_at_every_door(walk: Walk) -> None:
    walk.freeze("postgres")
    stopped = {("part", "postgres"): "penstock restart postgres"}
    until(lambda: walk.stands(*stopped), "it hangs", deadline_s=30)
    assert_told(walk, stopped, state="unready")
    health = walk.asked("service", "/health/ready")
    assert (health.status_code, health.json()["status"]) == (503, "unready")
    labels = 'component="service",name="store"'
    assert f"penstock_standing_still{{{labels}}} 1.0" in walk.asked("service", "/metrics").text
    with pytest.raises(Unavailable, match="part postgres stands still"):
        walk.stack.command("wait", "--timeout", "1")
    walk.mend_all()
    walk.until_all_moves()


@pytest.mark.matrix
def test_loops_that_hang_are_seen_at_every_door(walk: Walk) -> None:
    walk.append("stepped", 3)
    walk.keep_a_history()
    walk.restart_with(PENSTOCK_FAILPOINTS=HELD, PENSTOCK_PIPELINE_STANDSTILL_SECONDS="2")
    waive = ("quarantine", "waive", "walk-places", "--reason", "the walk", "--yes")

    def refuse_a_record() -> None:
        walk.send("walk-places", b"{torn")
        there = partial(walk.stack.health)
        until(lambda: "walk-places" in there()["quarantine"], "it is refused", deadline_s=60)
        walk.stack.command(*waive)

    faults: dict[tuple[str, str], Callable[[], None]] = {
        ("loop", "sinks"): partial(walk.append, "stepped", 4),
        ("projecting", "projecting"): partial(walk.append, "stepped", 5),
        ("ingest", "ingest"): refuse_a_record,
    }
    for held, fault in faults.items():
        fault()
        until(partial(walk.stands, held), f"{held} stands still", deadline_s=60)
    told = assert_told(walk, dict.fromkeys(faults, "penstock restart pipeline"))
    health = walk.asked("pipeline", "/health/ready").json()
    metrics = walk.asked("pipeline", "/metrics").text
    assert health["status"] == "degraded"
    for component, name in faults:
        assert "has not moved on for" in told[component, name]["cause"]
        labels = f'component="{component}",name="{name}"'
        assert f"penstock_standing_still{{{labels}}} 1.0" in metrics
    with pytest.raises(Unavailable, match="ingest stands still"):
        walk.stack.command("wait", "--timeout", "60")
    walk.mend_all()
    walk.until_all_moves()
