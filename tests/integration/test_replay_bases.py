"""Builds that begin with the rows of a savepoint, a position or a time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import Conflict, InvalidRequest
from lake.tables import Tables
from projections.serve.savepoints import create
from projections.sql.operators.shape import ORDER
from replay.book import Replay, ReplayBook, State
from replay.build import Builder
from replay.course import Report
from replay.generations import generation_name
from replay.planning import plan_replay
from replay.progress import BuildProgress
from replay.slices import build_of
from replay.starts import Start
from replay.subject import typed_head
from replay.verify import verify
from tests.support.lake.small_lake import (
    PROJECTIONS,
    START,
    STEPS,
    Departure,
    SmallLake,
    fill,
    more,
    some_departures,
    some_readings,
)
from tests.support.lake.swaps import swap

DEFAULT = ("delays",)
"""The others are repetitions; builds in slices are tried with several steps, too."""
BEFORE = Start(savepoint="before")


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


def builder(small: SmallLake, report: Report = lambda _: None) -> Builder:
    return Builder(
        small.spark, small.site, report, record_every_s=0.0, abandoned_after=timedelta(0)
    )


def rows_at(small: SmallLake, name: str, table: str) -> list[dict[str, Any]]:
    """Return a table's rows with the pipeline's own columns.

    Those of the order tell something where the newest row of a key is kept, and only there.
    """
    found = Tables().read(small.lake.path(table))
    assert found is not None
    columns = [c for c in found.schema.names if name == "latest" or c not in ORDER]
    return sorted(found.select(sorted(columns)).to_pylist(), key=str)


def built(small: SmallLake, name: str, start: Start) -> Replay:
    """Build from a base and from the beginning: both are the same, bit for bit."""
    based, whole = builder(small).build(name, start=start), builder(small).build(name)
    assert based.state is State.BUILT
    assert based.epoch == whole.epoch
    generations = [generation_name(name, each.generation) for each in (based, whole)]
    from_base, from_beginning = [rows_at(small, name, each) for each in generations]
    assert from_base == from_beginning
    assert verify(small.site, name, generation=based.generation).equal
    return based


@pytest.mark.parametrize(
    "name",
    [
        name if name in DEFAULT else pytest.param(name, marks=pytest.mark.matrix)
        for name in (*PROJECTIONS, *STEPS)
    ],
)
def test_p6_a_build_from_a_savepoint_is_one_from_the_beginning(small: SmallLake, name: str) -> None:
    """Over histories at random: late rows, amended readings, facts of long ago, runs left out."""
    chance = random.Random(name)
    small.deploy(name)
    kept_at = chance.randrange(1, 3)
    for n in range(1, 5):
        small.epoch(
            some_departures(chance.randrange(10**6), n * 100, chance.randrange(1, 50)),
            some_readings(chance.randrange(10**6), n * 100, chance.randrange(1, 9)),
        )
        if n <= kept_at or chance.random() < 0.5:
            small.run(name)
        if n == kept_at:
            create(small.lake, "before")
    small.run(name)
    assert built(small, name, BEFORE).epoch > kept_at


@pytest.mark.matrix
@pytest.mark.parametrize(
    "kept_at",
    [1, pytest.param(2, marks=pytest.mark.matrix), pytest.param(3, marks=pytest.mark.matrix)],
)
def test_p6_final_rows_are_the_same_from_a_savepoint(small: SmallLake, kept_at: int) -> None:
    """What had ended then, what ended since, and what facts that came late corrected in both."""
    small.deploy("closed")
    for n, minute in enumerate((150, 260, 430), 1):
        fresh = [d for d in some_departures(n, n * 100, 60) if d.minute <= minute]
        small.epoch(fresh, seen_up_to=minute)
        small.run("closed")
        if n == kept_at:
            create(small.lake, "before")
    # The newest is of the first hour: it corrects a row that is out. The other one's hour goes on.
    last = Departure(position=899, minute=590, flight=1)
    small.epoch([last, Departure(position=900, minute=5, flight=1)], seen_up_to=599)
    small.run("closed")
    ended = {row["window_end"] for row in small.rows("projection/closed")}
    assert START + timedelta(hours=1) in ended
    assert START + timedelta(hours=10) not in ended
    done = built(small, "closed", BEFORE)
    assert rows_at(small, "closed", generation_name("closed", done.generation))
    # It goes on by its own watermark.
    made = builder(small)
    swap(
        small.site,
        "closed",
        lambda replay: made.catch_up(replay, typed_head(small.site)),
        generation=done.generation,
    )
    small.epoch([Departure(position=901, minute=700, flight=1)], seen_up_to=700)
    small.run("closed")
    assert START + timedelta(hours=10) in {
        row["window_end"] for row in small.rows("projection/closed")
    }
    builder(small).build("closed")
    assert verify(small.site, "closed").equal


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("failpoint", "hit"),
    [
        pytest.param(failpoints.REPLAY_BEFORE_SLICE, 2, marks=pytest.mark.matrix),
        (failpoints.REPLAY_AFTER_SLICE, 2),
        pytest.param(failpoints.PROJECTION_BEFORE_COMMIT, 1, marks=pytest.mark.matrix),
        (failpoints.PROJECTION_AFTER_COMMIT, 1),
        pytest.param(failpoints.REPLAY_AFTER_BUILD, 1, marks=pytest.mark.matrix),
    ],
)
def test_p6_a_build_from_a_savepoint_that_died_goes_on_and_repairs_what_broke_since(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch, failpoint: str, hit: int
) -> None:
    fill(small, "latest", epochs=1)
    # Flights of their own stand in a file of their own.
    others = [replace(each, flight=each.flight + 1000) for each in some_departures(2, 200, 40)]
    small.epoch(others)
    small.run("latest")
    live = DeltaTable(small.lake.path("projection/latest"))
    create(small.lake, "before")
    more(small, 3)
    small.run("latest")
    right = small.rows("projection/latest")
    live.update_incremental()
    live.delete("flight % 2 = 0")
    assert small.rows("projection/latest") != right
    # Each file of the savepoint is a slice.
    monkeypatch.setattr("replay.bases.PART_BYTES", 1)
    failpoints.arm(failpoint, hit=hit)
    with pytest.raises(failpoints.Crash):
        builder(small).build("latest", start=BEFORE)
    died = ReplayBook(small.lake, Tables()).of("latest")[-1]
    begun = build_of(died.detail)
    assert begun is not None
    assert begun.slicing.slices > 1
    with pytest.raises(Conflict, match="by another query or other options"):
        builder(small).build("latest")
    seen: list[BuildProgress] = []
    done = builder(small, seen.append).build("latest", start=BEFORE)
    assert (done.generation, done.state, done.epoch) == (2, State.BUILT, 3)
    assert {each.slice for each in seen} <= {*range(begun.done, begun.slicing.slices + 1)}
    assert small.rows(generation_name("latest", 2)) == right
    made = builder(small)
    swap(small.site, "latest", lambda replay: made.catch_up(replay, typed_head(small.site)))
    assert small.rows("projection/latest") == right
    # What made the rows is known of a generation that was swapped, too, and of what it took since.
    more(small, 4)
    small.run("latest")
    create(small.lake, "later")
    base = plan_replay(small.site, "latest", start=Start(savepoint="later")).base
    assert base is not None
    assert base.epoch == 4


CHOSEN: dict[str, tuple[str, Callable[[dict[str, Any]], bool], str]] = {
    "delays": ("carrier = 'AA'", lambda row: row["carrier"] == "AA", "flights > 1"),
    "latest": ("flight % 3 = 0", lambda row: row["flight"] % 3 == 0, "flight % 2 = 0"),
    "windy": ("event_id LIKE 'e1%'", lambda row: row["event_id"][1] == "1", "wind > 5"),
    "visits": ("flight BETWEEN 5 AND 9", lambda row: 5 <= row["flight"] <= 9, "flight < 8"),
    "closed": ("NOT carrier IN ('UA', 'B6')", lambda row: row["carrier"] == "AA", "flights > 2"),
}
"""Keys of a projection, as Spark chooses them and as Python does, and what its table loses."""
REPAIRED = ("visits", "closed")
"""What several steps or a watermark keep is compared with the table, and given out again."""


@pytest.mark.parametrize(
    "name",
    [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.matrix) for name in CHOSEN],
)
def test_p6_chosen_keys_are_computed_again_and_all_other_rows_are_copied(
    small: SmallLake, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    where, is_chosen, lost = CHOSEN[name]
    start = Start(where=where)
    small.deploy(name)
    for n in (1, 2):
        small.epoch(some_departures(n, n * 100, 60), some_readings(n, n * 100, 20), seen_up_to=400)
        small.run(name)
    DeltaTable(small.lake.path(f"projection/{name}")).delete(lost)
    # The run that follows notes what is left, with its own new row.
    small.epoch([Departure(position=999, minute=30, flight=1001)])
    small.run(name)
    live = rows_at(small, name, f"projection/{name}")
    column = where.removeprefix("NOT ").split()[0]
    with pytest.raises(InvalidRequest, match="cannot be asked of the key"):
        builder(small).build(name, start=Start(where=f"CAST({column} AS DATE) = DATE '2013-13-01'"))
    monkeypatch.setattr("replay.bases.PART_BYTES", 1)
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE, hit=1)
    with pytest.raises(failpoints.Crash):
        builder(small).build(name, start=start)
    with pytest.raises(Conflict, match="by another query or other options"):
        builder(small).build(name, start=Start(where=f"{where} AND true"))
    done, whole = builder(small).build(name, start=start), builder(small).build(name)
    found, right = [
        rows_at(small, name, generation_name(name, each.generation)) for each in (done, whole)
    ]
    chosen = [row for row in right if is_chosen(row)]
    others = [row for row in live if not is_chosen(row)]
    some_lost = len(chosen) > len([row for row in live if is_chosen(row)])
    assert some_lost or name in REPAIRED
    assert any(map(is_chosen, live)), "others are there, and are not copied"
    assert plain(found) == plain([*chosen, *others])
    assert {row["_epoch"] for row in found} == {done.epoch}
    # The live runner goes on with them.
    made = builder(small)
    swap(small.site, name, lambda each: made.catch_up(each, done.epoch), generation=done.generation)
    more(small, 5)
    small.run(name)
    again = generation_name(name, builder(small).build(name).generation)
    now, right = rows_at(small, name, f"projection/{name}"), rows_at(small, name, again)
    assert plain(filter(is_chosen, now)) == plain(filter(is_chosen, right))


def plain(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the epoch that wrote them."""
    found = [{k: value for k, value in row.items() if k != "_epoch"} for row in rows]
    return sorted(found, key=str)
