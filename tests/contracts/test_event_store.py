"""What every `EventStore` keeps to, memory and PostgreSQL alike."""

from __future__ import annotations

import asyncio
import random
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from eventstore.appender import AppendLimits
from eventstore.sizes import PAGE_BYTES
from eventstore.store import (
    Appended,
    AppendRequest,
    Direction,
    EventFilter,
    EventStore,
    Expected,
)
from kernel.errors import (
    Conflict,
    IdReused,
    InvalidRequest,
    NotFound,
    Overloaded,
    PenstockError,
    VersionConflict,
)
from tests.contracts.conftest import Run, Store
from tests.contracts.events import event, request, to


async def everything(store: EventStore) -> list[tuple[int, str, int]]:
    page = await store.read_all(after=0, limit=100_000)
    assert page.scanned_to == page.head
    return [(e.position, e.stream, e.version) for e in page.events]


async def settled(store: EventStore, requests: list[AppendRequest]) -> list[Any]:
    return await asyncio.gather(*map(store.append, requests), return_exceptions=True)


def test_versions_and_positions_count_without_gaps(run: Run) -> None:
    async def body(store: Store) -> None:
        first = await store.append(request(to("order-1", [event(), event()])))
        both = await store.append(request(to("order-1"), to("cart-1", [event(), event()])))
        assert not first.repeated
        (answer,) = first.appends
        assert (answer.first_version, answer.last_version) == (0, 1)
        assert (answer.first_position, answer.last_position) == (1, 2)
        assert [(a.stream, a.first_version, a.last_position) for a in both.appends] == [
            ("order-1", 2, 3),
            ("cart-1", 0, 5),
        ]
        assert await everything(store) == [
            (1, "order-1", 0),
            (2, "order-1", 1),
            (3, "order-1", 2),
            (4, "cart-1", 0),
            (5, "cart-1", 1),
        ]
        assert await store.head() == 5

    run(body)


@pytest.mark.parametrize(
    ("expected", "on_absent", "on_version_1"),
    [
        ("any", True, True),
        ("no_stream", True, False),
        ("stream_exists", False, True),
        (0, False, False),
        (1, False, True),
        (2, False, False),
    ],
)
def test_expected_versions(
    run: Run, expected: Expected, on_absent: bool, on_version_1: bool
) -> None:
    async def accepted(store: Store, stream: str, actual: int | None) -> bool:
        (outcome,) = await settled(store, [request(to(stream, expected=expected))])
        if isinstance(outcome, VersionConflict):
            assert outcome.fields == {"stream": stream, "expected": expected, "actual": actual}
        return isinstance(outcome, Appended)

    async def body(store: Store) -> None:
        await store.append(request(to("order-1", [event(), event()])))
        assert await accepted(store, "order-absent", None) is on_absent
        assert await accepted(store, "order-1", 1) is on_version_1

    run(body)


def test_p3_a_refused_append_leaves_no_trace(run: Run) -> None:
    async def body(store: Store) -> None:
        await store.append(request(to("order-1")))
        before = await everything(store)
        refused = event(tags=("a:1",))
        for bad in (
            request(to("order-2"), to("order-1", [refused], expected="no_stream")),
            request(to("order-1", [refused], expected=7)),
            request(to("new-1", [refused], expected="stream_exists")),
        ):
            with pytest.raises(VersionConflict):
                await store.append(bad)
        assert await everything(store) == before
        with pytest.raises(NotFound):
            await store.event(refused.id)
        with pytest.raises(NotFound):
            await store.read_stream("order-2", from_version=None, direction="forward", limit=1)
        # Neither its ids nor its places are used up.
        again = await store.append(request(to("order-1", [refused], expected=0)))
        assert (again.appends[0].first_version, again.appends[0].first_position) == (1, 2)

    run(body)


def test_p1_a_retry_by_event_ids_gets_the_first_answer(run: Run) -> None:
    async def body(store: Store) -> None:
        asked = request(
            to("order-1", [event(), event()], expected="no_stream"), to("cart-1", [event()])
        )
        first = await store.append(asked)
        await store.append(request(to("order-1")))
        again = await store.append(asked)
        assert again.repeated
        assert again.appends == first.appends
        assert await store.head() == 4

    run(body)


def test_p1_concurrent_retries_of_one_request_happen_once(run: Run) -> None:
    async def body(store: Store) -> None:
        asked = request(to("order-1", [event(), event()], expected="no_stream"))
        answers = await settled(store, [asked] * 40)
        assert {answer.appends for answer in answers} == {answers[0].appends}
        assert [answer.repeated for answer in answers].count(False) == 1
        assert await store.head() == 2

    run(body)


def test_an_id_with_other_content_is_refused(run: Run) -> None:
    occurred = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)

    async def body(store: Store) -> None:
        kept, second = event(b"a", tags=("t:1",), metadata={"by": 1}), event(occurred_at=occurred)
        await store.append(request(to("order-1", [kept, second])))
        same: dict[str, Any] = {"tags": ("t:1",), "metadata": {"by": 1}, "id_": kept.id}
        for reused in (
            to("order-1", [event(b"b", **same), second]),
            to("order-1", [event(b"a", **(same | {"tags": ("t:2",)})), second]),
            to("order-1", [event(b"a", **(same | {"metadata": {"by": 2}})), second]),
            to("order-1", [event(b"a", **same, type_="other"), second]),
            to("order-2", [kept, second]),
            to("order-1", [second, kept]),
            to("order-1", [kept, event()]),
            to("order-1", [kept, event(id_=second.id, occurred_at=datetime.now(UTC))]),
        ):
            with pytest.raises(IdReused):
                await store.append(request(reused))
        assert await store.head() == 2
        repeated = await store.append(request(to("order-1", [kept, second])))
        assert repeated.repeated

    run(body)


def test_of_many_who_create_a_stream_one_wins(run: Run) -> None:
    async def body(store: Store) -> None:
        outcomes = await settled(
            store, [request(to("order-1", expected="no_stream")) for _ in range(50)]
        )
        won = [outcome for outcome in outcomes if isinstance(outcome, Appended)]
        assert len(won) == 1
        assert all(isinstance(o, VersionConflict) for o in outcomes if o is not won[0])
        assert await store.head() == 1

    run(body)


def test_optimistic_writers_lose_no_update(run: Run) -> None:
    """Each of ten writers adds five events to one stream, reading the version before each."""

    async def writer(store: Store) -> None:
        done = 0
        while done < 5:
            page = await store.read_stream("sum-1", from_version=0, direction="forward", limit=1)
            try:
                await store.append(request(to("sum-1", expected=page.version)))
                done += 1
            except VersionConflict:
                continue

    async def body(store: Store) -> None:
        await store.append(request(to("sum-1")))
        await asyncio.gather(*(writer(store) for _ in range(10)))
        assert [version for _, _, version in await everything(store)] == list(range(51))

    run(body)


def test_one_bad_append_never_fails_its_group(run: Run) -> None:
    async def body(store: Store) -> None:
        used = event(b"first")
        await store.append(request(to("used-1", [used])))
        bad = {
            3: request(to("order-3", expected=5)),
            11: request(to("used-1", [event(b"second", id_=used.id)])),
        }
        asked = [bad.get(i, request(to(f"order-{i}", expected="no_stream"))) for i in range(20)]
        outcomes = await settled(store, asked)
        assert isinstance(outcomes[3], VersionConflict)
        assert isinstance(outcomes[11], IdReused)
        good = [outcome for i, outcome in enumerate(outcomes) if i not in bad]
        assert all(isinstance(outcome, Appended) for outcome in good)
        assert sorted(o.appends[0].first_position for o in good) == list(range(2, 20))

    run(body)


def test_p2_a_reader_never_sees_an_event_appear_behind_it(run: Run) -> None:
    """Random writers, some refused; readers tail by position and note all that they see."""

    async def writer(store: Store, seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            stream = f"order-{rng.randrange(8)}"
            expected: Expected = rng.choice(["any", "any", "no_stream", "stream_exists"])
            events = [event() for _ in range(rng.randrange(1, 4))]
            try:
                await store.append(request(to(stream, events, expected=expected)))
            except Conflict:
                await asyncio.sleep(0)

    async def reader(store: Store, done: asyncio.Event) -> list[tuple[int, str, int]]:
        seen: list[tuple[int, str, int]] = []
        position = 0
        while not done.is_set() or position < await store.head():
            page = await store.read_all(after=position, limit=7)
            seen += [(e.position, e.stream, e.version) for e in page.events]
            position = page.scanned_to
            await asyncio.sleep(0)
        return seen

    async def body(store: Store) -> None:
        done = asyncio.Event()
        readers = [asyncio.create_task(reader(store, done)) for _ in range(3)]
        await asyncio.gather(*(writer(store, seed) for seed in range(8)))
        done.set()
        stored = await everything(store)
        for task in readers:
            assert await task == stored
        assert [position for position, _, _ in stored] == list(range(1, len(stored) + 1))
        by_stream: dict[str, list[int]] = {}
        for _, stream, version in stored:
            by_stream.setdefault(stream, []).append(version)
        assert all(versions == list(range(len(versions))) for versions in by_stream.values())

    run(body)


def test_reading_a_stream_in_both_directions(run: Run) -> None:
    async def versions(store: Store, *args: Any) -> list[int]:
        start, direction, limit = args
        page = await store.read_stream(
            "order-1", from_version=start, direction=direction, limit=limit
        )
        assert page.version == 4
        return [e.version for e in page.events]

    async def body(store: Store) -> None:
        await store.append(request(to("order-1", [event() for _ in range(5)])))
        assert await versions(store, None, "forward", 10) == [0, 1, 2, 3, 4]
        assert await versions(store, 2, "forward", 2) == [2, 3]
        assert await versions(store, None, "backward", 2) == [4, 3]
        assert await versions(store, 1, "backward", 9) == [1, 0]
        assert await versions(store, 9, "forward", 9) == []

    run(body)


def test_filters_and_how_far_was_looked(run: Run) -> None:
    async def body(store: Store) -> None:
        for index in range(6):
            category = "order" if index % 2 else "cart"
            await store.append(request(to(f"{category}-{index}", [event(type_=f"t{index % 3}")])))

        async def found(limit: int = 10, **wanted: str) -> tuple[list[int], int]:
            page = await store.read_all(after=0, limit=limit, filter_=EventFilter(**wanted))
            return [e.position for e in page.events], page.scanned_to

        assert await found(category="order") == ([2, 4, 6], 6)
        assert await found(type="t0") == ([1, 4], 6)
        assert await found(stream_prefix="cart-4") == ([5], 6)
        assert await found(stream="cart-4") == ([5], 6)
        assert await found(stream="cart") == ([], 6)
        assert await found(category="order", type="t0") == ([4], 6)
        assert await found(limit=2, category="order") == ([2, 4], 4)
        assert await found(category="none") == ([], 6)
        beyond = await store.read_all(after=100, limit=5)
        assert (beyond.events, beyond.scanned_to, beyond.head) == ((), 100, 6)

    run(body)


def test_everything_that_was_given_comes_back(run: Run) -> None:
    async def body(store: Store) -> None:
        occurred = datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC)
        given = event(
            bytes(range(256)),
            tags=("a:1", 'quo"te\\', "{x}"),
            metadata={"text": "tab\t line\n back\\slash 'q' ☃", "n": [1, None, {"b": True}]},
            occurred_at=occurred,
        )
        await store.append(request(to("order-ü☃'\\", [given, event()])))
        found = await store.event(given.id)
        assert (found.id, found.type, found.data) == (given.id, given.type, given.data)
        assert (found.tags, found.metadata) == (given.tags, given.metadata)
        assert (found.occurred_at, found.stream) == (occurred, "order-ü☃'\\")
        assert (found.schema_id, found.data_format, found.subject) == (7, 0, None)
        page = await store.read_all(after=1, limit=1)
        assert page.events[0].occurred_at == page.events[0].recorded_at
        assert page.events[0].store_id == found.store_id

    run(body)


def test_a_page_of_large_events_ends_after_so_many_bytes(run: Run) -> None:
    """Whoever goes on where it ended gets all of them, in both directions."""

    async def body(store: Store) -> None:
        large = PAGE_BYTES // 2 + 1
        for number in range(5):
            given = event(bytes([number]) * (large if number % 2 else 5), tags=("all",))
            await store.append(request(to("order-1", [given])))
        told = event(metadata={"text": "x" * PAGE_BYTES})
        await store.append(request(to("order-1", [told, event()])))
        pages = [[1, 2, 3, 4], [5, 6], [7]]
        for filter_ in (EventFilter(), EventFilter(category="order"), EventFilter(tag="all")):
            seen, after = [], 0
            while (page := await store.read_all(after=after, limit=100, filter_=filter_)).events:
                seen.append([each.position for each in page.events])
                after = page.scanned_to
            assert seen == (pages if filter_.tag is None else [[1, 2, 3, 4], [5]])
        assert await _walked(store, 0, "forward") == [[0, 1, 2, 3], [4, 5], [6]]
        assert await _walked(store, 6, "backward") == [[6, 5], [4, 3, 2, 1], [0]]

    run(body)


async def _walked(store: Store, start: int, direction: Direction) -> list[list[int]]:
    seen: list[list[int]] = []
    while 0 <= start <= 6:
        page = await store.read_stream(
            "order-1", from_version=start, direction=direction, limit=100
        )
        seen.append([each.version for each in page.events])
        start = seen[-1][-1] + (1 if direction == "forward" else -1)
    return seen


def test_recorded_at_never_decreases_with_position(run: Run) -> None:
    async def body(store: Store) -> None:
        for _ in range(5):
            await settled(store, [request(to(f"order-{uuid.uuid4()}")) for _ in range(10)])
        page = await store.read_all(after=0, limit=100)
        times = [e.recorded_at for e in page.events]
        assert times == sorted(times)
        assert all(moment.tzinfo is not None for moment in times)

    run(body)


def test_the_number_of_categories_is_bounded(run: Run) -> None:
    async def body(store: Store) -> None:
        await store.append(request(to("a-1"), to("b-1")))
        with pytest.raises(InvalidRequest, match="at most 2"):
            await store.append(request(to("a-2"), to("c-1")))
        await store.append(request(to("b-2")))
        assert await store.head() == 3

    run(body, max_categories=2)


def test_a_full_queue_refuses_and_forgets_nothing(run: Run) -> None:
    async def body(store: Store) -> None:
        outcomes = await settled(store, [request(to(f"order-{i}")) for i in range(60)])
        refused = [o for o in outcomes if isinstance(o, Overloaded)]
        accepted = [o for o in outcomes if isinstance(o, Appended)]
        assert refused
        assert refused[0].fields["retry_after_s"] == 1
        assert len(refused) + len(accepted) == 60
        assert await store.head() == len(accepted)
        # What is larger than the queue goes alone, rather than never.
        await store.append(request(to("order-large", [event() for _ in range(25)])))

    run(body, limits=AppendLimits(queue_events=20))


def test_unknown_ids_are_not_found(run: Run) -> None:
    async def body(store: Store) -> None:
        with pytest.raises(NotFound) as caught:
            await store.event(uuid.uuid4())
        assert isinstance(caught.value, PenstockError)
        assert await store.head() == 0

    run(body)


def test_a_flood_on_one_stream_does_not_hold_up_others(run: Run) -> None:
    async def body(store: Store) -> None:
        flood = [asyncio.create_task(store.append(request(to("flood-1")))) for _ in range(1_500)]
        await asyncio.sleep(0)  # All of them are queued now.
        others = await settled(store, [request(to(f"order-{i}")) for i in range(10)])
        # Two groups at most before them: the one that was being committed and their own.
        assert max(answer.appends[0].last_position for answer in others) <= 200
        answers = await asyncio.gather(*flood)
        versions = [answer.appends[0].first_version for answer in answers]
        assert versions == list(range(1_500))

    run(body, limits=AppendLimits(group_events=100))
