"""The comparison that ends every run of odd events finds each kind of difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa
import pytest

from lake.layout import Lake
from lake.tables import Tables
from tests.support.lake.handmade import HandMade
from tests.support.store.odd_events import CATEGORY, OddEvents

Rows = list[dict[str, Any]]
TYPED = f"typed/events.{CATEGORY}.a"
TOLD: Rows = [
    {"id": f"e{n}", "type": "a", "data": {"a": n, "b": "x"}, "metadata": {"by": "me"}}
    for n in range(3)
]
SHAPE = pa.schema(
    [
        *((name, pa.string()) for name in ("event_id", "stream", "type", "b")),
        *((name, pa.int64()) for name in ("a", "position")),
    ]
)


@pytest.fixture
def told() -> OddEvents:
    events = OddEvents("http://127.0.0.1:1", {}, seed=1)
    events.accepted = {each["id"]: (f"{CATEGORY}-1", each) for each in TOLD}
    return events


def lost(rows: Rows) -> Rows:
    return rows[1:]


def doubled(rows: Rows) -> Rows:
    return [*rows, {**rows[0], "position": 9}]


def invented(rows: Rows) -> Rows:
    return [*rows, {**rows[0], "position": 9} | dict.fromkeys(("id", "event_id"), "another")]


def put(name: str, value: object) -> Callable[[Rows], Rows]:
    return lambda rows: [rows[0] | {name: value}, *rows[1:]]


def read(rows: Rows) -> bytes:
    return b"\n".join(map(orjson.dumps, rows))


IN_STORE = {
    "lost": lost,
    "doubled": doubled,
    "invented": invented,
    "another stream": put("stream", f"{CATEGORY}-2"),
    "another type": put("type", "b"),
    "altered data": put("data", {"a": 0.5, "b": "x"}),
    "altered metadata": put("metadata", {}),
    "out of order": lambda rows: rows[::-1],
    "none at all": lambda rows: [],
}


@pytest.mark.parametrize("plant", IN_STORE.values(), ids=IN_STORE)
def test_a_difference_in_the_store_is_found(told: OddEvents, plant: Callable[[Rows], Rows]) -> None:
    rows = [
        {**each, "position": n, "stream": f"{CATEGORY}-1"} for n, each in enumerate(TOLD, start=1)
    ]
    assert told.differing_in_store(read(rows)) == []
    assert told.differing_in_store(read(plant(rows)))


IN_LAKE = {
    "lost": lost,
    "doubled": doubled,
    "invented": invented,
    "another stream": put("stream", f"{CATEGORY}-2"),
    "altered number": put("a", 7),
    "altered text": put("b", "X"),
    "a value that vanished": put("b", None),
    "none at all": lambda rows: [],
}


@pytest.mark.parametrize("plant", IN_LAKE.values(), ids=IN_LAKE)
def test_a_difference_in_the_lake_is_found(
    told: OddEvents, lake: Lake, plant: Callable[[Rows], Rows]
) -> None:
    assert told.differing_in_lake(lake), "there is no table yet"
    rows = [
        {"event_id": each["id"], "stream": f"{CATEGORY}-1", "type": "a", "position": n}
        | each["data"]
        for n, each in enumerate(TOLD, start=1)
    ]
    made = HandMade(lake)
    for epoch, content, differs in ((1, rows, False), (2, plant(rows), True)):
        table = Tables().open(lake.path(TYPED))
        if table is not None:
            table.delete()
        made.epoch()
        made.derive({TYPED: pa.Table.from_pylist(content, schema=SHAPE)}, epoch)
        assert bool(told.differing_in_lake(lake)) == differs
