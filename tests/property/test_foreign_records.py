"""Records that somebody else writes into a topic of events take no event's place."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count, pairwise

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.decode import EventDecoder
from kernel.errors import StoreDiverged
from kernel.positions import KafkaOffset
from lake.layout import Lake
from lake.table_columns import DECODED
from lake.tables import Tables
from pipeline.arrive.arrival import Arrival, sort_out
from pipeline.commit.quarantine import open_records
from pipeline.decode.records import decode, row_of
from pipeline.installs.install_book import DECODE, InstallBook, InstallEntry
from pipeline.position.progress import Progress
from projections.serve.quarantined_records import places_of
from schemas.records import KafkaRecord
from schemas.registry import MemoryRegistry
from schemas.wire import frame
from tests.support.lake.telling import ToldLake

EVENTS = 5
AT = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = {"type": "record", "name": "d", "fields": [{"name": "text", "type": "string"}]}
GARBAGE = (b"", b"\x7f", b"\xff" * 30, b"\x04a")
REGISTRY = MemoryRegistry()
SCHEMA_ID = REGISTRY.register("order.placed", json.dumps(SCHEMA))

Foreign = tuple[int, int, bytes]
"""The position that a record claims, how many events are sent before it, and its body."""
FOREIGN = st.tuples(st.integers(1, EVENTS + 1), st.integers(0, EVENTS), st.sampled_from(GARBAGE))


def record(position: int, body: bytes, *, claims: int | None = None) -> KafkaRecord:
    """Return a record with the headers of an event, and one that claims another position."""
    headers = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, str(position))),
        "store_id": "store",
        "type": "placed",
        "stream": "order-9",
        "category": "order",
        "version": str(position),
        "position": str(position if claims is None else claims),
        "schema_id": str(SCHEMA_ID),
        "data_format": "0",
        "occurred_at": AT.isoformat(),
        "recorded_at": AT.isoformat(),
    }
    return KafkaRecord(
        topic="events.order",
        partition=0,
        offset=KafkaOffset(0),
        timestamp=AT,
        key=b"order-9",
        value=frame(SCHEMA_ID, body),
        headers={name: text.encode() for name, text in headers.items()},
    )


def event(position: int, *, says: str | None = None) -> KafkaRecord:
    """Return the record of an event."""
    out = io.BytesIO()
    text = {"text": says or f"event {position}"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), text)
    return record(position, out.getvalue())


def arrived(batches: Sequence[Sequence[KafkaRecord]]) -> tuple[list[Arrival], Progress]:
    """Decode and sort out records, an epoch a batch; what is remembered travels as the text."""
    progress, arrivals = Progress(), []
    offsets = count(1)
    decoder = EventDecoder(REGISTRY)
    for epoch, records in enumerate(batches, start=1):
        rows = []
        for each in records:
            placed = replace(each, offset=KafkaOffset(next(offsets)))
            rows.append(row_of(placed, decode(placed, decoder)))
        after = progress.copy()
        arrivals.append(
            sort_out(
                pa.Table.from_pylist(rows, schema=DECODED),
                after,
                before=progress,
                epoch=epoch,
                lateness=lambda _: timedelta(0),
                partitions={},
                now=AT,
            )
        )
        progress = Progress.from_json(after.to_json())
    return arrivals, progress


def logged(arrivals: Sequence[Arrival]) -> list[tuple[int, bytes]]:
    found = [table for arrival in arrivals for table in arrival.events.values()]
    return sorted((row["position"], row["data"]) for table in found for row in table.to_pylist())


@given(
    strangers=st.lists(FOREIGN, min_size=1, max_size=4),
    ends=st.sets(st.integers(1, EVENTS + 3), max_size=4),
)
def test_p1_garbage_that_claims_a_position_loses_nothing(
    strangers: list[Foreign], ends: set[int]
) -> None:
    queue: list[KafkaRecord] = []
    for before in range(EVENTS + 1):
        queue += [record(99, body, claims=at) for at, b, body in strangers if b == before]
        queue += [event(before + 1)] if before < EVENTS else []
    cuts = [0, *sorted(end for end in ends if end < len(queue)), len(queue)]
    batches = [queue[first:last] for first, last in pairwise(cuts)]
    # The position behind the last event belongs to the event that comes next.
    arrivals, progress = arrived([*batches, [event(EVENTS + 1)]])
    wanted = [(n, event(n).value) for n in range(1, EVENTS + 2)]
    assert logged(arrivals) == wanted
    assert sum(each.quarantined.num_rows for each in arrivals) == len(strangers)
    assert progress.head("store") == EVENTS + 1
    assert not any(len(left) for left in progress.refused.values())


@pytest.mark.parametrize("claims", [0, -5, 2**63, 2**90])
def test_a_record_that_claims_what_no_event_has_takes_nothing(claims: int) -> None:
    strange = record(99, b"", claims=claims)
    arrivals, progress = arrived([[event(1), strange], [event(2)], [strange, event(3)]])
    assert logged(arrivals) == [(n, event(n).value) for n in (1, 2, 3)]
    assert progress.head("store") == 3
    assert sum(each.quarantined.num_rows for each in arrivals) == 2


def test_p9_two_events_of_one_position_are_compared_within_a_batch() -> None:
    (arrival,), _ = arrived([[event(1), event(2), event(1)]])
    assert (arrival.counts["events"], arrival.counts["duplicates"]) == (2, 1)
    with pytest.raises(StoreDiverged, match="position 1 of store store is event"):
        arrived([[event(1), event(2), event(1, says="another")]])
    # The same where garbage claimed the position in an epoch before.
    garbage = record(99, b"\x7f", claims=1)
    with pytest.raises(StoreDiverged):
        arrived([[garbage], [event(1), event(1, says="another")]])


def test_an_event_behind_garbage_that_readers_have_passed_is_in_its_table(lake: Lake) -> None:
    told = ToldLake(lake)
    first, second = (told.appended("placed", {"text": f"event {n}"}) for n in (1, 2))
    told.send(replace(first, value=(first.value or b"")[:6]))
    told.send(second)
    told.epoch()
    told.bring()
    assert [row["text"] for row in told.rows("placed")] == ["event 2"]
    told.restart()
    told.send(first)
    told.epoch()
    told.bring()
    assert [row["text"] for row in told.rows("placed")] == ["event 1", "event 2"]


@pytest.mark.parametrize("at_once", [True, False])
def test_p5_an_event_behind_its_place_is_once_in_the_epoch_that_logged_it(
    lake: Lake, at_once: bool
) -> None:
    told = ToldLake(lake)
    first, second = (told.appended("placed", {"text": f"event {n}"}) for n in (1, 2))
    told.send(replace(first, value=(first.value or b"")[:6]))
    told.send(second)
    before = told.epoch()
    told.send(first)
    last = told.epoch()
    # Typed tables are behind: the log has both when its first epoch is brought.
    for each in (last,) if at_once else (before, last):
        told.derived.bring(told.derived.at(), each, [])
        told.restart()
    rows = [(row["text"], row["_epoch"]) for row in told.rows("placed")]
    assert rows == [("event 1", last.epoch), ("event 2", before.epoch)]


@pytest.mark.parametrize("comes", [True, False])
def test_a_record_that_can_be_read_later_replaces_no_event(lake: Lake, comes: bool) -> None:
    told = ToldLake(lake)
    event_, early = (told.appended("placed", {"text": name}) for name in ("mine", "foreign"))
    headers = {**early.headers, "position": b"1", "schema_id": b"2"}
    told.send(replace(early, headers=headers, value=frame(2, (early.value or b"")[5:])))
    if comes:
        told.send(event_)
    told.epoch()
    text = told.registry.schema(1).replace('"placed"', '"other"')
    assert told.registry.register("order.other", text) == 2
    waiting = open_records(lake, Tables(), [])
    assert waiting is not None
    detail = {"places": places_of(waiting.to_pylist()), "by": "a test", "reason": "tried"}
    entry = InstallEntry(kind=DECODE, id="events.order", source="store", detail=detail)
    InstallBook(lake, Tables()).put([entry])
    told.epoch()
    told.bring()
    (row,) = told.rows("placed")
    assert row["text"] == ("mine" if comes else "foreign")
    left = open_records(lake, Tables(), ["reason"])
    assert (left is None) == (not comes)
