"""History tables: versions by event time, whatever the order in which changes come."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake.layout import Lake
from pipeline.history.shape import HistoryOf
from tests.support.lake.kept_history import Form, KeptHistory
from tests.support.oracles.change_facts import TYPED_BY

DAY = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("origin", pa.string()),
        ("hour", pa.int64()),
        ("temp", pa.int64()),
        *TYPED_BY,
    ]
)
BY_ROW = HistoryOf(
    name="history/weather",
    typed="typed/shop.public.weather",
    key=("origin",),
    identity=("origin", "hour"),
    by_row=True,
)
BY_CHANGE = HistoryOf(
    name="history/shop.public.weather",
    typed="typed/shop.public.weather",
    key=("origin", "hour"),
    identity=("origin", "hour"),
    by_row=False,
)

Change = tuple[str, int, int | None]
"""(origin, hour, temperature), None for a delete. Order of the list is commit order."""


def typed(changes: list[tuple[int, Change]], *, by_row: bool, epoch: int) -> pa.Table:
    """Lay out numbered changes as rows of a typed table."""
    rows = [
        {
            "origin": origin,
            "hour": hour,
            "temp": temp,
            "committed_at": DAY + timedelta(seconds=number),
            "_operation": "d" if temp is None else "u",
            "_late": False,
            "_time": DAY + (timedelta(hours=hour) if by_row else timedelta(seconds=number)),
            "_seq_hi": number,
            "_seq_lo": 0,
            "_epoch": epoch,
            "_ingested_at": DAY,
        }
        for number, (origin, hour, temp) in changes
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


class World(KeptHistory):
    """One history table that epochs are folded into."""

    def take(self, changes: list[tuple[int, Change]]) -> None:
        self.fold(typed(changes, by_row=self.history.by_row, epoch=self.epoch + 1))

    def as_of(self, origin: str, at: datetime) -> int | None:
        """Look a version up the way a join does."""
        found = [
            row["temp"]
            for row in self.rows()
            if row["origin"] == origin
            and not row["_deleted"]
            and row["valid_from"] <= at
            and (row["valid_to"] is None or at < row["valid_to"])
        ]
        assert len(found) <= 1
        return found[0] if found else None


def random_changes(seed: int, count: int) -> list[Change]:
    chance = random.Random(seed)
    return [
        (
            chance.choice(["JFK", "LGA"]),
            chance.randrange(6),
            None if chance.random() < 0.25 else chance.randrange(100),
        )
        for _ in range(count)
    ]


def expected_as_of(changes: list[Change], origin: str, at: datetime) -> int | None:
    """What the table's rows say of a moment: the row of the latest hour not after it."""
    table = {(o, h): temp for o, h, temp in changes}
    held = [
        (h, temp)
        for (o, h), temp in table.items()
        if o == origin and temp is not None and DAY + timedelta(hours=h) <= at
    ]
    return max(held)[1] if held else None


@pytest.mark.parametrize(
    ("form", "seed"),
    [
        *((Form.DRIVER, seed) for seed in range(4)),
        *(pytest.param(Form.COLLECTED, seed, marks=pytest.mark.matrix) for seed in range(4)),
    ],
)
def test_p7_a_join_as_of_event_time_sees_the_version_that_held_and_none_later(
    form: Form, seed: int, spark: SparkSession, lake: Lake
) -> None:
    changes = random_changes(seed, 24)
    world = World(spark, lake, BY_ROW, form)
    numbered = list(enumerate(changes, start=1))
    for start in range(0, len(numbered), 6):
        world.take(numbered[start : start + 6])
    for origin in ("JFK", "LGA"):
        for half_hours in range(-1, 14):
            at = DAY + timedelta(minutes=30 * half_hours)
            assert world.as_of(origin, at) == expected_as_of(changes, origin, at)


@pytest.mark.parametrize(
    "history", [pytest.param(BY_ROW, id="by row"), pytest.param(BY_CHANGE, id="by change")]
)
@pytest.mark.parametrize(
    ("form", "seed"),
    [
        (Form.DRIVER, 0),
        (Form.DRIVER, 1),
        *(pytest.param(Form.COLLECTED, seed, marks=pytest.mark.matrix) for seed in (0, 1)),
    ],
)
def test_p6_history_folded_in_epochs_equals_history_folded_at_once(
    form: Form, seed: int, history: HistoryOf, spark: SparkSession, lake: Lake
) -> None:
    numbered = list(enumerate(random_changes(seed + 10, 20), start=1))
    steps = World(spark, lake, history, form)
    whole = World(spark, Lake(f"{lake.root}2"), history, form)
    for start in range(0, len(numbered), 5):
        steps.take(numbered[start : start + 5])
    whole.take(numbered)

    def facts(world: World) -> list[dict[str, object]]:
        # A gap that nobody could have joined within needs no row; when it was written varies.
        kept = [row for row in world.rows() if not (history.by_row and row["_deleted"])]
        return [{k: v for k, v in row.items() if k != "_epoch"} for row in kept]

    assert facts(steps) == facts(whole)


def test_a_version_that_changes_its_end_is_marked_with_the_epoch(
    spark: SparkSession, lake: Lake
) -> None:
    world = World(spark, lake, BY_ROW)
    world.take([(1, ("JFK", 1, 10)), (2, ("JFK", 5, 50))])
    world.take([(3, ("JFK", 3, 30))])
    assert [(r["temp"], r["_epoch"]) for r in world.rows()] == [(10, 2), (30, 2), (50, 1)]


def test_the_guard_of_a_declared_history_names_the_declaration(
    spark: SparkSession, lake: Lake
) -> None:
    world = World(spark, lake, replace(BY_ROW, declaration="first"))
    world.take([(1, ("JFK", 1, 5))])
    stored = world.tables.open(lake.path(BY_ROW.name))
    assert world.history.cursor(stored) == 1
    assert replace(BY_ROW, declaration="second").cursor(stored) is None
    assert BY_ROW.cursor(stored) == 0, "what names none has no other"
