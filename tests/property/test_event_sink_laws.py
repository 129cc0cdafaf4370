"""Streams, ids and requests of events that a projection's changes become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.event_sink import EventOutlet, SinkEvent
from eventstore.names import category_of
from kernel.errors import Conflict
from kernel.positions import DeltaVersion, Epoch
from projections.serve.feed_places import FeedPlace
from projections.serve.row_changes import RowChange
from projections.serve.table_steps import Changes
from projections.sinks.sink_transactions import SinkCursor
from projections.sql.words.sinks import EventSink

NAMES = ("a", "b")
NULL_HASHED = "sha256:ea8c2d6b0d6bb2f9fbb3a63d2d9d9f1c6f7f9d1b58a4b5cde21c1a3e8f8c6d4f"
TEXTS = st.one_of(
    st.sampled_from([None, "null", "%6Eull", "Null", "", "-", "a,b", "a", "b", NULL_HASHED]),
    st.text(max_size=5),
    st.text(min_size=100, max_size=120),
)
KEYS = st.lists(st.tuples(TEXTS, TEXTS), min_size=2, max_size=6, unique=True)


class Store:
    """Knows events by their ids, as the store does; takes so many in one request."""

    def __init__(self, most_events: int, most_bytes: int) -> None:
        self.most_events, self.most_bytes = most_events, most_bytes
        self.ids: list[str] = []

    def post(self, path: str, document: Any) -> None:
        body = orjson.dumps(document)
        ids = [e["id"] for each in orjson.loads(body)["appends"] for e in each["events"]]
        assert path == "/v1/append"
        assert len(ids) <= self.most_events
        assert len(body) <= self.most_bytes
        there = [id_ in self.ids for id_ in ids]
        if any(there) and not all(there):
            raise Conflict("some of them are there", problem="id-reused")
        self.ids += [id_ for id_ in ids if id_ not in self.ids]


class Nowhere:
    """Keeps no place."""

    def send(self, records: Sequence[object], cursor: SinkCursor) -> None:
        assert not records


def outlet(store: Store) -> EventOutlet:
    """Return an outlet to a store, under the service's limits of that store."""
    return EventOutlet(
        declared=EventSink(category="told"),
        projection="report",
        service=cast(Any, store),
        most_events=store.most_events,
        most_bytes=store.most_bytes,
        transactions=cast(Any, Nowhere()),
    )


def events(
    made: EventOutlet, rows: Sequence[dict[str, object]], key: Sequence[str]
) -> list[SinkEvent]:
    """Return the events of rows that are new."""
    changes = [RowChange(key={n: row[n] for n in key}, old=None, new=dict(row)) for row in rows]
    place = FeedPlace(table_id="t", version=DeltaVersion(3), epoch=Epoch(2), done=None)
    return made.records(
        Changes(rows=changes, behind=place, columns=pa.schema([]), epoch=Epoch(2), generation=1)
    )


@pytest.fixture(scope="module")
def made() -> EventOutlet:
    return outlet(Store(1_000, 2**20))


@given(keys=KEYS)
def test_no_two_keys_share_a_stream_or_an_id(
    made: EventOutlet, keys: list[tuple[str | None, str | None]]
) -> None:
    rows = [dict(zip(NAMES, key, strict=True)) for key in keys]
    found = events(made, rows, NAMES)
    assert len({each.stream for each in found}) == len(keys)
    assert len({orjson.loads(each.event)["id"] for each in found}) == len(keys)
    assert {category_of(each.stream) for each in found} == {"told"}


def test_a_null_is_another_stream_than_its_text_and_a_hash_is_another_than_its_text(
    made: EventOutlet,
) -> None:
    (long,) = events(made, [{"a": "x" * 300}], ["a"])
    hashed = long.stream.removeprefix("told-")
    texts: list[str | None] = [None, "null", hashed, "paid"]
    found = events(made, [{"a": text} for text in texts], ["a"])
    assert [each.stream for each in found[:2]] == ["told-null", "told-%6Eull"]
    assert len({long.stream, *(each.stream for each in found)}) == 5
    assert found[-1].stream == "told-paid"


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=30),
    before=st.tuples(st.integers(1, 30), st.integers(2_000, 9_000)),
    after=st.tuples(st.integers(1, 30), st.integers(2_000, 9_000)),
    done=st.integers(0, 30),
)
def test_requests_keep_the_limits_of_the_service_and_may_be_cut_otherwise_after_a_crash(
    sizes: list[int], before: tuple[int, int], after: tuple[int, int], done: int
) -> None:
    store, cursor = Store(*before), cast(SinkCursor, None)
    first = outlet(store)
    made = events(first, [{"id": n, "x": "x" * size} for n, size in enumerate(sizes)], ["id"])
    first.send(made[:done], cursor)
    store.most_events, store.most_bytes = after
    outlet(store).send(made, cursor)
    assert store.ids == [orjson.loads(each.event)["id"] for each in made]
