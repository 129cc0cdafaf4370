"""Groups of appends: however requests are cut into groups, the answers are the same."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from eventstore.decision import Outcome, Placed, StoreState, decide_group, ids_of
from eventstore.names import category_of
from eventstore.store import Appended, AppendRequest, EncodedEvent, Expected, StreamAppend
from kernel.errors import PenstockError
from kernel.positions import Version
from schemas.wire import frame

NOW = datetime(2013, 1, 1, tzinfo=UTC)
STREAMS = ("a-1", "a-2", "b-1")


@st.composite
def requests(draw: st.DrawFn) -> AppendRequest:
    """Draw a request; ids come from few, so that retries, reuse and conflicts are common."""
    streams = draw(st.lists(st.sampled_from(STREAMS), min_size=1, max_size=2, unique=True))
    ids = draw(st.lists(st.integers(0, 12), min_size=len(streams), max_size=4, unique=True))
    cut = len(ids) if len(streams) == 1 else draw(st.integers(1, len(ids) - 1))
    return AppendRequest(
        appends=tuple(
            StreamAppend(
                stream=stream,
                category=category_of(stream),
                expected=draw(expectations()),
                events=tuple(
                    event(id_, draw(st.sampled_from([b"x", b"x", b"x", b"y"]))) for id_ in part
                ),
            )
            for stream, part in zip(streams, (ids[:cut], ids[cut:]), strict=False)
        )
    )


def expectations() -> st.SearchStrategy[Expected]:
    words: st.SearchStrategy[Expected] = st.sampled_from(["any", "no_stream", "stream_exists"])
    return words | st.integers(0, 3).map(Version)


def event(number: int, body: bytes) -> EncodedEvent:
    return EncodedEvent(
        id=uuid.UUID(int=number),
        type="happened",
        schema_id=1,
        data=frame(1, body),
        metadata={},
        tags=(),
        occurred_at=None,
    )


class Model:
    """A store that keeps everything in plain containers."""

    def __init__(self) -> None:
        self.placed: list[Placed] = []

    def commit(self, group: list[AppendRequest]) -> list[Outcome]:
        heads: dict[str, int] = {}
        for place in self.placed:
            heads[place.stream] = place.version
        wanted = set(ids_of(group))
        state = StoreState(
            position=len(self.placed),
            recorded_at=NOW,
            heads=heads,
            known={p.event.id: p for p in self.placed if p.event.id in wanted},
            categories={p.category for p in self.placed},
        )
        outcomes = decide_group(group, state)
        self.placed += state.placed
        return outcomes


def comparable(outcome: Outcome) -> object:
    if isinstance(outcome, PenstockError):
        return type(outcome), outcome.message
    return outcome


@given(st.lists(requests(), max_size=12), st.data())
def test_groups_do_not_change_answers(asked: list[AppendRequest], data: st.DataObject) -> None:
    singly, grouped = Model(), Model()
    expected = [comparable(singly.commit([request])[0]) for request in asked]
    found: list[object] = []
    rest = asked
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        group, rest = rest[:size], rest[size:]
        found += map(comparable, grouped.commit(group))
    assert found == expected
    assert grouped.placed == singly.placed


@given(st.lists(requests(), max_size=12))
def test_p1_p2_p3_places_have_no_gaps_and_refusals_no_trace(asked: list[AppendRequest]) -> None:
    model = Model()
    answered: dict[int, Appended] = {}
    for index, request in enumerate(asked):
        before = list(model.placed)
        (outcome,) = model.commit([request])
        if isinstance(outcome, PenstockError) or outcome.repeated:
            assert model.placed == before
        if isinstance(outcome, Appended):
            answered[index] = outcome
    assert [place.position for place in model.placed] == list(range(1, len(model.placed) + 1))
    for stream in STREAMS:
        versions = [place.version for place in model.placed if place.stream == stream]
        assert versions == list(range(len(versions)))
    ids = [place.event.id for place in model.placed]
    assert len(ids) == len(set(ids))
    # Whoever was answered gets the same answer again.
    for index, first in answered.items():
        (again,) = model.commit([asked[index]])
        assert isinstance(again, Appended)
        assert again.repeated
        assert again.appends == first.appends
