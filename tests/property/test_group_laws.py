"""A group under any interleaving of giving, answers, silence and lost answers."""

from __future__ import annotations

import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.groups.model import GroupEntry, Parked, Terms
from eventstore.groups.rules import Round
from kernel.positions import Position, Version
from schemas.records import RecordedEvent

START = datetime(2013, 1, 1, tzinfo=UTC)
TERMS = Terms(
    max_deliveries=2,
    ack_timeout=timedelta(seconds=10),
    backoff=timedelta(seconds=2),
    backoff_cap=timedelta(seconds=5),
    max_in_flight=2,
    look_ahead=6,
    max_parked=1,
)
CONSUMERS = ("a", "b")


def recorded(position: int, stream: str) -> RecordedEvent:
    return RecordedEvent(
        store_id="s",
        position=Position(position),
        id=uuid.UUID(int=position),
        stream=stream,
        version=Version(0),
        category="order",
        type="placed",
        schema_id=1,
        data_format=0,
        data=b"",
        subject=None,
        key_id=None,
        metadata={},
        tags=(),
        occurred_at=START,
        recorded_at=START,
    )


@dataclass
class Stored:
    """A group as storage keeps it, and what its consumers have seen."""

    events: list[RecordedEvent]
    now: datetime = START
    scanned: int = 0
    entries: dict[int, GroupEntry] = field(default_factory=dict)
    parked: dict[int, Parked] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)
    first_given: list[int] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=lambda: defaultdict(int))

    def round(self) -> Round:
        return Round(TERMS, entries=self.entries.values(), parked=len(self.parked), now=self.now)

    def keep(self, done: Round) -> None:
        for parked in done.newly_parked:
            self.parked[parked.position] = parked
        for gone in [*done.finished, *(each.position for each in done.newly_parked)]:
            self.entries.pop(gone, None)
        self.entries |= done.changed
        assert done.parked == len(self.parked) <= TERMS.max_parked
        assert len(self.entries) <= 2 * TERMS.look_ahead

    def give(self, consumer: str, limit: int, *, heard: bool = True) -> list[GroupEntry]:
        done = self.round()
        done.settle()
        per_stream = 1 + limit % 3
        while wanted := min(done.room, done.missing(limit, per_stream)):
            page = self.events[self.scanned : self.scanned + wanted]
            if not page:
                break
            done.take_in(page)
            self.scanned += len(page)
        out = done.give(consumer, limit, per_stream)
        self.keep(done)
        for entry in out:
            self._check(entry, {each.position for each in out})
        return out if heard else []

    def _check(self, entry: GroupEntry, together: set[int]) -> None:
        assert entry.position not in self.acked, "given again after its ack was answered"
        assert entry.deliveries <= TERMS.max_deliveries
        earlier = {
            event.position
            for event in self.events[: entry.position - 1]
            if event.stream == entry.stream
        }
        assert earlier <= self.acked | self.parked.keys() | together, (
            "an earlier one is not finished"
        )
        if not self.times[entry.position]:
            self.first_given.append(entry.position)
        self.times[entry.position] += 1
        out = [each for each in self.entries.values() if each.consumer is not None]
        assert len(out) <= TERMS.max_in_flight
        answers = {(each.stream, each.consumer, each.due_at) for each in out}
        assert len({each.stream for each in out}) == len(answers), "a stream is out twice"

    def ack(self, ids: list[uuid.UUID]) -> None:
        done = self.round()
        settled = done.ack(ids)
        unparked = [at for at, each in self.parked.items() if each.event_id in settled.refused]
        for position in unparked:
            del self.parked[position]
        done.unpark(len(unparked))
        self.keep(done)
        self.acked |= {id_.int for id_ in settled.done} | set(unparked)

    def replay_parked(self) -> None:
        room = 2 * TERMS.look_ahead - len(self.entries)
        for position in sorted(self.parked)[:room]:
            each = self.parked.pop(position)
            self.entries[position] = GroupEntry(
                position=each.position, event_id=each.event_id, stream=each.stream, due_at=self.now
            )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("give"), st.sampled_from(CONSUMERS), st.integers(1, 5)),
        st.tuples(st.just("lost"), st.sampled_from(CONSUMERS), st.integers(1, 5)),
        st.tuples(st.just("ack"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("nack"), st.integers(0, 20), st.sampled_from(CONSUMERS)),
        st.tuples(st.just("park"), st.integers(0, 20), st.sampled_from(CONSUMERS)),
        st.tuples(st.just("wait"), st.sampled_from([3, 11]), st.just(0)),
        st.tuples(st.just("replay"), st.just(0), st.just(0)),
    ),
    min_size=10,
    max_size=60,
)


def act(stored: Stored, held: list[uuid.UUID], step: tuple[str, object, object]) -> None:
    match step:
        case ("give" | "lost" as kind, str(consumer), int(limit)):
            given = stored.give(consumer, limit, heard=kind == "give")
            held += [entry.event_id for entry in given]
        case ("ack", int(which), _) if held:
            stored.ack([held[which % len(held)]])
        case ("nack", int(which), str(consumer)) if held:
            done = stored.round()
            done.nack([held[which % len(held)]], consumer=consumer, delay=None, reason="no")
            stored.keep(done)
        case ("park", int(which), str(consumer)) if held and len(stored.parked) < TERMS.max_parked:
            done = stored.round()
            done.park([held[which % len(held)]], consumer=consumer, reason="no")
            stored.keep(done)
        case ("wait", int(seconds), _):
            stored.now += timedelta(seconds=seconds)
        case ("replay", _, _):
            stored.replay_parked()
        case _:
            pass


@settings(max_examples=300)
@given(
    streams=st.lists(st.sampled_from(["s-1", "s-2", "s-3"]), min_size=3, max_size=20), steps=STEPS
)
def test_any_interleaving_delivers_all_at_least_once_and_in_order(
    streams: list[str], steps: list[tuple[str, object, object]]
) -> None:
    events = [recorded(position, stream) for position, stream in enumerate(streams, start=1)]
    stored = Stored(events=events)
    held: list[uuid.UUID] = []
    for step in steps:
        act(stored, held, step)
    # A diligent consumer in the end: everything that is left is acknowledged at once.
    for _ in range(4 * len(events) + 4):
        stored.replay_parked()
        stored.ack([entry.event_id for entry in stored.give("last", 5)] or [uuid.UUID(int=99)])
        stored.now += TERMS.ack_timeout
    assert stored.acked == {event.position for event in events}
    assert not stored.entries
    assert not stored.parked
    for stream in set(streams):
        first = [at for at in stored.first_given if events[at - 1].stream == stream]
        assert first == sorted(first)


@given(deliveries=st.integers(0, 1_000))
def test_back_off_doubles_up_to_its_cap(deliveries: int) -> None:
    pause = TERMS.backoff_after(deliveries)
    assert TERMS.backoff <= pause <= TERMS.backoff_cap
    assert TERMS.backoff_after(deliveries + 1) >= pause
