"""The rules of a group, one by one."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest

from eventstore.groups.model import MAX_REASON_CHARS, GroupEntry, Terms, check_consumer, check_name
from eventstore.groups.rules import Round
from kernel.errors import InvalidRequest, Overloaded
from kernel.positions import Position
from tests.property.test_group_laws import START, recorded

TERMS = Terms(
    max_deliveries=3,
    ack_timeout=timedelta(seconds=30),
    backoff=timedelta(seconds=2),
    backoff_cap=timedelta(seconds=7),
    max_in_flight=10,
    look_ahead=20,
    max_parked=2,
)
ID = uuid.UUID(int=1)


def out(position: int = 1, **changes: object) -> GroupEntry:
    entry = GroupEntry(
        position=Position(position),
        event_id=uuid.UUID(int=position),
        stream=f"order-{position}",
        due_at=START + timedelta(seconds=30),
        deliveries=1,
        consumer="a",
    )
    return replace(entry, **changes)


def round_of(
    *entries: GroupEntry, after_s: float = 0, parked: int = 0, terms: Terms = TERMS
) -> Round:
    return Round(terms, entries=entries, parked=parked, now=START + timedelta(seconds=after_s))


def test_a_given_event_carries_its_count_and_its_deadline() -> None:
    done = round_of()
    done.take_in([recorded(1, "order-1")])
    (given,) = done.give("a", 5)
    assert (given.deliveries, given.consumer) == (1, "a")
    assert given.due_at == START + TERMS.ack_timeout
    assert done.redelivered == 0


def test_silence_gives_the_event_to_the_next_who_asks() -> None:
    done = round_of(out(), after_s=30)
    done.settle()
    (given,) = done.give("b", 1)
    assert (given.consumer, given.deliveries, done.redelivered) == ("b", 2, 1)
    assert given.reason == "not acknowledged by a within 30 s"


def test_time_that_is_not_over_gives_nothing() -> None:
    done = round_of(out(), after_s=29.9)
    done.settle()
    assert done.give("b", 1) == []
    assert not done.changed
    assert done.due_in() == timedelta(seconds=0.1)


@pytest.mark.parametrize(("deliveries", "pause_s"), [(1, 2), (2, 4)])
def test_a_refusal_waits_longer_each_time(deliveries: int, pause_s: int) -> None:
    done = round_of(out(deliveries=deliveries))
    settled = done.nack([ID], consumer=None, delay=None, reason="busy")
    assert settled.done == (ID,)
    (kept,) = done.changed.values()
    assert kept.due_at == START + timedelta(seconds=pause_s)
    assert (kept.consumer, kept.reason) == (None, "busy")


def test_a_refusal_may_name_its_own_pause() -> None:
    done = round_of(out())
    done.nack([ID], consumer="a", delay=timedelta(seconds=99), reason="")
    assert done.changed[Position(1)].due_at == START + timedelta(seconds=99)


def test_the_last_refusal_parks_with_its_reason() -> None:
    done = round_of(out(deliveries=3))
    done.nack([ID], consumer=None, delay=None, reason="no\nsuch  order")
    (parked,) = done.newly_parked
    assert (parked.reason, parked.deliveries, done.parked) == ("no such order", 3, 1)
    assert not done.changed


def test_the_last_silence_parks() -> None:
    done = round_of(out(deliveries=3), after_s=31)
    done.settle()
    assert [each.reason for each in done.newly_parked] == ["not acknowledged by a within 30 s"]


def test_without_room_for_parked_an_event_waits_and_is_not_given() -> None:
    full = round_of(out(deliveries=3), out(2), after_s=31, parked=2)
    full.settle()
    assert [entry.position for entry in full.give("b", 5)] == [2]
    assert full.newly_parked == []
    room = round_of(*full.changed.values(), after_s=32, parked=1)
    room.settle()
    assert [each.position for each in room.newly_parked] == [1]


def test_who_lost_an_event_cannot_refuse_or_park_it() -> None:
    done = round_of(out(consumer="b"))
    assert done.nack([ID], consumer="a", delay=None, reason="").refused == (ID,)
    assert done.park([ID], consumer="a", reason="").refused == (ID,)
    assert not done.changed
    assert not done.newly_parked


def test_who_lost_an_event_can_still_acknowledge_it() -> None:
    for late in (out(consumer="b"), out(consumer=None)):
        done = round_of(late)
        assert done.ack([ID, ID]).done == (ID,)
        assert done.finished == {1}


def test_what_was_never_given_cannot_be_acknowledged() -> None:
    done = round_of(out(consumer=None, deliveries=0))
    assert done.ack([ID]).refused == (ID,)
    assert not done.finished


def test_parking_by_hand_is_all_or_nothing() -> None:
    done = round_of(out(1), out(2), parked=1)
    with pytest.raises(Overloaded, match="2 is the most"):
        done.park([uuid.UUID(int=1), uuid.UUID(int=2)], consumer=None, reason="")
    assert not done.newly_parked
    assert done.park([ID], consumer=None, reason="by hand").done == (ID,)


def test_an_older_event_that_comes_back_waits_for_the_one_that_is_out() -> None:
    returned = out(1, stream="order-9", consumer=None, deliveries=0, due_at=START)
    done = round_of(returned, out(2, stream="order-9"), out(3, stream="order-9", consumer=None))
    assert done.give("b", 5) == []
    done.ack([uuid.UUID(int=2)])
    assert [entry.position for entry in done.give("b", 5)] == [1]


def test_nobody_waits_for_a_time_that_brings_nothing() -> None:
    """What is due counts only while there is room in flight, or consumers would spin."""
    terms = replace(TERMS, max_in_flight=1)
    done = round_of(out(1), out(2, consumer=None, due_at=START), terms=terms)
    assert done.due_in() == timedelta(seconds=30)
    assert round_of(out(1, consumer=None, deliveries=3)).due_in() is None


def test_reasons_are_bounded() -> None:
    done = round_of(out(deliveries=3))
    done.nack([ID], consumer=None, delay=None, reason="x\x00" * 10_000)
    assert MAX_REASON_CHARS - 1 <= len(done.newly_parked[0].reason) <= MAX_REASON_CHARS
    assert "\x00" not in done.newly_parked[0].reason


@pytest.mark.parametrize(
    "changes",
    [
        {"max_deliveries": 0},
        {"ack_timeout": timedelta(0)},
        {"ack_timeout": timedelta(days=2)},
        {"backoff": timedelta(seconds=8)},
        {"look_ahead": 9},
        {"max_parked": 100_001},
    ],
)
def test_terms_have_bounds(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="is not in"):
        replace(TERMS, **changes)


def test_names_have_a_form() -> None:
    assert check_name("orders-to-shop") == "orders-to-shop"
    assert check_consumer("worker-1") == "worker-1"
    for name in ("", "Orders", "a b", "a" * 64, "1a"):
        with pytest.raises(InvalidRequest):
            check_name(name)
    for name in ("", "a b", "a" * 129):
        with pytest.raises(InvalidRequest):
            check_consumer(name)


def one_stream(*deliveries: int, consumer: str | None = "a") -> list[GroupEntry]:
    """Return the first events of one stream, given together."""
    return [
        out(position, stream="order-1", deliveries=count, consumer=consumer)
        for position, count in enumerate(deliveries, start=1)
    ]


def test_as_many_of_one_stream_as_were_asked_for() -> None:
    done = round_of()
    done.take_in([recorded(n, "order-1") for n in range(1, 5)] + [recorded(5, "order-2")])
    assert [entry.position for entry in done.give("a", 10, 3)] == [1, 2, 3, 5]
    assert done.give("b", 10, 3) == []
    done.ack([uuid.UUID(int=n) for n in (1, 3)])
    assert done.give("b", 10, 3) == []
    done.ack([uuid.UUID(int=2)])
    assert [entry.position for entry in done.give("b", 10, 3)] == [4]


def test_what_is_not_due_stops_what_is_behind_it() -> None:
    waiting = out(2, stream="order-1", consumer=None, due_at=START + timedelta(seconds=9))
    entries = [out(1, stream="order-1", consumer=None, due_at=START), waiting]
    entries.append(out(3, stream="order-1", consumer=None, due_at=START))
    assert [entry.position for entry in round_of(*entries).give("a", 10, 10)] == [1]


def test_a_refused_event_takes_those_behind_it_along_uncounted() -> None:
    done = round_of(*one_stream(1, 1, 1))
    settled = done.nack([ID], consumer="a", delay=None, reason="busy")
    assert settled.done == (ID,)
    back = [done.changed[Position(n)] for n in (1, 2, 3)]
    assert [(entry.consumer, entry.deliveries) for entry in back] == [
        (None, 1),
        (None, 0),
        (None, 0),
    ]
    assert back[0].due_at == START + timedelta(seconds=2)
    assert done.give("b", 10, 10) == []


def test_what_was_finished_before_counts_no_more() -> None:
    done = round_of(*one_stream(1, 1, 1))
    done.ack([ID])
    named = [uuid.UUID(int=3), uuid.UUID(int=2)]
    assert done.nack(named, consumer="a", delay=None, reason="busy").done == tuple(named)
    back = [done.changed[Position(n)] for n in (2, 3)]
    assert [entry.deliveries for entry in back] == [1, 0]


def test_only_the_first_of_a_late_batch_may_be_at_fault() -> None:
    """A poisonous event is parked by itself, not with all that were given behind it."""
    done = round_of(*one_stream(3, 1, 1), after_s=30)
    done.settle()
    assert [parked.position for parked in done.newly_parked] == [1]
    assert [(e.position, e.deliveries) for e in done.give("b", 10, 10)] == [(2, 1), (3, 1)]


def test_a_late_ack_of_a_batch_counts_for_all_of_it() -> None:
    """Somebody else asked meanwhile, and had nothing acknowledged yet."""
    done = round_of(*one_stream(1, 1, 1), after_s=30)
    done.settle()
    assert [(e.position, e.deliveries) for e in done.give("b", 10, 10)] == [(1, 2)]
    ids = tuple(uuid.UUID(int=n) for n in (1, 2, 3))
    assert done.ack(ids).done == ids
    assert done.finished == {1, 2, 3}


def test_of_a_batch_that_fails_whole_the_event_at_fault_alone_is_parked() -> None:
    """Its consumer refuses all events with it: nobody knows which one it was."""
    left = {position: out(position, stream="order-1") for position in (1, 2, 3)}
    handled: list[int] = []
    parked: list[int] = []
    for minute in range(1, 20):
        batch = round_of(*left.values(), after_s=60 * minute)
        batch.settle()
        given = {entry.position: entry for entry in batch.give("b", 10, per_stream=10)}
        ids = [entry.event_id for entry in given.values()]
        if 2 in given:
            batch.nack(ids, consumer="b", delay=None, reason="one of them is poison")
        else:
            batch.ack(ids)
            handled += given
        parked += [each.position for each in batch.newly_parked]
        left |= batch.changed
        gone = batch.finished | {*parked}
        left = {position: entry for position, entry in left.items() if position not in gone}
    assert (handled, parked, left) == ([1, 3], [2], {})
