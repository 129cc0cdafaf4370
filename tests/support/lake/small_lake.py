"""A lake made by hand: typed tables, histories and epochs without Kafka, projections run as live.

Facts are departures (`events.flight.departed`) and hourly readings (`demo.public.weather`, keyed by
origin and hour, declared as history `weather`). Minutes count from 2013-01-01 UTC.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kernel.clock import micros
from kernel.positions import Epoch
from lake.layout import Lake
from lake.table_columns import UTC_MICROS
from lake.tables import TableAt, Tables
from lake.writer import Guard
from pipeline.history.shape import HistoryOf
from pipeline.history.tables import HistoryTables
from pipeline.position.progress import Progress
from pipeline.typed.columns import EVENT_COLUMNS
from pipeline.typed.tables import TypedTables
from projections.run.catalog import CAPTURE, LIVE, PROJECTION, SOURCE, Entry
from projections.run.derived_tables import Brought, DerivedTables
from projections.run.projection_states import Run
from projections.run.projector import Projector
from projections.run.targets import live_target
from replay.subject import Site, subject_of
from schemas.registry import MemoryRegistry
from tests.support.lake.handmade import HandMade
from tests.support.lake.kept_history import FORCED_BYTES

DEPARTED = "typed/events.flight.departed"
WEATHER = "typed/demo.public.weather"
WEATHER_HISTORY = HistoryOf(
    name="history/weather",
    typed=WEATHER,
    key=("origin",),
    identity=("origin", "hour"),
    by_row=True,
)
START = datetime(2013, 1, 1, tzinfo=UTC)

_HIDDEN = [
    ("_epoch", pa.int64()),
    ("_late", pa.bool_()),
    ("_time", UTC_MICROS),
    ("_seq_hi", pa.int64()),
    ("_seq_lo", pa.int64()),
    ("_ingested_at", UTC_MICROS),
]
_DEPARTED = pa.schema(
    [
        ("flight", pa.int64()),
        ("carrier", pa.string()),
        ("origin", pa.string()),
        ("delay", pa.float64()),
        *EVENT_COLUMNS,
        *_HIDDEN,
    ]
)
_WEATHER = pa.schema(
    [
        ("origin", pa.string()),
        ("hour", UTC_MICROS),
        ("wind", pa.float64()),
        ("committed_at", UTC_MICROS),
        ("_operation", pa.string()),
        *_HIDDEN,
    ]
)

SOURCES = """
CREATE SOURCE weather ON demo.public.weather
WITH (key = 'origin', event_time = 'hour', lateness = '365 days');
"""
LATEST = """
CREATE PROJECTION latest WITH (key = 'flight') AS
SELECT flight, carrier, delay, occurred_at FROM STREAM events.flight.departed;
"""
DELAYS = """
CREATE PROJECTION delays WITH (key = 'carrier, window_start') AS
SELECT carrier, window_start, window_end, COUNT(*) AS flights, AVG(delay) AS mean_delay
FROM STREAM events.flight.departed
GROUP BY carrier, TUMBLE(occurred_at, '1 hour');
"""
WINDY = """
CREATE PROJECTION windy WITH (key = 'event_id') AS
SELECT f.event_id, f.flight, f.origin, f.occurred_at, w.wind
FROM STREAM events.flight.departed f
LEFT JOIN weather FOR SYSTEM_TIME AS OF f.occurred_at w ON w.origin = f.origin;
"""
PROJECTIONS = {"latest": LATEST, "delays": DELAYS, "windy": WINDY}
DEPARTURES = "STREAM events.flight.departed"
ON_SPARK = {
    "delays_loud": f"""
CREATE PROJECTION delays_loud WITH (key = 'carrier, window_start') AS
SELECT upper(lower(carrier)) AS carrier, window_start, COUNT(*) AS flights, SUM(delay) AS delay
FROM {DEPARTURES} GROUP BY upper(lower(carrier)), TUMBLE(occurred_at, '1 hour');
""",
    "counts_loud": f"""
CREATE PROJECTION counts_loud WITH (key = 'carrier') AS
SELECT upper(lower(carrier)) AS carrier, COUNT(*) AS flights, AVG(flight) AS mean,
  MAX(delay) AS worst, flight AS last
FROM {DEPARTURES} GROUP BY upper(lower(carrier));
""",
    "windy_loud": f"""
CREATE PROJECTION windy_loud WITH (key = 'flight') AS
SELECT f.flight, upper(lower(f.origin)) AS origin, f.occurred_at, w.wind FROM {DEPARTURES} f
JOIN weather FOR SYSTEM_TIME AS OF f.occurred_at w ON w.origin = f.origin WHERE w.wind > 9;
""",
    "parts_loud": f"""
CREATE PROJECTION parts_loud WITH (key = 'carrier') AS
SELECT carrier, MAX_BY(struct(flight, delay), delay) AS worst, map('n', COUNT(*)) AS counts,
  transform(collect_list(flight), x -> x * 2) AS twice, corr(flight, delay) AS together,
  from_json(to_json(struct(MAX(flight) AS f)), 'f BIGINT').f AS most
FROM {DEPARTURES} GROUP BY carrier;
""",
    "documents_loud": f"""
CREATE PROJECTION documents_loud WITH (key = 'flight') AS
SELECT flight, occurred_at, array(origin, carrier) AS names,
  filter(array(delay), x -> x > 9) AS late,
  from_json(to_json(struct(carrier, delay)), 'carrier STRING, delay DOUBLE') AS given
FROM {DEPARTURES};
""",
}
"""Projections of one step with an expression that Spark alone computes."""
STEPS = {
    "visits": f"""
CREATE PROJECTION visits WITH (key = 'flight, window_start') AS
SELECT flight, window_start, window_end, COUNT(*) AS n, SUM(delay) AS delay
FROM {DEPARTURES} GROUP BY flight, SESSION(occurred_at, '10 minutes');
""",
    "recent": f"""
CREATE PROJECTION recent WITH (key = 'event_id') AS
SELECT event_id, flight, occurred_at,
  SUM(delay) OVER (PARTITION BY flight ORDER BY occurred_at
    RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW) AS last_hour,
  ROW_NUMBER() OVER (PARTITION BY flight ORDER BY occurred_at) AS place
FROM {DEPARTURES};
""",
    "followed": f"""
CREATE PROJECTION followed WITH (key = 'event_id') AS
SELECT a.event_id, a.flight, b.event_id AS next_id
FROM {DEPARTURES} a LEFT JOIN {DEPARTURES} b ON b.flight = a.flight
  AND b.occurred_at > a.occurred_at AND b.occurred_at <= a.occurred_at + INTERVAL 30 MINUTES;
""",
    "worst": f"""
CREATE PROJECTION worst WITH (key = 'event_id') AS
SELECT e.event_id, e.carrier, e.delay FROM {DEPARTURES} e
JOIN (SELECT MAX(delay) AS most, COUNT(*) AS n FROM {DEPARTURES} GROUP BY carrier) m
  ON e.delay = m.most;
""",
    "windiest": f"""
CREATE PROJECTION windiest WITH (key = 'strongest') AS
WITH blown AS (
  SELECT e.flight, MAX(w.wind) AS wind FROM {DEPARTURES} e
  JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at w ON w.origin = e.origin
  GROUP BY e.flight)
SELECT concat('wind ', CAST(CAST(COUNT(*) AS BIGINT) AS STRING)) AS strongest,
  COUNT(*) AS flights, MAX(wind) AS wind FROM blown GROUP BY wind > 10;
""",
    "alone": f"""
CREATE PROJECTION alone WITH (key = 'name') AS
SELECT concat('flight ', CAST(flight AS STRING)) AS name, position FROM {DEPARTURES} a
WHERE NOT EXISTS (SELECT 1 FROM {DEPARTURES} b
  WHERE b.flight = a.flight AND b.occurred_at < a.occurred_at)
UNION ALL SELECT carrier, position FROM {DEPARTURES};
""",
    "calmer": f"""
CREATE PROJECTION calmer WITH (key = 'flight, began_at') AS
SELECT flight, began_at, n, delay, until FROM {DEPARTURES} MATCH_RECOGNIZE (
  PARTITION BY flight ORDER BY occurred_at
  MEASURES FIRST(a.occurred_at) AS began_at, COUNT(*) AS n, SUM(a.delay) AS delay,
    b.position AS until
  PATTERN (a+ b) WITHIN INTERVAL 1 HOUR
  DEFINE a AS a.delay >= 0, b AS b.delay < LAST(a.delay)) found;
""",
}
"""Projections of several steps."""
FINAL = {
    "closed": f"""
CREATE PROJECTION closed WITH (key = 'carrier, window_start', emit = 'final') AS
SELECT carrier, window_start, window_end, COUNT(*) AS flights, SUM(delay) AS delay
FROM {DEPARTURES} GROUP BY carrier, TUMBLE(occurred_at, '1 hour');
""",
}
"""Rows that are given out once the watermark of `epoch` has passed their end."""
CHAIN = {
    "per_flight": f"""
CREATE PROJECTION per_flight WITH (key = 'flight') AS
SELECT flight, COUNT(*) AS n, SUM(delay) AS delay FROM {DEPARTURES} GROUP BY flight;
""",
    "by_number": """
CREATE PROJECTION by_number WITH (key = 'n') AS
SELECT n, COUNT(*) AS flights FROM per_flight GROUP BY n;
""",
    "windy_now": f"""
CREATE PROJECTION windy_now WITH (key = 'event_id') AS
SELECT d.event_id, d.origin, p.n, w.wind FROM {DEPARTURES} d
JOIN per_flight p ON p.flight = d.flight LEFT JOIN weather w ON w.origin = d.origin;
""",
    "winds": """
CREATE PROJECTION winds WITH (key = 'origin') AS
SELECT upper(origin) AS origin, wind FROM weather;
""",
}
"""Projections over tables and over each other; `winds` is computed whole, by Spark."""
LINES = {
    "lines": f"""
CREATE PROJECTION lines WITH (key = 'event_id, pos') AS
SELECT event_id, pos, line.sku, line.n, line.n > 5 AS many
FROM {DEPARTURES} LATERAL VIEW posexplode(lines) t AS pos, line;
""",
    "lines_sold": f"""
CREATE PROJECTION lines_sold WITH (key = 'sku') AS
SELECT line.sku AS sku, SUM(line.n) AS n, AVG(line.n) AS mean, COUNT(*) AS lines, flight AS last
FROM {DEPARTURES} d CROSS JOIN UNNEST(d.lines) AS t (line) GROUP BY line.sku;
""",
    "windy_lines": """
CREATE PROJECTION windy_lines WITH (key = 'origin, n') AS
SELECT w.origin, coalesce(o, 0) AS n, line.sku, w.wind
FROM weather w LEFT JOIN UNNEST(w.lines) WITH ORDINALITY AS t (line, o) ON TRUE;
""",
    "windy_skus": f"""
CREATE PROJECTION windy_skus WITH (key = 'sku') AS
SELECT a.sku, COUNT(*) AS n, MAX(w.wind) AS wind FROM {DEPARTURES} d
JOIN weather w ON w.origin = d.origin LATERAL VIEW inline(w.lines) a
LATERAL VIEW explode(d.lines) b AS line WHERE line.sku = a.sku GROUP BY a.sku;
""",
}
"""Elements of arrays: of facts, of a table's rows, and of both."""
ODD = {"flight": "a b", "carrier": "a.b", "delay": 'quo`te"', "wind": 'quo`te"', "origin": "größe"}
"""Names that captured databases may give to columns; `odd` puts them beside the plain ones."""
ODD_PROJECTIONS = {
    "delays_odd": """
CREATE PROJECTION delays_odd WITH (key = 'carrier, window_start') AS
SELECT `a.b` AS carrier, window_start, window_end, COUNT(`a b`) AS flights,
  AVG(`quo``te"`) AS mean_delay
FROM STREAM events.flight.departed WHERE `größe` IS NOT NULL
GROUP BY `a.b`, TUMBLE(occurred_at, '1 hour');
""",
    "windy_odd": """
CREATE PROJECTION windy_odd WITH (key = 'event_id') AS
SELECT f.event_id, f.`a b` AS flight, f.`größe` AS origin, f.occurred_at, w.`quo``te"` AS wind
FROM STREAM events.flight.departed f
LEFT JOIN weather FOR SYSTEM_TIME AS OF f.occurred_at w ON w.origin = f.`größe`;
""",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    position: int
    minute: int
    flight: int
    carrier: str = "UA"
    origin: str = "EWR"
    delay: float = 0.0
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    sequence: int
    hour: int
    wind: float | None
    origin: str = "EWR"


@dataclass
class SmallLake:
    """Makes epochs and runs projections over them, one at a time."""

    spark: SparkSession
    lake: Lake
    tables: Tables = field(default_factory=Tables)
    odd: bool = False
    lines: bool = False
    driver_bytes: int = FORCED_BYTES
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        session = self.spark.newSession()
        self._made = HandMade(self.lake, self.tables)
        self.manifest, self.deployed = self._made.manifest, self._made.deployed
        self.projector = Projector(session, self.lake, self.tables, self.manifest)
        self._derived = DerivedTables(
            self.lake,
            self.tables,
            self.manifest,
            TypedTables(self.lake, self.tables, MemoryRegistry()),
            HistoryTables(session, self.lake, self.tables, driver_bytes=self.driver_bytes),
        )

    @property
    def site(self) -> Site:
        """The lake as another process sees it: with handles of its own."""
        return self._made.site

    @property
    def _history(self) -> HistoryOf:
        identity = (ODD["origin"], "hour") if self.odd else WEATHER_HISTORY.identity
        return replace(WEATHER_HISTORY, identity=identity)

    def deploy(self, *names: str) -> None:
        keys = json.dumps({"public.weather": self._history.identity})
        entries = [Entry(kind=CAPTURE, name="demo", generation=1, status=LIVE, text=keys)]
        entries += [Entry(kind=SOURCE, name="weather", generation=1, status=LIVE, text=SOURCES)]
        for name in names:
            known = {**PROJECTIONS, **ON_SPARK, **ODD_PROJECTIONS, **STEPS, **FINAL, **CHAIN}
            text = {**known, **LINES}[name]
            entries.append(Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text))
        self.deployed.put(entries)

    def epoch(
        self,
        departures: Sequence[Departure] = (),
        readings: Sequence[Reading] = (),
        *,
        seen_up_to: int | None = None,
    ) -> Epoch:
        """Commit an epoch with these facts, and bring typed and history tables up to it.

        `seen_up_to`: the minute of the newest departure that came so far; the watermark follows.
        """
        epoch = self._made.next_epoch
        typed = {
            DEPARTED: pa.Table.from_pylist([_event(d, epoch) for d in departures], _DEPARTED),
            WEATHER: pa.Table.from_pylist([_reading(r, epoch) for r in readings], _WEATHER),
        }
        for name, rows in typed.items():
            named = _with_odd_names(rows) if self.odd else rows
            named = _with_lines(named) if self.lines else named
            self._made.writer.append(self.lake.path(name), named, Guard(name, epoch))
        if seen_up_to is not None:
            at = micros(START + timedelta(minutes=seen_up_to))
            self.progress.watermarks.note("events.flight", "f/0", at, partitions=1)
        assert self._made.epoch(progress=self.progress) == epoch
        self.bring()
        return epoch

    def bring(self) -> None:
        """Bring typed and history tables up to the last epoch: after a crash, once more."""
        last, before = self.manifest.last(), self._derived.at()
        assert last is not None
        tables = dict(before.tables)
        for name in (DEPARTED, WEATHER):
            table = self.tables.open(self.lake.path(name))
            assert table is not None
            tables[name] = TableAt(version=table.version(), as_of_epoch=last.epoch)
        joined = any(entry.name.startswith("wind") for entry in self.deployed.entries())
        histories = [self._history] if joined else []
        self._derived.bring(Brought(epoch=before.epoch, tables=tables), last, histories)

    def run(self, name: str, up_to: Epoch | None = None) -> Run:
        """Run a projection as the pipeline does, on what the catalog says is live."""
        subject = subject_of(self.site, name)
        entry = subject.entry
        target = live_target(self.lake, name, entry.generation, include_late=entry.include_late)
        head = up_to or self._derived.at().epoch
        return self.projector.run(subject.plan, target, subject.catalog, head)

    def rows(self, name: str) -> list[dict[str, object]]:
        """Return a table's rows as any reader sees them now, visible columns only, sorted."""
        found = Tables().read(self.lake.path(name))
        assert found is not None, f"no table {name}"
        visible = [column for column in found.schema.names if not column.startswith("_")]
        return sorted(found.select(visible).to_pylist(), key=str)


def some_departures(seed: int, first: int, count: int) -> list[Departure]:
    """Departures in no order of time, some of one flight twice, some late."""
    chance = random.Random(seed)
    return [
        Departure(
            position=first + i,
            minute=chance.randrange(600),
            flight=chance.randrange(max(count // 2, 1)),
            carrier=chance.choice(["UA", "AA", "B6"]),
            origin=chance.choice(["EWR", "JFK"]),
            delay=chance.randrange(-10, 90) / 4,
            late=chance.random() < 0.1,
        )
        for i in range(count)
    ]


def some_readings(seed: int, first: int, count: int) -> list[Reading]:
    """Readings of ten hours at two airports, amended now and then."""
    chance = random.Random(seed)
    return [
        Reading(
            sequence=first + i,
            hour=chance.randrange(10),
            wind=chance.randrange(40) / 2,
            origin=chance.choice(["EWR", "JFK"]),
        )
        for i in range(count)
    ]


def _with_odd_names(rows: pa.Table) -> pa.Table:
    """Put each column that has an odd name under that name, too."""
    for plain in rows.schema.names:
        if plain in ODD:
            rows = rows.append_column(ODD[plain], rows[plain])
    return rows


def _with_lines(rows: pa.Table) -> pa.Table:
    """Put an array of structs beside: none, no element, or three of which two may be equal."""
    kind = pa.list_(pa.struct([("sku", pa.string()), ("n", pa.int64())]))
    values = []
    for place in rows["_seq_hi"].to_pylist():
        line = {"sku": f"s{place % 2}", "n": place % 7}
        values.append([None, [], [line, None, {**line, "n": place % 2}]][min(place % 7, 2)])
    return rows.append_column("lines", pa.array(values, kind))


def _event(departure: Departure, epoch: Epoch) -> dict[str, object]:
    at = START + timedelta(minutes=departure.minute)
    return {
        "flight": departure.flight,
        "carrier": departure.carrier,
        "origin": departure.origin,
        "delay": departure.delay,
        "event_id": f"e{departure.position}",
        "stream": f"flight-{departure.flight}",
        "entity_id": str(departure.flight),
        "type": "departed",
        "version": departure.position,
        "position": departure.position,
        "occurred_at": at,
        "recorded_at": START,
        "_epoch": epoch,
        "_late": departure.late,
        "_time": at,
        "_seq_hi": departure.position,
        "_seq_lo": 0,
        "_ingested_at": START,
    }


def _reading(reading: Reading, epoch: Epoch) -> dict[str, object]:
    hour = START + timedelta(hours=reading.hour)
    return {
        "origin": reading.origin,
        "hour": hour,
        "wind": reading.wind,
        "committed_at": START,
        "_operation": "d" if reading.wind is None else "u",
        "_epoch": epoch,
        "_late": False,
        "_time": hour,
        "_seq_hi": reading.sequence,
        "_seq_lo": 0,
        "_ingested_at": START,
    }


def fill(small: SmallLake, name: str, *, epochs: int = 2) -> None:
    """Make epochs and run a projection after each, as the pipeline does."""
    small.deploy(name)
    for n in range(1, epochs + 1):
        more(small, n)
        small.run(name)


def more(small: SmallLake, n: int) -> None:
    """Make the epoch that is `n` hundred positions further on."""
    small.epoch(some_departures(n, n * 100, 60), some_readings(n, n * 100, 20))


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Return an empty small lake."""
    return SmallLake(spark, Lake.at(tmp_path / "lake"))
