"""How a build is cut into slices, what is kept between two, and what a process learns of others."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kernel.errors import Cancelled, Conflict, InvalidRequest, NotFound, StorageFull
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from projections.sql.plans.plan import Plan
from projections.sql.rendering.batch import whole
from projections.sql.rendering.spark_text import SparkText
from replay.book import UNFINISHED, Built, Replay, ReplayBook, State
from replay.build import Builder
from replay.cancel import cancel, is_alive
from replay.carried_keys import computed_whole
from replay.course import Course
from replay.progress import BuildProgress
from replay.rates import rates_for
from replay.slices import (
    BUILD_BYTES,
    LEAST_ROWS,
    LEAST_SLICES,
    MANY_SLICES,
    MOST_ASKED,
    MOST_PACED,
    MOST_ROWS,
    SLICE_ROWS,
    SlicedBuild,
    Slicing,
    build_of,
    copying,
    fingerprint_of,
    slicing_of,
)
from replay.strides import LONG_S, QUICK_S, Strides
from replay.subject import subject_of
from tests.support.lake.handmade import SQL, HandMade, NoSpark, words
from tests.support.oracles.sql_world import planned

NAME = "report"
FLIGHTS = "STREAM events.flight.departed"


def of(query: str, *, key: str) -> Plan:
    return planned(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}")


def a_build(**changes: object) -> SlicedBuild:
    build = SlicedBuild(
        claim="me",
        up_to=Epoch(7),
        slicing=Slicing(columns=("id",), slices=4),
        done=0,
        rows=400,
        later=5,
        seconds=(),
        fingerprint="f",
        rate=None,
    )
    return replace(build, **changes)


@pytest.mark.parametrize(
    ("rows", "slices", "rate", "expected"),
    [
        (0, None, None, 1),
        (LEAST_ROWS * 2 - 1, None, None, 1),
        (LEAST_ROWS * 2, None, None, 2),
        (1_000_000, None, None, 10),
        (LEAST_ROWS * LEAST_SLICES, None, None, LEAST_SLICES),
        (SLICE_ROWS * LEAST_SLICES, None, None, LEAST_SLICES),
        (SLICE_ROWS * LEAST_SLICES + 1, None, None, LEAST_SLICES + 1),
        (MOST_ROWS * MANY_SLICES, None, None, MANY_SLICES),
        (MOST_ROWS * 100, None, None, 100),
        (10, 7, None, 7),
        (1000, None, 10.0, 10),
        (10, None, 0.5, 2),
        (10, None, 1e308, 1),
        (10_000_000, None, 1000.0, 1000),
        (SLICE_ROWS * 10_000, None, 1.0, MOST_PACED),
    ],
)
def test_the_number_of_slices_follows_from_rows_and_rate(
    rows: int, slices: int | None, rate: float | None, expected: int
) -> None:
    plan = of(f"SELECT flight, delay FROM {FLIGHTS}", key="flight")
    assert slicing_of(plan, rows, slices=slices, rate=rate).slices == max(expected, 1)


@pytest.mark.parametrize("here", [True, False])
@pytest.mark.parametrize(
    ("rows", "size", "most"),
    [
        (100_000_000, 3 * 2**30, MANY_SLICES),
        (100_000_000, 30 * 2**30, 120),
        (1_000_000_000, 30 * 2**30, 250),
        (10_000_000_000, 2**40, 4096),
    ],
)
def test_no_slice_grows_with_its_input_beyond_a_measured_size(
    rows: int, size: int, most: int, here: bool
) -> None:
    plan = of(f"SELECT flight, delay FROM {FLIGHTS}", key="flight")
    found = slicing_of(plan, rows, size=size, here=here)
    assert found.slices == most
    assert size <= found.slices * BUILD_BYTES, "either executor may go on with it"
    assert rows <= found.slices * MOST_ROWS


@pytest.mark.parametrize(
    ("slices", "rate"),
    [
        *((0, None), (MOST_ASKED + 1, None)),
        *((None, rate) for rate in (0.0, -1.0, float("nan"), float("inf"))),
    ],
)
def test_slices_and_rates_are_positive_and_have_an_end(
    slices: int | None, rate: float | None
) -> None:
    plan = of(f"SELECT flight, delay FROM {FLIGHTS}", key="flight")
    with pytest.raises(InvalidRequest):
        slicing_of(plan, 10, slices=slices, rate=rate)
    with pytest.raises(InvalidRequest):
        copying(["a base"], slices, rate)


@pytest.mark.parametrize(
    ("query", "key", "columns"),
    [
        (f"SELECT flight, delay FROM {FLIGHTS}", "flight", ("flight",)),
        (
            "SELECT carrier, window_start, COUNT(*) AS n "
            f"FROM {FLIGHTS} GROUP BY carrier, TUMBLE(occurred_at, '1 hour')",
            "carrier, window_start",
            ("carrier", "window_start"),
        ),
        (
            "SELECT flight, window_start, COUNT(*) AS n "
            f"FROM {FLIGHTS} GROUP BY flight, SESSION(occurred_at, '10 minutes')",
            "flight, window_start",
            ("flight",),
        ),
        (
            "SELECT position, flight, ROW_NUMBER() OVER (PARTITION BY flight ORDER BY occurred_at)"
            f" AS place FROM {FLIGHTS}",
            "position",
            (),
        ),
        (
            f"SELECT a.position, b.position AS next FROM {FLIGHTS} a LEFT JOIN {FLIGHTS} b "
            "ON b.flight = a.flight AND b.occurred_at > a.occurred_at "
            "AND b.occurred_at <= a.occurred_at + INTERVAL 30 MINUTES",
            "position",
            ("position",),
        ),
    ],
)
def test_only_columns_that_a_filter_reaches_the_inputs_by_cut_a_build(
    query: str, key: str, columns: tuple[str, ...]
) -> None:
    found = slicing_of(of(query, key=key), 10, slices=3)
    assert (found.columns, found.slices) == (columns, 3 if columns else 1)
    assert (found.condition(0) == "true") is not bool(columns)


def test_the_halves_of_a_part_of_a_slice_are_that_part() -> None:
    slicing = Slicing(columns=("a",), slices=3)

    def numbers(parts: int, part: int) -> set[int]:
        condition = slicing.condition(1, parts=parts, part=part)
        modulus, number = condition.removeprefix("pmod(xxhash64(`a`), ").split(") = ")
        return {hashed for hashed in range(120) if hashed % int(modulus) == int(number)}

    for parts, part in ((1, 0), (2, 1), (4, 3)):
        halves = numbers(2 * parts, part), numbers(2 * parts, part + parts)
        assert halves[0] | halves[1] == numbers(parts, part)
        assert not halves[0] & halves[1]


def test_several_slices_are_their_rows_together() -> None:
    slicing = Slicing(columns=("a", "b c"), slices=9)
    assert slicing.conditions(4, 1) == slicing.condition(4)
    assert slicing.conditions(4, 3) == "pmod(xxhash64(`a`, `b c`), 9) BETWEEN 4 AND 6"


@pytest.mark.parametrize(
    ("looks", "then"),
    [
        pytest.param([(4, QUICK_S * 0.5)], 8, id="quick ones are doubled"),
        pytest.param([(1, LONG_S * 2)], 1, id="long ones are not"),
        pytest.param([(1, 6.4)], 2, id="one alone says nothing of what it costs once"),
        pytest.param([(1, 6.4), (2, 6.8)], 4, id="most of it is done once"),
        pytest.param([(1, 3.2), (2, 6.3)], 1, id="most of it is done for each slice"),
        pytest.param([(2, 3.0), (4, 5.0)], 4, id="some of it is done once"),
        pytest.param([(1, 8.0), (2, 4.0)], 4, id="the first one is cold"),
        pytest.param([(1, 6.4), (2, LONG_S)], 2, id="a killed one begins again"),
    ],
)
def test_looks_are_at_more_slices_while_most_of_one_is_done_once(
    looks: list[tuple[int, float]], then: int
) -> None:
    strides = Strides()
    for slices, seconds in looks:
        strides.took(slices, seconds)
    assert strides.next() == then


def test_what_a_look_took_is_told_as_of_as_many_slices_as_the_next_one() -> None:
    strides = Strides([(1, 4.5), (2, 5.0)])
    assert strides.at(8) == pytest.approx([8.0, 8.0])
    assert strides.at(1) == pytest.approx([4.5, 4.5])


@pytest.mark.parametrize("slices", [12, 40])
def test_of_looks_that_grow_the_time_left_is_told_within_a_fifth(
    made: HandMade, slices: int
) -> None:
    """4 s that each look takes, and half a second for each slice."""
    course = begun(made, a_build(slicing=Slicing(columns=("a",), slices=slices), strides=True))
    while (done := course.build.done) < slices:
        course.finished(4.0 + 0.5 * course.stride, course.stride)
        left, many = slices - course.build.done, course.stride
        if len(course.build.seconds) > 1 and left and done >= slices / 10:
            rest = sum(4.0 + 0.5 * min(many, left - at) for at in range(0, left, many))
            told = course.time_left()
            assert told is not None
            assert told[0] <= rest * 1.01, (done, told, rest)
            assert rest * 0.99 <= told[1] <= rest * 1.25, (done, told, rest)


def test_quick_slices_are_computed_several_at_once(made: HandMade) -> None:
    course = begun(made, a_build(slicing=Slicing(columns=("a",), slices=9), strides=True))
    taken = []
    while course.build.done < 9:
        taken.append(course.stride)
        course.finished(0.4, course.stride)
    assert taken == [1, 2, 4, 2]
    assert course.build.seconds == (0.4, *(0.2,) * 2, *(0.1,) * 4, *(0.2,) * 2)


@pytest.mark.parametrize("changes", [{}, {"strides": True, "rate": 10.0}])
def test_slices_that_were_asked_for_are_computed_one_by_one(
    made: HandMade, changes: dict[str, Any]
) -> None:
    course = begun(made, a_build(**changes))
    course.finished(0.01)
    assert course.stride == 1


MOST = f"(SELECT MAX(delay) AS worst, carrier FROM {FLIGHTS} GROUP BY carrier)"


@pytest.mark.parametrize(
    ("query", "key", "sides"),
    [
        (
            f"SELECT f.position, f.delay FROM {FLIGHTS} f JOIN {MOST} m ON f.delay = m.worst",
            "position",
            1,
        ),
        (
            f"SELECT f.position, f.carrier FROM {FLIGHTS} f JOIN {MOST} m ON f.carrier = m.carrier "
            "AND f.delay = m.worst",
            "position",
            1,
        ),
        (
            f"SELECT f.carrier, f.n FROM (SELECT carrier, COUNT(*) AS n FROM {FLIGHTS} "
            f"GROUP BY carrier) f JOIN {MOST} m ON f.carrier = m.carrier",
            "carrier",
            0,
        ),
        (
            f"SELECT a.position, b.delay FROM {FLIGHTS} a JOIN {FLIGHTS} b ON a.delay = b.delay",
            "position",
            0,
        ),
        (
            f"SELECT m.carrier, n.carrier AS other FROM {MOST} m JOIN {MOST} n "
            "ON m.worst = n.worst",
            "carrier, other",
            2,
        ),
    ],
)
def test_sides_of_joins_that_no_slice_reaches_are_known(query: str, key: str, sides: int) -> None:
    plan = of(query, key=key)
    found = computed_whole(plan, slicing_of(plan, 10, slices=3).columns)
    assert len(found) == sides
    assert all(whole(side, SparkText()) in plan.rows_sql for side in found)


def test_what_a_build_knows_survives_the_book() -> None:
    build = a_build(done=2, seconds=(1.5, 2.0), rate=10.0)
    assert build_of(json.loads(json.dumps(build.detail))) == build
    assert build_of({"rows": 3}) is None


@pytest.fixture
def made(lake: Lake) -> HandMade:
    handmade = HandMade(lake)
    handmade.deploy(NAME)
    return handmade


@pytest.fixture
def course(made: HandMade) -> Course:
    return begun(made, a_build())


def begun(made: HandMade, build: SlicedBuild) -> Course:
    replay = Replay(
        name=NAME,
        generation=2,
        base=1,
        state=State.BUILDING,
        epoch=Epoch(0),
        include_late=False,
        text="new",
        base_text="old",
        detail=build.detail,
    )
    book = ReplayBook(made.lake, Tables())
    return Course(
        book=book,
        replay=book.record(replay, after=()),
        build=build,
        report=lambda _: None,
        every_s=0.0,
        age_s=3.0,
    )


def newest(made: HandMade) -> Replay:
    return ReplayBook(made.lake, Tables()).of(NAME)[-1]


def test_a_course_counts_rows_slices_and_what_it_is_behind(course: Course) -> None:
    seen: list[BuildProgress] = []
    course.report = seen.append
    assert course.tick(0.5)
    course.finished(2.0)
    halfway, one = seen
    assert (halfway.done, halfway.slice, halfway.eta_s) == (50, 0, None)
    assert (one.done, one.slice, one.slices) == (100, 1, 4)
    low, high = one.eta_s or (None, None)
    assert (low, high) == (pytest.approx(0.9, abs=0.5), pytest.approx(6, abs=0.5))
    assert (one.behind_rows, one.behind_s >= 3.0) == (305, True)
    assert "slice 1 of 4" in one.line
    assert "1 to 6 s left" in one.line


def test_time_left_goes_by_the_sizes_of_slices_that_are_unlike(made: HandMade) -> None:
    """The parts of a base are files: some are many times as large as others."""
    sizes = (64, 64, 64, 640, 6, 320)
    course = begun(made, a_build(slicing=Slicing(columns=(), slices=len(sizes))))
    course.sizes = sizes
    course.found(0)
    seen: list[BuildProgress] = []
    course.report = seen.append
    for size in sizes[:-1]:
        course.finished(max(size / 32, 0.6))  # A commit takes that.
    for done, told in enumerate(seen[1:], start=2):
        low, high = told.eta_s or (0.0, 0.0)
        truth = sum(sizes[done:]) / 32
        assert low <= truth <= high, done
        assert high - low < truth, done


def test_rate_and_time_left_follow_a_machine_that_becomes_busier(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [time.monotonic()]
    monkeypatch.setattr("replay.course.time.monotonic", lambda: clock[0])
    course = begun(made, a_build(slicing=Slicing(columns=("a",), slices=20)))
    course.every_s = 1e9
    course.found(0)
    seen: list[BuildProgress] = []
    course.report = seen.append
    for took in (*(5.0,) * 10, *(10.0,) * 10):
        clock[0] += took
        course.finished(course.running_s)
    for done in (2, 5, 9, *range(12, 20)):
        told, slow = seen[done - 1], done > 9
        low, high = told.eta_s or (0.0, 0.0)
        truth = 10.0 * (20 - done) if slow else 5.0 * (20 - done)
        assert low <= truth * 1.2, done
        assert high >= truth * 0.8, done
        assert told.rate == pytest.approx(2.0 if slow else 4.0, rel=0.01)


def test_former_builds_tell_the_time_left_where_no_slice_does(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [time.monotonic()]
    monkeypatch.setattr("replay.course.time.monotonic", lambda: clock[0])
    course = begun(made, a_build(rows=100_000, slicing=Slicing(columns=(), slices=1)))
    course.every_s = 1e9
    course.found(0)
    told: list[tuple[float, float] | None] = []
    course.report = lambda progress: told.append(progress.eta_s)
    former = [Built(name=NAME, rows=50_000, seconds=seconds) for seconds in (50.0, 40.0)]
    course.tick(0.1)
    course.rates = rates_for("other", former)
    course.tick(0.1)
    assert told == [None, None]
    course.rates = rates_for(NAME, former)
    for passed, low, high in ((0, 64, 120), (60, 4, 60), (40, 0, 20)):
        clock[0] += passed
        course.tick(0.1)
        assert told[-1] == pytest.approx((low, high), abs=0.1)
    clock[0] += 21
    course.tick(0.1)
    assert told[-1] is None, "it takes longer than any did"
    course.finished(121.0)
    assert told[-1] == (0.0, 0.0)


def test_rows_that_came_since_a_base_are_behind_until_they_are_taken_in(made: HandMade) -> None:
    course = begun(made, a_build(since=7))
    lines: list[str] = []
    course.report = lambda progress: lines.append(progress.line)
    for _ in range(4):
        course.finished(2.0)
    assert " s left, then 7 rows that came since its base, 212 rows and " in lines[1]
    assert "taking in 7 rows that came since its base, 12 rows and " in lines[3]
    kept = build_of(newest(made).detail)
    assert kept is not None
    assert kept.since == 7


def test_a_course_that_was_paused_ends_after_its_slice(made: HandMade, course: Course) -> None:
    assert ReplayBook(made.lake, Tables()).pause(NAME).state is State.PAUSED
    assert course.tick(0.1), "the slice under way is finished"
    course.finished(2.0)
    assert course.pausing
    course.paused()
    kept = build_of(newest(made).detail)
    assert newest(made).state is State.PAUSED
    assert kept is not None
    assert (kept.done, kept.seconds) == (1, (2.0,))


def test_a_course_that_was_cancelled_stops_at_once(made: HandMade, course: Course) -> None:
    cancel(made.site, NAME)
    assert not course.tick(0.1)
    with pytest.raises(Cancelled):
        course.finished(2.0)
    assert not course.stopped(ValueError("files are gone"))
    assert newest(made).state is State.CANCELLED


def test_a_course_that_another_process_took_over_writes_nothing_more(
    made: HandMade, course: Course
) -> None:
    book = ReplayBook(made.lake, Tables())
    other = replace(course.build, claim="another")
    book.record(newest(made).now(State.BUILDING, detail=other.detail), claim="me")
    with pytest.raises(Conflict, match="another process went on"):
        course.finished(2.0)
    course.stopped(ValueError("mine"))
    assert newest(made).state is State.BUILDING
    assert newest(made).detail["claim"] == "another"


def test_of_two_that_go_on_with_a_dead_build_one_does(made: HandMade, course: Course) -> None:
    assert course.tick(0.0)
    book = ReplayBook(made.lake, Tables())
    now = newest(made).now(State.BUILDING, detail=replace(course.build, claim="first").detail)
    book.record(now, after=UNFINISHED, claim="me")
    with pytest.raises(Conflict):
        book.record(now, after=UNFINISHED, claim="me")


def test_of_two_that_begin_a_generation_one_does(made: HandMade, course: Course) -> None:
    with pytest.raises(Conflict):
        begun(made, a_build(claim="second"))


def test_what_stopped_a_build_is_told(made: HandMade, course: Course) -> None:
    assert course.stopped(ValueError("no space left"))
    stopped = newest(made)
    assert (stopped.state, stopped.detail["error"]) == (State.STOPPED, "no space left")
    assert build_of(stopped.detail) == course.build
    assert not is_alive(stopped)
    assert cancel(made.site, NAME).state is State.CANCELLED


def test_what_cannot_be_noted_neither_ends_a_build_nor_hides_what_does(
    made: HandMade, course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the lake is full for a while."""
    monkeypatch.setattr(ReplayBook, "record", full)
    course.finished(1.0)
    assert course.tick(0.5)
    assert course.stopped(ValueError("no space left")), "nobody cancelled it"
    monkeypatch.undo()
    course.finished(1.0)
    assert build_of(newest(made).detail) == course.build


def full(*_: object, **__: object) -> None:
    raise StorageFull("no space left")


@pytest.mark.parametrize("other", [{"text": "another query"}, {"include_late": True}])
def test_apply_goes_on_with_nothing_but_what_it_was_asked_for(
    made: HandMade, other: dict[str, Any]
) -> None:
    course = begun(made, a_build())
    asked = Builder(NoSpark(), made.site, lambda _: None)
    deployed = SQL.format(name=NAME, key="id")
    book = ReplayBook(made.lake, Tables())
    stopped = replace(course.replay.now(State.STOPPED, detail=a_build().detail), text=deployed)
    book.record(replace(stopped, **other))
    with pytest.raises(Conflict, match="by another query or other options") as refused:
        asked.build(NAME)
    assert f"penstock replay resume {NAME}" in str(refused.value.remedy)
    book.record(stopped)
    with pytest.raises(NotFound, match="typed tables have not been made"):
        asked.build(NAME)


def test_apply_goes_on_at_the_rate_that_is_given_and_by_the_slices_that_there_are(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.epoch()
    made.derive({"typed/events.thing.told": words((1, "w"), epoch=1, _late=[False])}, 1)
    slicing = Slicing(columns=("id",), slices=4)
    fingerprint = fingerprint_of(subject_of(made.site, NAME).plan, slicing)
    build = a_build(slicing=slicing, fingerprint=fingerprint, rate=5.0)
    deployed = SQL.format(name=NAME, key="id")
    course = begun(made, build)
    stopped = replace(course.replay.now(State.STOPPED, detail=build.detail), text=deployed)
    monkeypatch.setattr(Builder, "_go_on", lambda _, replay, *__: replay)
    asked = Builder(NoSpark(), made.site, lambda _: None)
    for slices, given, rate in ((None, None, 5.0), (4, 7.0, 7.0)):
        ReplayBook(made.lake, Tables()).record(stopped)
        gone_on = build_of(asked.build(NAME, slices=slices, rate=given).detail)
        assert gone_on is not None
        assert (gone_on.rate, gone_on.slicing) == (rate, slicing)
    ReplayBook(made.lake, Tables()).record(stopped)
    with pytest.raises(Conflict, match="by another query or other options"):
        asked.build(NAME, slices=3)


def test_a_build_lives_while_it_is_heard_of(made: HandMade, course: Course) -> None:
    assert is_alive(newest(made))
    assert not is_alive(newest(made), timedelta(0))


def test_a_limited_rate_is_kept_on_average_and_a_pause_ends_the_wait(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        def __init__(self) -> None:
            self.now = time.monotonic()

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr("replay.course.time", clock)
    course = begun(made, a_build(rate=10.0))
    began = clock.now
    course.wait()
    assert clock.now - began < 1
    course.finished(2.0)
    course.wait()
    assert clock.now - began == pytest.approx(10, abs=1)
    course.finished(2.0)
    ReplayBook(made.lake, Tables()).pause(NAME)
    course.wait()
    assert course.pausing
    assert clock.now - began < 12


def test_a_full_disk_is_told_at_once(made: HandMade, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rivals are done in a moment, and are waited for; a disk stays full."""
    tries: list[int] = []

    def refused(*_: object, **__: object) -> None:
        tries.append(1)
        raise StorageFull("no space left")

    monkeypatch.setattr("lake.ledger.write_deltalake", refused)
    with pytest.raises(StorageFull):
        begun(made, a_build())
    assert tries == [1]
