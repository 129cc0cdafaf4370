"""State with snapshots is the state folded from the start: for any version and time, whatever was
kept before, also after the decider or the schemas changed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.deciders import Decider, Event
from eventstore.upcasting import Upcaster
from schemas.records import RecordedEvent
from tests.support.services.tier import examples
from tests.support.store.deciding import STREAM, Count, World, counter, schema, world
from tests.support.store.explaining import applied


@dataclass(frozen=True, kw_only=True)
class Append:
    """Append so many events."""

    values: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """Look at the present state: this is when snapshots are kept."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Another decider from now on."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """A service that has just started, with the same decider."""


@dataclass(frozen=True, kw_only=True)
class Release:
    """The next version of the schema."""


Step = Append | Look | Change | Restart | Release
STEPS = st.lists(
    st.one_of(
        st.builds(Append, values=st.lists(st.integers(-9, 9), min_size=1, max_size=5).map(tuple)),
        st.builds(Look),
        st.builds(Look),
        st.builds(Change, number=st.integers(0, 2)),
        st.builds(Restart),
        st.builds(Release),
    ),
    min_size=2,
    max_size=14,
)


def weighted(number: int) -> Decider[Any]:
    """Deciders that differ in what they make of the same events."""

    def evolve(state: Count, event: Event) -> Count:
        by = event.data["by"] * (number + 1) + event.data.get("extra", 0)
        return Count(total=state.total * 2 + by, steps=(*state.steps, by))

    return counter(evolve=evolve)


def doubled(data: dict[str, Any]) -> dict[str, Any]:
    return {"by": data["by"] * 2, "extra": data["extra"] + 1}


RELEASES = (schema(by=...), schema(by=..., extra=5), schema(by=..., extra=7))
UPCASTERS = (Upcaster(event="counter.added", version=2, upcast=doubled),)


def in_newest(value: int, version: int, newest: int) -> dict[str, int]:
    """What an event written as `version` says in version `newest`, worked out by hand."""
    data = {"by": value}
    if version == 1 and newest > 1:
        data |= {"extra": 5}
    elif version > 1:
        data |= {"extra": value}
    # The service has an upcaster from version 2 and takes it once version 2 is the newest.
    return doubled(data) if version < 3 and newest >= 2 else data


async def run(steps: list[Step]) -> None:
    number, released = 0, 1
    written: list[tuple[int, int]] = []
    async with world(upcasters=UPCASTERS) as parts:
        await parts.intake.add("counter.added", RELEASES[0])
        entities = parts.entities(weighted(0), code="0")
        for step in steps:
            match step:
                case Append(values=values):
                    events = [
                        {"by": value} | ({"extra": value} if released > 1 else {})
                        for value in values
                    ]
                    await parts.append(*events)
                    written += [(value, released) for value in values]
                case Look():
                    await entities.load("counter", STREAM)
                case Change(number=number):
                    entities = parts.entities(weighted(number), code=str(number))
                case Restart():
                    entities = parts.entities(weighted(number), code=str(number))
                case Release() if released < len(RELEASES):
                    await parts.intake.add("counter.added", RELEASES[released])
                    released += 1
                case _:
                    continue
        await check(parts, entities, weighted(number), written)


async def check(
    parts: World, entities: Any, decider: Decider[Any], written: list[tuple[int, int]]
) -> None:
    """Compare every state with the one folded from the start by hand."""
    if not written:
        return
    page = await parts.store.read_stream(
        STREAM, from_version=None, direction="forward", limit=1_000
    )
    await entities.load("counter", STREAM)
    _, newest = entities.upcasting.newest(page.events[0])
    for count in range(len(written) + 1):
        folded = decider.fold(
            decider.start(),
            (
                Event("added", in_newest(value, version, newest))
                for value, version in written[:count]
            ),
        )
        before: RecordedEvent | None = page.events[count - 1] if count else None
        following = page.events[count] if count < len(page.events) else None
        if before is not None:
            found = await entities.load("counter", STREAM, version=before.version)
            assert found.position == before.position
            assert await entities.frozen(found) == decider.shape.freeze(folded)
            await check_explained(entities, decider, before.version)
        if before is not None and (following is None or following.recorded_at > before.recorded_at):
            at = before.recorded_at + timedelta(milliseconds=500)
            found = await entities.load("counter", STREAM, at=at)
            assert found.version == before.version
            assert await entities.frozen(found) == decider.shape.freeze(folded)


async def check_explained(entities: Any, decider: Decider[Any], version: int) -> None:
    """The explained changes, page by page, lead from the initial state to the one at a version."""
    following = await entities.frozen(await entities.load("counter", STREAM, version=version))
    earlier, seen = version, []
    while earlier is not None:
        page = await entities.explain("counter", STREAM, version=earlier, limit=2)
        assert page.after == following
        changes = [change for each in page.events for change in each.changes]
        assert applied(page.before, changes) == page.after
        seen += [each.event.version for each in reversed(page.events)]
        following, earlier = page.before, page.earlier
    assert following == decider.shape.freeze(decider.start())
    assert seen == [*reversed(range(version + 1))]


@given(STEPS)
@settings(max_examples=examples(50, matrix=150))
def test_snapshots_never_change_a_state(steps: list[Step]) -> None:
    asyncio.run(run(steps))


LOOKED_AT_BEFORE: tuple[Step, ...] = (Append(values=(1, 2, 3, 4)), Look())


@pytest.mark.parametrize(
    "later",
    [
        (Release(), Append(values=(5,)), Look()),
        (Release(), Append(values=(5,)), Restart()),
        (Release(), Restart(), Append(values=(5, 6)), Release(), Append(values=(7,))),
        (Change(number=1), Append(values=(5,))),
        (Change(number=1), Append(values=(5, 6, 7)), Look(), Change(number=0)),
    ],
)
def test_a_snapshot_of_before_is_not_used_after(later: tuple[Step, ...]) -> None:
    asyncio.run(run([*LOOKED_AT_BEFORE, *later]))
