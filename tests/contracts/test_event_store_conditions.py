"""Conditions and queries of an `EventStore`, memory and PostgreSQL alike."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from eventstore.conditions import Condition, Query, QueryItem
from eventstore.store import Appended, AppendRequest, StreamAppend
from kernel.errors import BeyondHead, ConditionFailed, Conflict, InvalidRequest, NotFound
from kernel.positions import Position
from tests.contracts.conftest import Run, Store
from tests.contracts.events import event, request, to

HISTORY = (
    ("course-1", "opened", ("course:1",)),
    ("course-1", "enrolled", ("course:1", "student:1")),
    ("course-2", "enrolled", ("course:2", "student:1")),
    ("club-1", "enrolled", ("student:1",)),
    ("course-1", "enrolled", ("course:1", "student:2")),
    ("course-3", "opened", ()),
)


def asking(*items: tuple[tuple[str, ...], tuple[str, ...]], after: int = 0) -> Condition:
    """Make a condition of (types, tags) pairs."""
    query = Query(items=tuple(QueryItem(types=types, tags=tags) for types, tags in items))
    return Condition(query=query, after=Position(after))


def on(condition: Condition, *appends: StreamAppend) -> AppendRequest:
    return AppendRequest(appends=appends or (to("other-1"),), condition=condition)


async def remember(store: Store) -> None:
    for stream, type_, tags in HISTORY:
        await store.append(request(to(stream, [event(type_=type_, tags=tags)])))


@pytest.mark.parametrize(
    ("items", "newest"),
    [
        ([((), ("course:1",))], 5),
        ([((), ("course:9",))], None),
        ([(("opened",), ("course:1",))], 1),
        ([(("course.opened",), ("course:1",))], 1),
        ([(("club.enrolled",), ("student:1",))], 4),
        ([(("club.enrolled",), ("course:1",))], None),
        ([(("opened", "enrolled"), ("course:2",))], 3),
        ([((), ("course:1", "student:1"))], 2),
        ([((), ("student:1", "course:1", "course:1"))], 2),
        ([((), ("course:2", "student:2"))], None),
        ([(("opened",), ("course:1", "student:1"))], None),
        ([(("course.enrolled",), ("course:1", "student:1"))], 2),
        ([(("club.enrolled",), ("course:1", "student:1"))], None),
        ([(("opened",), ())], 6),
        ([(("club.enrolled",), ())], 4),
        ([(("club.opened",), ())], None),
        ([((), ("course:9",)), ((), ("course:2",))], 3),
    ],
)
def test_a_condition_matches_what_it_says(
    run: Run, items: list[tuple[tuple[str, ...], tuple[str, ...]]], newest: int | None
) -> None:
    async def body(store: Store) -> None:
        await remember(store)
        head = len(HISTORY)
        for after in range(head + 1):
            asked = on(asking(*items, after=after))
            if newest is not None and newest > after:
                with pytest.raises(ConditionFailed) as caught:
                    await store.append(asked)
                assert caught.value.fields == {"position": newest, "after": after}
            else:
                await store.append(asked)
                head += 1
            assert await store.head() == head
        query = asking(*items).query
        page = await store.query(query, after=0, limit=100)
        expected = [
            number
            for number, (stream, type_, tags) in enumerate(HISTORY, start=1)
            if query.matches(stream.partition("-")[0], type_, tags)
        ]
        assert [found.position for found in page.events] == expected
        assert max(expected, default=None) == newest
        assert page.scanned_to == page.head == head

    run(body)


def test_a_condition_sees_what_its_own_group_placed_before(run: Run) -> None:
    """Twenty requests reach the writer at once; whoever comes first takes the seat."""

    async def body(store: Store) -> None:
        for types, tags in (
            ((), ("seat:1",)),
            (("taken",), ("seat:2",)),
            (("hall.taken",), ("seat:3", "row:1")),
            (("left",), ()),
        ):
            new = {"type_": types[0].split(".")[-1] if types else "taken", "tags": tags}
            asked = [
                on(asking((types, tags)), to(f"hall-{number}", [event(**new)]))
                for number in range(20)
            ]
            outcomes = await asyncio.gather(*map(store.append, asked), return_exceptions=True)
            won = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
            assert len(won) == 1
            assert all(isinstance(o, ConditionFailed) for o in outcomes if o is not won[0])
        assert await store.head() == 4

    run(body)


def test_p1_a_retry_is_not_refused_by_its_own_events(run: Run) -> None:
    async def body(store: Store) -> None:
        asked = on(asking(((), ("seat:1",))), to("hall-1", [event(tags=("seat:1",))]))
        answers = await asyncio.gather(*(store.append(asked) for _ in range(5)))
        assert [answer.repeated for answer in answers].count(False) == 1
        assert (await store.append(asked)).appends == answers[0].appends
        assert await store.head() == 1

    run(body)


def test_p3_a_failed_condition_leaves_no_trace(run: Run) -> None:
    async def body(store: Store) -> None:
        await remember(store)
        new = event(tags=("course:1",))
        failing = asking(((), ("course:1",)), after=4)
        with pytest.raises(ConditionFailed):
            await store.append(on(failing, to("course-1"), to("course-9", [new])))
        with pytest.raises(NotFound):
            await store.event(new.id)
        with pytest.raises(NotFound):
            await store.read_stream("course-9", from_version=None, direction="forward", limit=1)
        await store.append(on(asking(((), ("course:1",)), after=5), to("course-9", [new])))
        assert await store.head() == len(HISTORY) + 1

    run(body)


def test_a_condition_beyond_the_head_is_refused(run: Run) -> None:
    """It was made on another store: it would hold whatever happened here."""

    async def body(store: Store) -> None:
        with pytest.raises(BeyondHead):
            await store.append(on(asking(((), ("a:1",)), after=1)))
        await store.append(on(asking(((), ("a:1",)), after=0)))

    run(body)


def test_conditions_are_serialisable(run: Run) -> None:
    """Concurrent transfers between counters: each decides on a read, none is lost.

    Every writer takes one unit from one of three tags while any is left; reads are stale as often
    as not. In the end nobody has taken more than there was.
    """
    room = 7

    async def body(store: Store) -> None:
        async def take(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(6):
                tag = f"pot:{rng.randrange(3)}"
                condition = asking((("taken",), (tag,)))
                page = await store.query(condition.query, after=0, limit=100)
                if len(page.events) >= room:
                    continue
                await asyncio.sleep(0)
                new = to(f"hand-{seed}", [event(type_="taken", tags=(tag,))])
                try:
                    asked = AppendRequest(
                        appends=(new,),
                        condition=Condition(query=condition.query, after=page.scanned_to),
                    )
                    await store.append(asked)
                except Conflict:
                    await asyncio.sleep(0)

        while True:
            before = await store.head()
            await asyncio.gather(*(take(seed) for seed in range(10)))
            if await store.head() == before:
                break
        counts: dict[str, int] = {}
        for found in (await store.read_all(after=0, limit=1_000)).events:
            counts[found.tags[0]] = counts.get(found.tags[0], 0) + 1
        assert counts == {f"pot:{number}": room for number in range(3)}

    run(body)


def test_tags_that_never_meet_are_refused_before_they_take_long(run: Run, kind: str) -> None:
    """Only the database bounds the search; memory has no lock that others wait for."""

    async def body(store: Store) -> None:
        for _ in range(13):
            pairs = [event(tags=(f"side:{number % 2}",)) for number in range(1_000)]
            await store.append(request(to("order-1", pairs)))
        never = asking(((), ("side:0", "side:1")))
        if kind == "memory":
            await store.append(on(never))
            return
        with pytest.raises(InvalidRequest, match="cannot be judged"):
            await store.append(on(never))
        await store.append(on(asking(((), ("side:0", "side:1")), after=12_000)))

    run(body)


@pytest.mark.parametrize(
    "items",
    [
        [],
        [((), ())],
        [((), ("t",))] * 17,
        [(tuple(f"t{number}" for number in range(17)), ())],
        [((), tuple(f"t:{number}" for number in range(17)))],
    ],
)
def test_queries_are_bounded(items: list[Any]) -> None:
    with pytest.raises(InvalidRequest):
        asking(*items)
