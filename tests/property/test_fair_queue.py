"""The writer's queue: nothing is lost, streams keep their order, and a flood waits for itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from eventstore.queueing import FairQueue


@dataclass(slots=True)
class Item:
    """A request of one stream or several."""

    number: int
    streams: tuple[str, ...]
    events: int = 1
    size: int = 1
    turn: int = 0


@st.composite
def items(draw: st.DrawFn, *, most_events: int = 5) -> list[Item]:
    names = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
    drawn = draw(st.lists(st.tuples(names, st.integers(1, most_events)), max_size=40))
    return [
        Item(number=number, streams=tuple(streams), events=events)
        for number, (streams, events) in enumerate(drawn)
    ]


def filled(given: Sequence[Item]) -> FairQueue[Item]:
    queue: FairQueue[Item] = FairQueue(max_events=1_000_000, max_bytes=1_000_000)
    for item in given:
        assert queue.offer(item)
    return queue


def id_of(item: Item) -> int:
    return item.number


def drained(queue: FairQueue[Item], at_most: int) -> list[list[Item]]:
    groups = []
    while len(queue):
        group = queue.take(at_most)
        assert group, "a group of nothing would never end"
        groups.append(group)
    return groups


@given(items(), st.integers(1, 12))
def test_every_request_goes_once_and_streams_keep_their_order(
    given: list[Item], at_most: int
) -> None:
    groups = drained(filled(given), at_most)
    taken = [item for group in groups for item in group]
    assert sorted(item.number for item in taken) == [item.number for item in given]
    for stream in "abcd":
        numbers = [item.number for item in taken if stream in item.streams]
        assert numbers == sorted(numbers)
    for group in groups:
        assert len(group) == 1 or sum(item.events for item in group) <= at_most


@given(st.integers(1, 30), st.integers(2, 8))
def test_a_flood_is_served_too_while_others_keep_coming(flood: int, at_most: int) -> None:
    queue = filled([Item(number=number, streams=("flood",)) for number in range(flood)])
    served = groups = 0
    while served < flood:
        for number in range(at_most - 1):
            queue.offer(Item(number=number, streams=(f"new-{groups}-{number}",)))
        group = queue.take(at_most)
        served += sum(item.streams == ("flood",) for item in group)
        groups += 1
        assert groups <= 2 * flood + 2
        for item in group:
            queue.settle(item)


@given(st.lists(st.sampled_from("abcdefgh"), max_size=80), st.integers(1, 10))
def test_a_request_waits_for_its_turn_and_not_for_a_flood(streams: list[str], at_most: int) -> None:
    """The j-th request of a stream goes once each of S streams had j turns: after j * S events."""
    given = [Item(number=number, streams=(stream,)) for number, stream in enumerate(streams)]
    place: Counter[str] = Counter()
    bounds = {}
    for item in given:
        place[item.streams[0]] += 1
        bounds[item.number] = -(-place[item.streams[0]] * len(set(streams)) // at_most)
    for number, group in enumerate(drained(filled(given), at_most), start=1):
        for item in group:
            assert number <= bounds[item.number]


@given(items(), st.integers(1, 12), st.integers(0, 40))
def test_a_group_that_was_put_back_goes_first(given: list[Item], at_most: int, more: int) -> None:
    queue = filled(given)
    if not given:
        return
    group = queue.take(at_most)
    queue.offer(Item(number=1_000, streams=("e",), events=more + 1))
    queue.put_back(group)
    assert set(map(id_of, queue.take(at_most))) >= set(map(id_of, group))


@given(st.lists(st.sampled_from(["flood"] * 9 + ["b", "c"]), max_size=200))
def test_a_flood_leaves_room_for_others(streams: list[str]) -> None:
    """However much one stream sends, the first request of another finds the door open."""
    queue: FairQueue[Item] = FairQueue(max_events=50, max_bytes=1_000)
    accepted: Counter[str] = Counter()
    for number, stream in enumerate(streams):
        taken = queue.offer(Item(number=number, streams=(stream,)))
        accepted[stream] += taken
        assert taken or accepted[stream], "the first of a stream was refused"
        assert queue.events <= 50
    for group in drained(queue, 10):
        for item in group:
            queue.settle(item)
    assert queue.events == 0
