"""Replays of events on a virtual clock: gaps, spans, rates, and processes that are killed."""

from __future__ import annotations

import itertools
import tracemalloc
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.recovery.events import COLUMNS
from kernel.errors import InvalidRequest
from replay.elsewhere import passage as passages
from replay.elsewhere.pace import AtOnce, AtRate, Gaps, InProportion, Pace
from replay.elsewhere.passage import (
    AT_ONCE,
    TICK_S,
    Batching,
    Moved,
    Passage,
    PassageClock,
    PassageProgress,
)
from replay.elsewhere.selection import SelectedEvents, Selection
from replay.elsewhere.times import Shift

T0 = datetime(2013, 1, 1, tzinfo=UTC)
PACES = st.one_of(
    st.just(AtOnce()),
    st.builds(AtRate, per_second=st.floats(0.5, 5_000)),
    st.builds(
        InProportion,
        speed=st.floats(0.25, 1_000),
        gaps=st.sampled_from(Gaps),
        longest=st.none() | st.timedeltas(timedelta(0), timedelta(seconds=5)),
    ),
)
GAPS_MS = st.lists(st.integers(0, 20_000), min_size=1, max_size=25)
SHIFTS = st.builds(Shift, st.timedeltas(timedelta(days=-400_000), timedelta(days=400_000)))


class Killed(BaseException):
    """The process is gone."""


@dataclass
class World:
    """A log in memory, a clock that only sleeping moves, and a target that kills as it is told."""

    rows: pa.Table
    kills: list[tuple[int, bool]] = field(default_factory=list)
    seconds: float = 0.0
    cost_s: float = 0.0
    there: list[tuple[float, Moved]] = field(default_factory=list)
    told: list[tuple[float, PassageProgress]] = field(default_factory=list)
    batching: Batching = AT_ONCE

    def parts(
        self,
        *,
        after: int = 0,
        up_to: int | None = None,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        end = len(self.rows) if up_to is None else up_to
        for first in range(after, end, 4):
            part = self.rows.slice(first, min(4, end - first))
            yield part if where is None else part.filter(where)

    def reached(self) -> int:
        return self.there[-1][1].origin.position if self.there else 0

    def send(self, events: Sequence[Moved]) -> None:
        dies, kept = self.kills.pop(0) if self.kills else (0, True)
        if dies and not kept:
            raise Killed
        self.seconds += self.cost_s
        self.there += [(self.seconds, each) for each in events]
        if dies:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.seconds += max(seconds, 1e-6)  # Less is lost beside a large number.

    def passage(self, pace: Pace, shift: Shift, **chosen: object) -> Passage:
        selection = Selection(up_to=len(self.rows), **chosen)
        events = SelectedEvents(self, selection)
        return Passage(
            events=events,
            whole=events.survey(),
            target=self,
            shift=shift,
            pace=pace,
            report=lambda progress: self.told.append((self.seconds, progress)),
            clock=PassageClock(now=lambda: self.seconds, sleep=self.sleep),
        )


def log_of(gaps_ms: Sequence[int], swapped: bool = False) -> pa.Table:
    """Return events with these gaps between them; `swapped`: some occurred before the last one."""
    at = list(itertools.accumulate(gaps_ms, initial=0))
    return pa.Table.from_pylist(
        [
            {
                "position": n + 1,
                "store_id": str(uuid.UUID(int=7)),
                "event_id": str(uuid.UUID(int=n + 1)),
                "stream": f"order-{n % 3}",
                "version": n // 3,
                "category": "order",
                "type": "placed",
                "schema_id": 1,
                "data_format": 0,
                "data": b"\0\0\0\0\1x",
                "subject": None,
                "key_id": None,
                "metadata": "{}",
                "tags": [],
                "recorded_at": T0 + timedelta(milliseconds=ms),
                "occurred_at": T0 + timedelta(milliseconds=ms if n % 2 or not swapped else ms // 2),
            }
            for n, ms in enumerate(at)
        ],
        COLUMNS,
    )


def due_times(world: World, pace: Pace) -> list[float]:
    """Say when each event is due, another way than the schedule does."""
    rows = world.rows.to_pylist()
    match pace:
        case AtOnce():
            return [0.0] * len(rows)
        case AtRate(per_second=rate):
            return [n / rate for n in range(len(rows))]
        case InProportion(speed=speed, gaps=gaps, longest=longest):
            times = [row[f"{gaps.value}_at"] for row in rows]
            tops = [max(times[: n + 1]) for n in range(len(times))]
            waits = [(b - a).total_seconds() / speed for a, b in itertools.pairwise(tops)]
            if longest is not None:
                waits = [min(each, longest.total_seconds()) for each in waits]
            return list(itertools.accumulate(waits, initial=0.0))


@given(gaps=GAPS_MS, swapped=st.booleans(), pace=PACES, cost=st.sampled_from([0.0, 0.02]))
def test_no_event_goes_out_before_it_is_due_nor_later_than_the_target_lets_it(
    gaps: list[int], swapped: bool, pace: Pace, cost: float
) -> None:
    world = World(log_of(gaps, swapped), cost_s=cost)
    world.passage(pace, Shift()).run()
    wanted = due_times(world, pace)
    assert [moved.origin.position for _, moved in world.there] == list(range(1, len(wanted) + 1))
    for (at, _), due in zip(world.there, wanted, strict=True):
        assert at >= due - 1e-6
        if cost == 0.0:
            assert at == pytest.approx(due, abs=1e-5)


@given(gaps=GAPS_MS, pace=PACES, shift=SHIFTS)
def test_all_times_move_by_one_span(gaps: list[int], pace: Pace, shift: Shift) -> None:
    world = World(log_of(gaps, swapped=True))
    passage = world.passage(pace, shift)
    passage.run()
    for _, moved in world.there:
        assert moved.event.occurred_at - moved.origin.occurred_at == shift.by
        assert moved.event.recorded_at - moved.origin.recorded_at == shift.by
        assert moved.event.data == moved.origin.data


@given(
    gaps=GAPS_MS,
    pace=PACES,
    kills=st.lists(st.tuples(st.integers(0, 1), st.booleans()), max_size=12),
    most=st.integers(1, 5),
)
def test_whatever_is_killed_each_event_is_there_once_and_in_order(
    gaps: list[int], pace: Pace, kills: list[tuple[int, bool]], most: int
) -> None:
    world = World(log_of(gaps), kills)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(passages, "MOST_EVENTS", most)
        for _ in range(len(kills) + 1):
            begun = len(world.there)
            passage = world.passage(pace, Shift())
            try:
                passage.run()
            except Killed:
                continue
            assert passage.sent == len(world.there) - begun
            break
    positions = [moved.origin.position for _, moved in world.there]
    assert positions == list(range(1, len(gaps) + 2))
    again = world.passage(pace, Shift())
    again.run()
    assert (again.sent, len(world.there)) == (0, len(positions))


@given(gaps=GAPS_MS, pace=PACES)
def test_the_time_left_is_what_it_then_takes(gaps: list[int], pace: Pace) -> None:
    world = World(log_of(gaps))
    world.passage(pace, Shift()).run()
    ended = world.seconds
    for at, progress in world.told:
        assert progress.events + progress.behind_events == progress.of == len(gaps) + 1
        if progress.eta_s is not None:
            assert progress.eta_s == pytest.approx(ended - at, abs=1e-5)
    last = world.told[-1][1]
    assert (last.behind_events, last.behind_s, last.late_s, last.eta_s) == (0, 0.0, 0.0, 0.0)


def test_progress_comes_while_a_gap_is_waited_for() -> None:
    world = World(log_of([30_000]))
    world.passage(InProportion(speed=1, gaps=Gaps.RECORDED, longest=None), Shift()).run()
    assert len(world.told) >= 30 / TICK_S
    assert all(progress.late_s == 0 for _, progress in world.told)


def test_a_target_that_is_slower_than_the_schedule_is_told_of() -> None:
    world = World(log_of([1_000] * 20), cost_s=3.0)
    world.passage(InProportion(speed=1, gaps=Gaps.RECORDED, longest=None), Shift()).run()
    assert max(progress.late_s for _, progress in world.told) > 1
    assert any("behind its schedule" in progress.line for _, progress in world.told)


def test_a_selection_is_cut_by_time_category_and_stream() -> None:
    world = World(log_of([1_000] * 9))
    chosen = {"since": T0 + timedelta(seconds=2), "until": T0 + timedelta(seconds=8)}
    world.passage(AtOnce(), Shift(), **chosen).run()
    assert [moved.origin.position for _, moved in world.there] == [3, 4, 5, 6, 7, 8]
    world.there.clear()
    world.passage(AtOnce(), Shift(), streams=("order-1",), after=2).run()
    assert [moved.origin.position for _, moved in world.there] == [5, 8]


def test_times_beyond_the_calendar_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="would leave the years 1 to 9999"):
        Shift(timedelta(days=3_000_000)).refuse_beyond(T0, T0)
    with pytest.raises(InvalidRequest, match="would leave the years 1 to 9999"):
        Shift(timedelta(days=-800_000)).refuse_beyond(T0, T0)
    Shift(timedelta(days=-734_868)).refuse_beyond(T0, T0)


def test_the_events_of_a_part_are_not_in_memory_together() -> None:
    table = log_of([1] * 20_000)

    class Whole:
        def parts(self, **_: object) -> Iterator[pa.Table]:
            yield table

    tracemalloc.start()
    try:
        events = SelectedEvents(Whole(), Selection(up_to=table.num_rows)).after(0)
        assert next(events).position == 1
        assert tracemalloc.get_traced_memory()[1] < 5e6
    finally:
        tracemalloc.stop()
    assert sum(1 for _ in events) == 20_000


def test_what_is_due_soon_goes_out_together_and_never_before_it_is_due() -> None:
    apart = World(rows=log_of([100] * 30), batching=Batching(events=8, wait_s=1.0))
    apart.passage(InProportion(speed=1.0, gaps=Gaps.RECORDED, longest=None), Shift()).run()
    assert [each.origin.position for _, each in apart.there] == [*range(1, 32)]
    for at, each in apart.there:
        due = 0.1 * (each.origin.position - 1)
        assert due - 1e-6 <= at <= due + 1.0 + 1e-6
    assert len({at for at, _ in apart.there}) == 4, "eight at most"
