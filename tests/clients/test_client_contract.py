"""What the client and its fake keep to: the same tests against a real service and in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pytest

from penstock_client import (
    BeyondHead,
    CaughtUp,
    Condition,
    ConditionFailed,
    Event,
    IdReused,
    Imported,
    Incompatible,
    NewEvent,
    NotFound,
    QueryItem,
    Refused,
    SchemaViolation,
    StreamAppend,
    UnknownType,
    VersionConflict,
)
from tests.clients.worlds import ONE_OF_EACH, Body, World, opened

Run = Callable[..., None]
ORDER = {
    "type": "record",
    "name": "placed",
    "fields": [{"name": "total", "type": "double"}, {"name": "note", "type": ["null", "string"]}],
}


@pytest.fixture(params=ONE_OF_EACH)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a coroutine function in a fresh world."""
    dsn = request.getfixturevalue("postgres_dsn") if "server" in request.param else None
    with ExitStack() as stack:

        def run(body: Body, **options: Any) -> None:
            stack.enter_context(opened(request.param, dsn, **options))(body)

        yield run


def placed(total: float = 1.5, **more: Any) -> NewEvent:
    return NewEvent(type="placed", data={"total": total}, **more)


async def collected(events: Any) -> list[Event]:
    return [event async for event in events]


async def upto_caught_up(feed: Any) -> list[int]:
    """Return the positions of the events before `CaughtUp`."""
    positions = []
    async for item in feed:
        if isinstance(item, CaughtUp):
            return positions
        positions.append(item.position)
    raise AssertionError("the feed ended")


async def next_event(feed: Any) -> int:
    """Return the position of the next event, whatever marks come before it."""
    async for item in feed:
        if isinstance(item, Event):
            return item.position
    raise AssertionError("the feed ended")


def test_an_append_is_answered_and_read_back(run: Run) -> None:
    async def body(world: World) -> None:
        when = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
        first = placed(12.5, tags=("customer:7", "vip"), occurred_at=when, metadata={"by": "me"})
        answer = await world.client.append("order-1", [first, placed()], expected_version="any")
        assert (answer.stream, answer.first_version, answer.last_version) == ("order-1", 0, 1)
        assert (answer.first_position, answer.last_position) == (1, 2)
        read, other = await collected(world.client.read_stream("order-1"))
        assert (read.id, read.type, read.category) == (first.id, "placed", "order")
        assert (read.data, read.metadata) == ({"total": 12.5}, {"by": "me"})
        assert (read.tags, read.occurred_at) == (("customer:7", "vip"), when)
        assert read.recorded_at.tzinfo is not None
        assert other.occurred_at == other.recorded_at
        assert await world.client.event(first.id) == read
        assert await collected(world.client.read_all()) == [read, other]
        assert await world.client.head() == 2

    run(body)


def test_the_same_events_are_recorded_once(run: Run) -> None:
    async def body(world: World) -> None:
        events = [placed(), placed(2)]
        first = await world.client.append("order-1", events, expected_version="no_stream")
        await world.client.append("order-1", placed(3))
        again = await world.client.append("order-1", events, expected_version="no_stream")
        assert again == first
        assert await world.client.head() == 3
        with pytest.raises(IdReused) as caught:
            await world.client.append("order-1", placed(9, id=events[0].id))
        assert caught.value.position == 1

    run(body)


@pytest.mark.parametrize(
    ("expected", "actual_before", "passes"),
    [
        ("any", None, True),
        ("no_stream", None, True),
        ("stream_exists", None, False),
        (0, None, False),
        ("any", 0, True),
        ("no_stream", 0, False),
        ("stream_exists", 0, True),
        (0, 0, True),
        (1, 0, False),
    ],
)
def test_expected_versions(
    run: Run, expected: int | str, actual_before: int | None, passes: bool
) -> None:
    async def body(world: World) -> None:
        if actual_before is not None:
            await world.client.append("order-1", placed())
        if passes:
            await world.client.append("order-1", placed(), expected_version=expected)
            return
        with pytest.raises(VersionConflict) as caught:
            await world.client.append("order-1", placed(), expected_version=expected)
        assert (caught.value.expected, caught.value.actual) == (expected, actual_before)

    run(body)


def test_several_streams_are_all_or_nothing(run: Run) -> None:
    async def body(world: World) -> None:
        both = [
            StreamAppend(stream="order-1", events=(placed(), placed())),
            StreamAppend(stream="cart-1", events=(placed(),), expected_version="no_stream"),
        ]
        answers = await world.client.append_many(both)
        assert [(a.stream, a.first_position, a.last_position) for a in answers] == [
            ("order-1", 1, 2),
            ("cart-1", 3, 3),
        ]
        assert await world.client.append_many(both) == answers
        torn = [
            StreamAppend(stream="order-2", events=(placed(),)),
            StreamAppend(stream="cart-1", events=(placed(),), expected_version=7),
        ]
        with pytest.raises(VersionConflict):
            await world.client.append_many(torn)
        assert await world.client.head() == 3

    run(body)


def test_a_condition_refuses_what_was_decided_on_an_old_state(run: Run) -> None:
    async def body(world: World) -> None:
        seat = (QueryItem(types=("placed",), tags=("seat:7",)),)
        await world.client.append("order-1", placed(tags=("seat:8",)))
        page = await world.client.query(seat)
        assert (page.events, page.head, page.next_after) == ((), 1, 1)
        taken = [StreamAppend(stream="order-2", events=(placed(tags=("seat:7",)),))]
        condition = Condition(query=seat, after=page.head)
        await world.client.append_many(taken, condition=condition)
        # A retry is not refused by its own events.
        await world.client.append_many(taken, condition=condition)
        late = [StreamAppend(stream="order-3", events=(placed(tags=("seat:7",)),))]
        with pytest.raises(ConditionFailed):
            await world.client.append_many(late, condition=condition)
        page = await world.client.query(seat)
        assert [event.stream for event in page.events] == ["order-2"]
        await world.client.append_many(late, condition=Condition(query=seat, after=page.head))

    run(body)


def test_queries_are_items_or_types_or_tags_and(run: Run) -> None:
    async def body(world: World) -> None:
        paid = NewEvent(type="paid", data={"sum": 1}, tags=("a", "b"))
        await world.client.append("order-1", [placed(tags=("a",)), paid, placed(tags=("c",))])
        await world.client.append("cart-1", placed(tags=("b",)))

        async def found(*items: QueryItem, **more: int) -> list[int]:
            page = await world.client.query(items, **more)
            return [event.position for event in page.events]

        assert await found(QueryItem(tags=("a",))) == [1, 2]
        assert await found(QueryItem(tags=("a", "b"))) == [2]
        assert await found(QueryItem(types=("paid", "cart.placed"))) == [2, 4]
        assert await found(QueryItem(tags=("c",)), QueryItem(types=("paid",))) == [2, 3]
        assert await found(QueryItem(types=("placed",)), after=1, limit=1) == [3]

    run(body)


def test_streams_forward_backward_from_a_version_and_limited(run: Run) -> None:
    async def body(world: World) -> None:
        await world.client.append("order-1", [placed(n) for n in range(5)])

        async def versions(**how: Any) -> list[int]:
            return [e.version for e in await collected(world.client.read_stream("order-1", **how))]

        assert await versions() == [0, 1, 2, 3, 4]
        assert await versions(from_version=3) == [3, 4]
        assert await versions(direction="backward") == [4, 3, 2, 1, 0]
        assert await versions(direction="backward", from_version=2, limit=2) == [2, 1]
        assert await versions(limit=2) == [0, 1]
        assert await versions(from_version=9) == []
        page = await world.client.stream_page("order-1", limit=2)
        assert (page.version, [event.version for event in page.events]) == (4, [0, 1])
        assert await collected(world.client.read_stream("order-none")) == []
        with pytest.raises(NotFound):
            await world.client.stream_page("order-none")

    run(body)


def test_reading_goes_over_many_pages(run: Run) -> None:
    async def body(world: World) -> None:
        for start in range(0, 2_500, 500):
            await world.client.append("order-1", [placed(start + n) for n in range(500)])
        streamed = await collected(world.client.read_stream("order-1"))
        assert [event.data["total"] for event in streamed] == list(range(2_500))
        backward = await collected(world.client.read_stream("order-1", direction="backward"))
        assert backward == streamed[::-1]
        assert await collected(world.client.read_all()) == streamed
        assert await collected(world.client.read_all(limit=1_500)) == streamed[:1_500]
        assert await collected(world.client.read_all(after=2_498)) == streamed[2_498:]

    run(body)


def test_all_events_by_filter(run: Run) -> None:
    async def body(world: World) -> None:
        for n in range(6):
            type_ = "paid" if n == 4 else "placed"
            event = NewEvent(type=type_, data={"n": n}, tags=("even",) if n % 2 == 0 else ())
            await world.client.append(f"{'order' if n % 2 else 'cart'}-{n}", event)

        async def positions(**how: Any) -> list[int]:
            return [e.position for e in await collected(world.client.read_all(**how))]

        assert await positions(category="order") == [2, 4, 6]
        assert await positions(category="order", after=2, limit=1) == [4]
        assert await positions(type="paid") == [5]
        assert await positions(stream_prefix="cart-4") == [5]
        assert await positions(tag="even") == [1, 3, 5]
        assert await positions(tag="even", type="placed") == [1, 3]

    run(body)


def test_text_survives_whatever_it_holds(run: Run) -> None:
    """Separators that text splitters break lines at travel inside one line."""

    async def body(world: World) -> None:
        said = {"text": 'a\u2028b\u2029c\x85d\x0be \U0001f30d "\\ \n end'}
        written = NewEvent(type="said", data=said, metadata={"k\u2028": "v\u2028"})
        await world.client.append("note-é\u4e2d%2f", written)
        for events in (
            await collected(world.client.read_stream("note-é\u4e2d%2f")),
            await collected(world.client.read_all()),
        ):
            (event,) = events
            assert (event.data, event.metadata) == (said, {"k\u2028": "v\u2028"})
        async with world.client.subscribe() as feed:
            assert (await anext(feed)).data == said

    run(body)


def test_a_subscription_gives_history_then_what_happens(run: Run) -> None:
    async def body(world: World) -> None:
        await world.client.append("order-1", [placed(n) for n in range(3)])
        async with world.client.subscribe(after=1) as feed:
            assert feed.position == 1
            assert await upto_caught_up(feed) == [2, 3]
            await world.client.append("order-2", [placed(), placed()])
            assert [(await anext(feed)).position for _ in range(2)] == [4, 5]
            assert feed.position == 5

    run(body)


def test_a_subscription_resumes_where_it_broke(run: Run) -> None:
    """Breaks come behind events that no mark of the feed has followed."""

    async def body(world: World) -> None:
        await world.client.append("order-1", [placed(n) for n in range(3)])
        async with world.client.subscribe() as feed:
            assert await upto_caught_up(feed) == [1, 2, 3]
            for position in range(4, 12):
                if position % 2 == 0:
                    world.break_feeds()
                await world.client.append("order-1", placed())
                assert await next_event(feed) == position
                assert feed.position == position

    run(body)


def test_a_subscription_from_the_end_and_by_filter(run: Run) -> None:
    async def body(world: World) -> None:
        await world.client.append("cart-1", placed())
        async with world.client.subscribe(after="end", category="order") as feed:
            assert feed.position is None
            assert await upto_caught_up(feed) == []
            assert feed.position == 1
            await world.client.append("cart-1", placed())
            await world.client.append("order-1", placed(tags=("x",)))
            assert (await anext(feed)).stream == "order-1"
        async with world.client.subscribe(tag="x") as tagged:
            assert await upto_caught_up(tagged) == [3]

    run(body)


def test_a_subscription_cannot_start_behind_the_head(run: Run) -> None:
    async def body(world: World) -> None:
        await world.client.append("order-1", placed())
        async with world.client.subscribe(after=7) as feed:
            with pytest.raises(BeyondHead) as caught:
                await anext(feed)
        assert caught.value.head == 1

    run(body)


def test_no_read_begins_behind_the_head(run: Run) -> None:
    async def body(world: World) -> None:
        await world.client.append("order-1", placed())
        with pytest.raises(BeyondHead) as caught:
            await world.client.query(QueryItem(types=("placed",)), after=7)
        assert caught.value.head == 1
        with pytest.raises(BeyondHead):
            await anext(world.client.read_all(after=7))
        assert [each async for each in world.client.read_all(after=1)] == []

    run(body)


def test_schemas_are_added_checked_listed_and_kept_to(run: Run) -> None:
    async def body(world: World) -> None:
        schemas = world.client.schemas
        with pytest.raises(UnknownType) as unknown:
            await world.client.append("order-1", placed())
        assert unknown.value.event_type == "order.placed"
        first = await schemas.add("order.placed", ORDER)
        assert (first.subject, first.version) == ("order.placed", 1)
        assert await schemas.add("order.placed", ORDER) == first
        await world.client.append(
            "order-1", NewEvent(type="placed", data={"total": 1.5, "note": None})
        )
        with pytest.raises(SchemaViolation) as violation:
            await world.client.append("order-1", NewEvent(type="placed", data={"total": "much"}))
        assert "total" in violation.value.path
        assert violation.value.complaint
        field = {"name": "by", "type": "string"}
        worse = ORDER | {"fields": [*ORDER["fields"], field]}
        better = ORDER | {"fields": [*ORDER["fields"], field | {"default": ""}]}
        check = await schemas.check("order.placed", worse)
        assert (check.compatible, bool(check.complaints)) == (False, True)
        with pytest.raises(Incompatible) as incompatible:
            await schemas.add("order.placed", worse)
        assert incompatible.value.complaints
        assert (await schemas.check("order.placed", better)).compatible
        assert (await schemas.add("order.placed", better)).version == 2
        assert [schema.version for schema in await schemas.versions("order.placed")] == [1, 2]
        assert [(s.subject, s.version) for s in await schemas.list()] == [("order.placed", 2)]
        with pytest.raises(NotFound):
            await schemas.versions("order.unknown")

    run(body, mode="strict")


@pytest.mark.parametrize(
    ("stream", "event"),
    [
        ("Order-1", placed()),
        ("order", placed()),
        ("order-1", NewEvent(type="no type", data={})),
        ("order-1", placed(tags=("a b",))),
        ("order-1", NewEvent(type="placed", data={"total": float("nan")})),
        ("order-1", placed(occurred_at=datetime(2013, 1, 1))),  # noqa: DTZ001
    ],
)
def test_malformed_requests_are_refused(run: Run, stream: str, event: NewEvent) -> None:
    async def body(world: World) -> None:
        with pytest.raises(Refused):
            await world.client.append(stream, event)
        assert await world.client.head() == 0

    run(body)


def test_what_is_not_there(run: Run) -> None:
    async def body(world: World) -> None:
        with pytest.raises(NotFound) as caught:
            await world.client.event(uuid.uuid4())
        assert caught.value.status == 404
        assert caught.value.remedy
        assert (await world.client.health()).ready

    run(body)


def test_a_level_lets_a_schema_break_or_not(run: Run) -> None:
    async def body(world: World) -> None:
        schemas = world.client.schemas
        await schemas.add("order.placed", ORDER)
        assert await schemas.level("order.placed") == "BACKWARD_TRANSITIVE"
        fields = [{"name": "other", "type": "long"}]
        worse = {"type": "record", "name": "placed", "fields": fields}
        with pytest.raises(Incompatible):
            await schemas.add("order.placed", worse)
        await schemas.set_level("order.placed", "NONE")
        assert await schemas.level("order.placed") == "NONE"
        assert (await schemas.add("order.placed", worse)).version == 2
        added = await schemas.add("order.paid", ORDER, level="FULL")
        assert (added.version, await schemas.level("order.paid")) == (1, "FULL")

    run(body)


def test_many_events_are_imported_and_repeated(run: Run) -> None:
    async def body(world: World) -> None:
        events = [
            (f"order-{n % 3}", NewEvent(type="placed", data={"n": n}, tags=(f"n:{n % 2}",)))
            for n in range(1_050)
        ]
        first = await world.client.import_events(iter(events[:700]))
        assert (first.lines, first.appended, first.repeated) == (700, 700, 0)
        again = await world.client.import_events(events)
        assert (again.lines, again.appended, again.repeated) == (1_050, 350, 700)
        assert again.last_position == 1_050
        stored = [event async for event in world.client.read_all()]
        assert [(e.stream, e.id) for e in stored] == [(to, e.id) for to, e in events]
        assert await world.client.import_events([]) == Imported(
            lines=0, appended=0, repeated=0, last_position=0
        )

    run(body)
