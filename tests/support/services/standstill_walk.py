"""Stops components of a running stack, each by a fault of its own, and mends them again."""

from __future__ import annotations

import json
import signal
import socket
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import psutil
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from typer.testing import CliRunner

from apps.access import bearing
from apps.accounts import standing_still
from apps.cli import build
from apps.settings import load
from kernel.errors import EXIT_UNHEALTHY
from schemas.registry import ConfluentRegistry
from service.standstills import Standstill
from stack.control import kill_part, restart
from stack.workspace import Workspace
from tests.support.lake.topic_stream import FIELDS, READING
from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack

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
TYPED = "typed/events.walk.torn"
HISTORY = "history/walk_places"
KEPT_UP = "log/_pending"
"""A table that upkeep looks after, and that nobody else reads here."""


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

    def mend_by(self, mend: Callable[[], object]) -> None:
        """Have something done before what was stopped earlier is mended."""
        self._mends.append(mend)

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
