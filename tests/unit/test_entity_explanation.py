"""Which event changed which field of an entity, from what to what."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.deciders.explanation import FieldChange, changed_fields
from eventstore.policies import StreamPolicies
from kernel.errors import NotFound
from tests.support.store.deciding import STREAM, World, counter, world
from tests.support.store.explaining import applied

WORDS = st.text("a~/01", max_size=2)


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
        ([1, 2, 3, 4], [0, 2], {"/0": ((1,), (0,)), "/3": ((4,), ()), "/2": ((3,), ())}),
        ({"a": [1]}, {"a": {"0": 1}}, {"/a": (([1],), ({"0": 1},))}),
        ({"a/b": 1, "~": 1}, {"a/b": 2, "~": 2}, {"/a~1b": ((1,), (2,)), "/~0": ((1,), (2,))}),
        ({"a": 1}, {"a": True}, {"/a": ((1,), (True,))}),
        (1, 2, {"": ((1,), (2,))}),
    ],
)
def test_what_differs_is_named_by_its_place(before: Any, after: Any, expected: Any) -> None:
    changes = tuple(changed_fields(before, after))
    assert told(changes) == expected
    assert applied(before, changes) == after


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False, width=16) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_the_changes_in_their_order_lead_from_one_state_to_the_other(
    before: Any, after: Any
) -> None:
    found = applied(before, changed_fields(before, after))
    assert json.dumps(found, sort_keys=True) == json.dumps(after, sort_keys=True)


async def explained(made: World, last: int, **of: Any) -> list[tuple[int, dict[str, Any]]]:
    found = await made.entities(counter(every=3)).explain("counter", STREAM, limit=last, **of)
    steps = () if found is None else found.events
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
            found = await entities.explain("counter", STREAM, limit=5)
            assert found is not None
            assert [told(step.changes) for step in found.events] == [
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


def test_what_a_policy_hides_is_neither_explained_nor_counted() -> None:
    """The page begins with the first event that may be read, and ends with what was asked for."""

    async def check() -> None:
        async with world() as made:
            policies = StreamPolicies(made.store, made.intake)
            await made.append(*[{"by": by} for by in range(1, 9)])
            await policies.set(STREAM, max_age_s=None, max_count=None, truncate_before=3)
            entities = made.entities(counter(every=3))
            behind = await entities.explain("counter", STREAM, version=5, limit=2)
            assert behind is not None
            assert (behind.before, behind.earlier) == ({"total": 4, "steps": [4]}, 3)
            found = await entities.explain("counter", STREAM, version=5, limit=4)
            assert found is not None
            assert [each.event.version for each in found.events] == [3, 4, 5]
            assert (found.before, found.earlier) == ({"total": 0, "steps": []}, None)
            assert found.after == {"total": 15, "steps": [4, 5, 6]}
            with pytest.raises(NotFound, match="has no event 2 to read"):
                await entities.explain("counter", STREAM, version=2, limit=4)
            await policies.delete(STREAM, for_good=False)
            assert await entities.explain("counter", STREAM, limit=4) is None
            await made.append({"by": 9})
            again = await entities.explain("counter", STREAM, limit=4)
            assert again is not None
            assert [told(each.changes) for each in again.events] == [
                {"/total": ((0,), (9,)), "/steps/0": ((), (9,))}
            ]
            assert again.last.version == 8

    asyncio.run(check())


def test_a_page_of_large_events_ends_sooner_and_with_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("eventstore.sizes.PAGE_BYTES", 20)

    async def check() -> None:
        async with world() as made:
            await made.append(*[{"by": by} for by in range(1, 9)])
            found = await made.entities(counter()).explain("counter", STREAM, limit=500)
            assert found is not None
            versions = [each.event.version for each in found.events]
            assert len(versions) < 8
            assert versions[-1] == 7
            assert found.earlier == versions[0] - 1
            assert found.after["total"] == 36

    asyncio.run(check())
