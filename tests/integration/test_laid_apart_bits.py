"""A build whose inputs were laid apart has the rows that Spark's executors give, bit for bit."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kernel.positions import Epoch
from lake.layout import Lake
from lake.sessions import SparkOnDemand
from lake.table_columns import UTC_MICROS
from lake.tables import TableAt, Tables
from lake.writer import Guard
from pipeline.commit.manifest_rows import Projected
from pipeline.executor import Executor, ExecutorChoice
from pipeline.history.shape import HistoryOf
from pipeline.history.tables import HistoryTables
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run.catalog import CAPTURE, LIVE, PROJECTION, SOURCE, Entry
from projections.run.whole_rows import WholeRows
from replay.book import State
from replay.build import Builder
from replay.cancel import cancel
from replay.generations import generation_name
from tests.support.lake.handmade import HandMade

SLICES, FILES = 5, 3
START = datetime(2013, 1, 1, tzinfo=UTC)
VISITS, RATES = "typed/events.visit.seen", "typed/shop.public.rates"
HISTORY = HistoryOf(
    name="history/rates", typed=RATES, key=("person",), identity=("person", "at"), by_row=True
)
VISIT = "STREAM events.visit.seen"
QUERIES = {
    "newest": f"""
CREATE PROJECTION newest WITH (key = 'person') AS
SELECT person, weight, amount, moment, day, flag, number, note FROM {VISIT};
""",
    "sums": f"""
CREATE PROJECTION sums WITH (key = 'person, window_start') AS
SELECT person, window_start, COUNT(weight) AS n, SUM(weight) AS weight, SUM(amount) AS amount,
  MIN(weight) AS least, MAX(weight) AS most, MAX(moment) AS moment
FROM {VISIT} GROUP BY person, TUMBLE(occurred_at, '1 hour');
""",
    "windows": f"""
CREATE PROJECTION windows WITH (key = 'person, window_start') AS
SELECT person, window_start, COUNT(*) AS n, SUM(weight) AS weight, MIN(note) AS note
FROM {VISIT} GROUP BY person, HOP(occurred_at, '20 minutes', '1 hour');
""",
    "sessions": f"""
CREATE PROJECTION sessions WITH (key = 'person, window_start') AS
SELECT person, window_start, window_end, COUNT(*) AS n, SUM(weight) AS weight,
  SUM(amount) AS amount, MIN(day) AS day
FROM {VISIT} GROUP BY person, SESSION(occurred_at, '10 minutes');
""",
    "rated": f"""
CREATE PROJECTION rated WITH (key = 'event_id') AS
SELECT v.event_id, v.person, v.weight, v.amount, v.note, r.rate, r.price, r.told
FROM {VISIT} v
LEFT JOIN rates FOR SYSTEM_TIME AS OF v.occurred_at r ON r.person = v.person;
""",
}
PERSONS = ["ann", "", " ", "a\n\"b'\\", "ä€😀", "NULL", "\\N", "a\x00b", "x" * 300, "1", "-0", None]
DOUBLES = [0.0, -0.0, float("nan"), None, 0.1, 1 / 3, 1e300, -5e-324, 1e16, float("inf")]
DECIMALS = [Decimal("0.0000"), None, Decimal("-99999999999.9999"), Decimal("0.0001"), Decimal(7)]
MOMENTS = [
    *(datetime(1, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), None),
    *(datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC), START),
]
DAYS = [date(1, 1, 1), date(9999, 12, 31), None, date(1970, 1, 1)]
NUMBERS = [2**63 - 1, -(2**63), None, 0]
FLAGS = [True, None, False]
_STAMPS = [
    *(("_epoch", pa.int64()), ("_late", pa.bool_()), ("_time", UTC_MICROS)),
    *(("_seq_hi", pa.int64()), ("_seq_lo", pa.int64()), ("_ingested_at", UTC_MICROS)),
]
_SEEN = pa.schema(
    [
        *(("person", pa.string()), ("weight", pa.float64())),
        *(("amount", pa.decimal128(18, 4)), ("moment", UTC_MICROS), ("day", pa.date32())),
        *(("flag", pa.bool_()), ("number", pa.int64()), ("note", pa.string())),
        *EVENT_COLUMNS,
        *_STAMPS,
    ]
)
_RATE = pa.schema(
    [
        *(("person", pa.string()), ("at", UTC_MICROS), ("rate", pa.float64())),
        *(("price", pa.decimal128(9, 2)), ("told", pa.string()), ("committed_at", UTC_MICROS)),
        ("_operation", pa.string()),
        *_STAMPS,
    ]
)


def _stamps(at: datetime, number: int) -> dict[str, Any]:
    known = {"_epoch": 1, "_late": False, "_time": at, "_ingested_at": START}
    return known | {"_seq_hi": number, "_seq_lo": 0}


def _seen(number: int) -> dict[str, Any]:
    at = START + timedelta(minutes=number * 37 % 600, microseconds=number % 3)
    return {
        "person": PERSONS[number * 5 % len(PERSONS)],
        "weight": DOUBLES[number * 7 % len(DOUBLES)],
        "amount": DECIMALS[number % len(DECIMALS)],
        "moment": MOMENTS[number * 3 % len(MOMENTS)],
        "day": DAYS[number // 2 % len(DAYS)],
        "flag": FLAGS[number // 3 % len(FLAGS)],
        "number": NUMBERS[number // 5 % len(NUMBERS)],
        "note": PERSONS[number * 7 % len(PERSONS)],
        "event_id": f"e{number}",
        "stream": "visit",
        "entity_id": "visit",
        "type": "seen",
        "version": number,
        "position": number,
        "occurred_at": at,
        "recorded_at": START,
        **_stamps(at, number),
    }


def _rate(number: int) -> dict[str, Any]:
    at = START + timedelta(minutes=number * 53 % 500)
    return {
        "person": PERSONS[number % (len(PERSONS) - 1)],
        "at": at,
        "rate": DOUBLES[number % len(DOUBLES)],
        "price": None if number % 4 == 0 else Decimal(number) / 100,
        "told": PERSONS[number // 3 % len(PERSONS)],
        "committed_at": START,
        "_operation": "u",
        **_stamps(at, number),
    }


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> HandMade:
    """A lake with visits in several files and the history of each person's rate."""
    lake = HandMade(Lake.at(tmp_path_factory.mktemp("bits") / "lake"))
    epoch = lake.epoch()
    for part in range(FILES):
        rows = pa.Table.from_pylist([_seen(n) for n in range(part, 600, FILES)], _SEEN)
        lake.writer.append(lake.lake.path(VISITS), rows, Guard(VISITS, Epoch(part + 1)))
    rates = pa.Table.from_pylist([_rate(n) for n in range(60)], _RATE)
    lake.writer.append(lake.lake.path(RATES), rates, Guard(RATES, epoch))
    folded = HistoryTables(spark, lake.lake, lake.tables).fold(HISTORY, epoch)
    assert folded is not None
    tables = {HISTORY.name: folded}
    for name in (VISITS, RATES):
        tables[name] = TableAt(version=lake.tables.version(lake.lake.path(name)), as_of_epoch=1)
    lake.manifest.project(Projected(epoch=epoch, name="typed", tables=tables))
    keys = json.dumps({"public.rates": HISTORY.identity})
    declared = "CREATE SOURCE rates ON shop.public.rates WITH (key = 'person', event_time = 'at', "
    declared += "lateness = '365 days');"
    lake.deployed.put(
        [
            Entry(kind=CAPTURE, name="shop", generation=1, status=LIVE, text=keys),
            Entry(kind=SOURCE, name="rates", generation=1, status=LIVE, text=declared),
            *(
                Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text)
                for name, text in QUERIES.items()
            ),
        ]
    )
    return lake


def built(made: HandMade, spark: SparkSession, name: str, executor: Executor, slices: int) -> Any:
    """Return the columns and rows of a build, each row as a text that tells all bits."""

    def refused() -> SparkSession:
        raise AssertionError("Spark is not needed")

    done = Builder(
        SparkOnDemand(refused) if executor is Executor.DRIVER else spark,
        made.site,
        lambda _: None,
        abandoned_after=timedelta(0),
        choice=ExecutorChoice(asked=executor),
    ).build(name, slices=slices)
    assert (done.state, done.detail["slices"]) == (State.BUILT, slices)
    rows = Tables().read(made.lake.path(generation_name(name, done.generation)))
    assert rows is not None
    cancel(made.site, name)
    return rows.schema, sorted(map(repr, rows.to_pylist()))


@pytest.mark.parametrize("name", QUERIES)
def test_p6_what_was_laid_apart_has_the_bits_of_spark(
    made: HandMade,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    laid: list[int] = []
    lay = WholeRows.lay

    def counted(*given: Any) -> bool:
        laid.append(1)
        done: bool = lay(*given)
        assert done, "it is laid apart"
        return done

    wanted = built(made, spark, name, Executor.SPARK, 1)
    monkeypatch.setattr("replay.driver_slices.LEAST_BYTES", 0)
    monkeypatch.setattr("replay.driver_slices.MEASURED_BYTES", 0)
    monkeypatch.setattr("projections.run.whole_rows.PIECE_BYTES", 1)
    monkeypatch.setattr(WholeRows, "lay", counted)
    found = built(made, spark, name, Executor.DRIVER, SLICES)
    assert len(laid) >= FILES
    assert len(wanted[1]) > len(PERSONS) // 2
    assert found[0].equals(wanted[0])
    assert found[1] == wanted[1]
