"""A lake whose projection has a topic as its sink, and one who reads that topic."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import fastavro
import orjson
import pyarrow as pa
from prometheus_client import CollectorRegistry

from apps.pipeline.sinks import sinks_of
from apps.settings import Setting, Settings
from lake.layout import Lake
from lake.writer import Guard, with_op
from projections.run.catalog import LIVE, PROJECTION, Entry
from projections.sinks.sink_metrics import SinkMetrics
from replay.generations import live_app
from schemas.registry import ConfluentRegistry
from schemas.wire import HEADER_BYTES, schema_id_of
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swaps import rollback, swap
from tests.support.lake.topic_reading import records_of

STATEMENT = """CREATE PROJECTION {name} WITH (key = 'id', sink = '{target}'{more}) AS
SELECT id, word FROM STREAM events.thing.told"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One record of a topic, decoded by the schemas of the registry."""

    key: dict[str, Any]
    value: dict[str, Any] | None
    headers: dict[str, str]
    partition: int
    offset: int

    @property
    def change(self) -> tuple[str, int, str | None]:
        """What happened to which id, and the word that it has now."""
        word = None if self.value is None else self.value["word"]
        return self.headers["penstock-operation"], self.key["id"], word


@dataclass
class SinkWorld:
    """Sinks as a pipeline's process has them, over a lake that is written by hand."""

    stack: Settings
    lake: Lake
    prefix: str
    topic: str = field(init=False)

    def __post_init__(self) -> None:
        self.topic = f"{self.prefix}report"
        self.made = HandMade(self.lake)
        self.registry = ConfluentRegistry(self.stack.required("registry.url"))
        name = Setting(value=self.prefix.rstrip("."), origin="test")
        self.settings = Settings(
            self.stack.workspace, {**self.stack.values, "workspace.name": name}
        )
        self.restart()

    @property
    def target(self) -> str:
        """What the statement says of its sink."""
        return f"topic:{self.topic}"

    def restart(self) -> None:
        """Begin as a new process does, whatever became of the one before."""
        self.exposed = CollectorRegistry()
        metrics = SinkMetrics(self.exposed)
        self.sinks = sinks_of(self.settings, self.lake, self.registry, metrics)

    def text(self, more: str = "") -> str:
        """Return the statement of `report`."""
        return STATEMENT.format(name="report", target=self.target, more=more)

    def deploy(self, more: str = "", *, generation: int = 1, status: str = LIVE) -> None:
        """Deploy the projection `report` with its sink."""
        text = self.text(more)
        self.made.deployed.put(
            [
                Entry(
                    kind=PROJECTION,
                    name="report",
                    generation=generation,
                    status=status,
                    text=text,
                )
            ]
        )

    def first_run(self) -> None:
        """Write the table for the first time: rows 1 and 2."""
        self.made.run("report", words((1, "a"), (2, "b")), self.made.epoch(head=1))

    def run(self, rows: pa.Table, *, op: str = "upsert") -> None:
        """Commit a run as the projector does: by key."""
        epoch = self.made.epoch(head=1)
        app, name = live_app("report", 1), "projection/report"
        path = self.lake.path(name)
        version = self.made.writer.merge(path, with_op(rows, op), Guard(app, epoch), keys=["id"])
        self.made.note(app, {name: version}, epoch)

    def swap_and_roll_back(self) -> None:
        """Run, swap in a generation with another row, and take it back; send after each."""
        self.first_run()
        self.send()
        built = self.made.build("report", words((2, "b"), (3, "new")), 1, text=self.text())
        swap(self.made.site, built.name, catch_up=lambda *_: built)
        self.send()
        rollback(self.made.site, "report")
        self.send()

    def send(self) -> None:
        """Send until nothing is left. Raises `AssertionError` where a sink stands still."""
        while self.sinks.step():
            pass
        for state in self.sinks.states.values():
            assert state.error is None, state.error
            assert state.version == state.newest

    def received(self) -> list[Received]:
        """Read all records of committed transactions, by partition in their order."""
        bootstrap = self.stack.required("kafka.bootstrap")
        return [
            Received(
                key=self._decoded(message.key()),
                value=None if (value := message.value()) is None else self._decoded(value),
                headers={name: text.decode() for name, text in message.headers()},
                partition=message.partition(),
                offset=message.offset(),
            )
            for message in records_of(bootstrap, self.topic, f"{self.prefix}reader")
        ]

    def changes(self) -> list[tuple[str, int, str | None]]:
        """Return what the records say, in their order."""
        return [each.change for each in self.received()]

    def folded(self) -> dict[int, str]:
        """Return the rows that one has who keeps the newest record of each key."""
        rows: dict[int, str] = {}
        for each in self.received():
            _, id_, word = each.change
            if word is None:
                del rows[id_]
            else:
                rows[id_] = word
        return rows

    def _decoded(self, framed: bytes) -> dict[str, Any]:
        schema = fastavro.parse_schema(orjson.loads(self.registry.schema(schema_id_of(framed))))
        body = fastavro.schemaless_reader(io.BytesIO(framed[HEADER_BYTES:]), schema, None)
        assert isinstance(body, dict)
        return body
