"""A store's events are found each once, in the order of its ids, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from delivery.event_ranges import EventRange, selection_of
from eventstore.archive import Archived
from eventstore.recovery.events import COLUMNS, LakeEvents, refuse_gaps
from eventstore.recovery.stored_events import StoredEvents
from kernel.errors import Incompatible, InvalidRequest, NotFound
from kernel.positions import Epoch
from lake.layout import Lake, events_log
from lake.savepoints import SavepointBook
from lake.tables import Tables
from schemas.records import RecordedEvent

AT = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = str(UUID(int=10)), str(UUID(int=11))


def row(position: int, store_id: str = OLD) -> tuple[Any, ...]:
    id_ = str(UUID(int=position))
    about = (position, store_id, id_, f"a-{position}", 0, "a", "t", 1, 1, b"x", None, None)
    return (*about, "{}", [], AT, AT)


def rows(positions: Iterable[int], store_id: str) -> pa.Table:
    found = [dict(zip(COLUMNS.names, row(p, store_id), strict=True)) for p in positions]
    return pa.Table.from_pylist(found, schema=COLUMNS)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake of a store that lost positions 91 to 100 and went on under another id."""
    found = Lake.at(tmp_path)
    write_deltalake(found.path(events_log(OLD)), rows(range(1, 101), OLD))
    write_deltalake(found.path(events_log(NEW)), rows(range(91, 121), NEW))
    return found


def test_the_ids_of_a_store_are_taken_in_their_order_alone(lake: Lake) -> None:
    found = LakeEvents(lake, [OLD, NEW])
    assert (found.contents.store_id, found.contents.head) == (NEW, 120)
    assert sum(part.num_rows for part in found.parts()) == 120
    with pytest.raises(InvalidRequest, match="begin at position 91, not before") as caught:
        LakeEvents(lake, [NEW, OLD])
    assert "oldest first" in caught.value.remedy


def test_a_log_that_goes_on_behind_those_that_were_named_is_asked_for(lake: Lake) -> None:
    third = str(UUID(int=12))
    write_deltalake(lake.path(events_log(third)), rows(range(121, 123), third))
    with pytest.raises(InvalidRequest, match=f"goes on as {third}"):
        LakeEvents(lake, [OLD, NEW])
    assert LakeEvents(lake, [OLD, NEW, third]).contents.head == 122


def test_what_a_savepoint_has_of_a_store_is_found_under_the_ids_of_its_day(lake: Lake) -> None:
    """Without the manifest, which forgets the epoch."""
    log = LakeEvents(lake, [OLD, NEW])
    asked = EventRange(since="day", until=None, categories=(), streams=())
    book = SavepointBook(lake, Tables())

    def behind(heads: dict[str, int] | None) -> int:
        kept = book.take("day", Epoch(1), [], heads=heads)
        try:
            return selection_of(asked, log, lake, but_ending=None).after
        finally:
            book.drop(kept)

    assert behind({NEW: 110, OLD: 100}) == 110
    assert behind({OLD: 40}) == 40
    assert behind({OLD: 95}) == 90, "91 to 95 were lost; those of the new id came since"
    with pytest.raises(NotFound, match="savepoint day knows no position of this store"):
        behind({str(UUID(int=12)): 7})
    with pytest.raises(NotFound, match=r"did not keep positions, and epoch 1, .* is not kept any"):
        behind(None)


class Archiving(StoredEvents):
    """Event 2 leaves for the archive between the two questions for events."""

    def __init__(self) -> None:
        self._archive = cast(Any, self)

    async def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if "FROM es.events" in statement:
            return [row(2), row(3)]
        return [(1, OLD), (2, OLD)]

    async def find(self, places: Sequence[Archived]) -> dict[int, RecordedEvent]:
        return {place.position: recorded(place.position) for place in places}


def recorded(position: int) -> RecordedEvent:
    names = [{"event_id": "id"}.get(name, name) for name in COLUMNS.names]
    values = dict(zip(names, row(position), strict=True))
    return RecordedEvent(**values | {"id": UUID(int=position), "metadata": {}, "tags": ()})


def test_what_is_archived_while_it_is_read_is_there_once() -> None:
    found = asyncio.run(Archiving().between(1, 3))
    assert found["position"].to_pylist() == [1, 2, 3]


def test_a_position_that_is_there_twice_is_named() -> None:
    with pytest.raises(Incompatible, match="position 2 is there twice"):
        refuse_gaps(rows([1, 2, 2, 3], OLD), 1, 4)
