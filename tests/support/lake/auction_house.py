"""Nexmark's topics in a lake without services: records as they came, doubled, late, out of order.

The log's records become typed tables, and projections run on these, as the pipeline does both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.nexmark.generator import Setting, events
from kernel.positions import Epoch
from lake.layout import Lake, topics_log
from lake.table_columns import TOPICS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.typed.topic_rows import TopicRows
from pipeline.typed.topics import TypedTopics, typed_topic
from projections.run.catalog import Deployment
from projections.run.key_runs import KEPT_BY_KEYS
from projections.run.projector import Projector
from projections.run.region_runs import Reading, RegionRuns
from projections.run.relations import LakeCatalog
from projections.run.targets import Target
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.plan import Plan, plan
from projections.sql.statements.parse import parse_script
from projections.sql.statements.topics import shape_of
from projections.sql.words.catalog import MemoryCatalog
from schemas.registry import MemoryRegistry
from tests.support.lake.handmade import NoSpark
from tests.support.oracles.nexmark import SOURCES, Fact
from tests.support.oracles.region_world import plain

QUERIES = Path(__file__).parents[3] / "benchmarks" / "nexmark" / "queries"
BEGUN = datetime(2015, 7, 14, 23, 59, 20, tzinfo=UTC)
SETTING = Setting(
    seed=7,
    events=400,
    begun=BEGUN,
    apart=timedelta(milliseconds=200),
    first_id=1100,
    hot_group=4,
    in_flight=6,
)
EPOCHS = (1, 2, 3, 4)
SIDE_INPUT = {
    1: {key: f"value {key}" for key in range(1100, 1112)},
    3: {key: f"value {key * 2}" for key in range(1106, 1120)},
}
"""What the bounded table holds, from an epoch on."""
_OFFSET = 1_000_000


@dataclass(frozen=True, slots=True)
class Arrived:
    """A record with the epoch that read it. `late`: its event time was closed by then."""

    source: str
    values: dict[str, object]
    epoch: int
    late: bool


def planned(name: str) -> Plan:
    """Plan one query."""
    return planned_text(query_text(name))


def planned_text(text: str) -> Plan:
    """Plan a query over the auction house's topics."""
    script = parse_script((QUERIES / "sources.sql").read_text() + text)
    catalog = DeclaredCatalog(MemoryCatalog(), script.sources)
    return plan(script.projections[0], catalog)


def query_text(name: str) -> str:
    return (QUERIES / f"{name}.sql").read_text()


def arrivals(seed: int) -> list[Arrived]:
    """Return records in the order in which they are read: shuffled, some twice, some late."""
    draw = random.Random(seed)
    came = []
    for source, values in events(replace(SETTING, seed=seed)):
        for _ in range(2 if draw.random() < 0.15 else 1):
            came.append(Arrived(source, values, draw.choice(EPOCHS), draw.random() < 0.03))
    draw.shuffle(came)
    return sorted(came, key=lambda one: one.epoch)


@dataclass(slots=True)
class AuctionHouse:
    """The lake of one run of arrivals, brought forward epoch by epoch."""

    root: Path
    came: list[Arrived]
    lake: Lake = field(init=False)
    tables: Tables = field(default_factory=Tables)
    runs: RegionRuns = field(init=False)
    projector: Projector = field(init=False)

    def __post_init__(self) -> None:
        self.lake = Lake.at(self.root)
        self.runs = RegionRuns(self.lake, self.tables)
        manifest = Manifest(self.lake, self.tables)
        self.projector = Projector(NoSpark(), self.lake, self.tables, manifest)

    def ingest(self) -> None:
        """Log all records with their epochs, and make typed rows of them."""
        declared = parse_script((QUERIES / "sources.sql").read_text()).sources
        shapes = {each.name: shape_of(each) for each in declared}
        for source in SOURCES:
            own = [one for one in self.came if one.source == source]
            logged = pa.Table.from_pylist([_logged(n, one) for n, one in enumerate(own)], TOPICS)
            write_deltalake(self.lake.path(topics_log(source)), logged)
            shape = shapes[source]
            assert shape is not None
            rows = TopicRows(shape, MemoryRegistry())
            TypedTopics(self.lake, self.tables).add(rows, Epoch(max(EPOCHS)))

    def show_side_input(self, epoch: int) -> None:
        """Let the bounded table hold what it has from an epoch on."""
        if epoch not in SIDE_INPUT:
            return
        rows = [
            {"key": key, "value": value, "at": BEGUN, "valid_from": BEGUN, "_deleted": False}
            for key, value in SIDE_INPUT[epoch].items()
        ]
        moment = pa.timestamp("us", "UTC")
        schema = pa.schema(
            [
                *[("key", pa.int64()), ("value", pa.string()), ("at", moment)],
                *[("valid_from", moment), ("valid_to", moment), ("_deleted", pa.bool_())],
            ]
        )
        write_deltalake(
            self.lake.path("history/side_input"),
            pa.Table.from_pylist(rows, schema),
            mode="overwrite",
        )

    def run(self, made: Plan, epoch: int) -> list[dict[str, object]]:
        """Bring a projection's table to an epoch as the pipeline does; return its rows."""
        reading = self.reading(made)
        path, app, catalog = reading.path, reading.app_id, reading.catalog
        if made.strategy in KEPT_BY_KEYS:
            target = Target(
                name=f"projection/{made.name}", path=path, app_id=app, include_late=False
            )
            self.projector.run(made, target, catalog, Epoch(epoch))
            return self.rows(made)
        changes = self.runs.changes(reading, Epoch(epoch))
        guard = Guard(app, Epoch(epoch))
        writer = ArrowWriter(self.tables)
        self.runs.committed(app, writer.merge(path, changes, guard, keys=made.key))
        return self.rows(made)

    def reading(self, made: Plan) -> Reading:
        """Return what runs of a projection read."""
        typed = [typed_topic(source) for source in SOURCES]
        nothing = Deployment(version=1, captures={}, slots={}, sources={}, projections={})
        return Reading(
            plan=made,
            catalog=LakeCatalog(self.lake, self.tables, nothing, typed=typed, fields={}),
            app_id=f"projection/{made.name}/g1",
            path=self.lake.path(f"projection/{made.name}"),
            include_late=False,
            versions={},
        )

    def rows(self, made: Plan) -> list[dict[str, object]]:
        """Return the rows of a projection's table, in the columns of its query."""
        path = self.lake.path(f"projection/{made.name}")
        rows = self.tables.read(path, columns=[each.name for each in made.columns])
        assert rows is not None
        return [{name: plain(value) for name, value in row.items()} for row in rows.to_pylist()]

    def facts(self, epoch: int) -> Iterable[Fact]:
        """Yield the facts up to an epoch: of records of one event the one that was read first."""
        seen: set[object] = set()
        for one in self.came:
            if one.epoch <= epoch and one.values["event"] not in seen:
                seen.add(one.values["event"])
                yield Fact(one.source, one.values, ingested_at(one.epoch), one.late)


def filled_house(folder: Path, seed: int) -> AuctionHouse:
    """Make a house in which all has come, the last state of its side input with it."""
    made = AuctionHouse(folder, arrivals(seed))
    made.ingest()
    for epoch in EPOCHS:
        made.show_side_input(epoch)
    return made


def side_input_at(epoch: int) -> dict[int, str]:
    return SIDE_INPUT[max(each for each in SIDE_INPUT if each <= epoch)]


def ingested_at(epoch: int) -> datetime:
    return BEGUN + timedelta(minutes=5, seconds=7 * epoch)


def _logged(number: int, one: Arrived) -> dict[str, object]:
    document = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in one.values.items()
    }
    return {
        "epoch": one.epoch,
        "topic_id": "t",
        "kafka_time": ingested_at(one.epoch),
        "event_time": one.values["date_time"],
        "own_time": True,
        "value": json.dumps(document).encode(),
        "headers": "{}",
        "topic": f"nexmark.{one.source}",
        "partition": 0,
        "offset": number,
        "ingested_at": ingested_at(one.epoch),
        "closed_late": one.late,
    }
