"""Which event changed which field of an entity, from what to what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from eventstore.deciders.explanation import FieldChange, changed_fields
from tests.support.store.deciding import STREAM, World, counter, world


def told(changes: tuple[FieldChange, ...]) -> dict[str, tuple[object, object]]:
    return {each.field: (each.before, each.after) for each in changes}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1}, {"a": 2}, {"/a": ((1,), (2,))}),
        ({"a": None}, {}, {"/a": ((None,), ())}),
        ({}, {"a": None}, {"/a": ((), (None,))}),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1]}}, {"/a/b/1": ((2,), ())}),
        ({"a": [1]}, {"a": {"0": 1}}, {"/a": (([1],), ({"0": 1},))}),
        ({"a/b": 1, "~": 1}, {"a/b": 2, "~": 2}, {"/a~1b": ((1,), (2,)), "/~0": ((1,), (2,))}),
        ({"a": 1}, {"a": True}, {"/a": ((1,), (True,))}),
        (1, 2, {"": ((1,), (2,))}),
    ],
)
def test_what_differs_is_named_by_its_place(before: Any, after: Any, expected: Any) -> None:
    assert told(tuple(changed_fields(before, after))) == expected


async def explained(made: World, last: int, **of: Any) -> list[tuple[int, dict[str, Any]]]:
    entities = made.entities(counter(every=3))
    entity = await entities.load("counter", STREAM, **of)
    steps = await entities.explain("counter", entity, last=last)
    return [(step.event.version, told(step.changes)) for step in steps]


def test_each_event_is_told_with_what_it_changed() -> None:
    async def check() -> None:
        async with world() as made:
            await made.append(*[{"by": by} for by in (5, 0, 7, 1, 2)])
            first = {"/total": ((0,), (5,)), "/steps/0": ((), (5,))}
            assert (await explained(made, 10))[:2] == [
                (0, first),
                (1, {"/steps/1": ((), (0,))}),
            ]
            assert await explained(made, 1) == [
                (4, {"/total": ((13,), (15,)), "/steps/4": ((), (2,))})
            ]
            # Behind a snapshot, and as of an earlier version.
            assert [version for version, _ in await explained(made, 2, version=2)] == [1, 2]

    asyncio.run(check())


def test_a_state_that_is_changed_in_place_is_told_apart_from_what_it_was() -> None:
    def evolve(state: dict[str, int], event: Any) -> dict[str, int]:
        state["total"] = state.get("total", 0) + event.data["by"]
        return state

    async def check() -> None:
        async with world() as made:
            await made.append({"by": 1}, {"by": 2})
            entities = made.entities(counter(initial_state={}, evolve=evolve, decide=never))
            entity = await entities.load("counter", STREAM)
            steps = await entities.explain("counter", entity, last=5)
            assert [told(step.changes) for step in steps] == [
                {"/total": ((), (1,))},
                {"/total": ((1,), (3,))},
            ]

    asyncio.run(check())


def never(command: Any, state: dict[str, int]) -> list[Any]:
    return []


def test_what_was_never_there_has_no_explanation() -> None:
    async def check() -> None:
        async with world() as made:
            assert await explained(made, 5) == []

    asyncio.run(check())
