"""The fake answers as HTTP does where requests are wrong, at the edge, or said another way."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from penstock_client import (
    BeyondHead,
    Condition,
    ConditionFailed,
    IdReused,
    NewEvent,
    NotFound,
    PenstockError,
    QueryItem,
    Refused,
    StreamAppend,
    UnknownType,
)
from tests.clients.worlds import ONE_OF_EACH, Body, World, opened

Run = Callable[..., None]


@pytest.fixture(params=ONE_OF_EACH)
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Run a coroutine function in a fresh world."""
    dsn = request.getfixturevalue("postgres_dsn") if "server" in request.param else None
    with ExitStack() as stack:

        def run(body: Body, **options: Any) -> None:
            stack.enter_context(opened(request.param, dsn, **options))(body)

        yield run


def placed(**more: Any) -> NewEvent:
    return NewEvent(**({"type": "placed", "data": {"n": 1}} | more))


Refusal = tuple[type[PenstockError], str, int | None]


async def refusal(call: Any) -> Refusal | None:
    try:
        await call
    except PenstockError as error:
        return type(error), error.type, error.status
    return None


INVALID: Refusal = (Refused, "invalid-request", 422)


def test_what_is_refused_and_how(run: Run) -> None:
    async def body(world: World) -> None:
        client = world.client
        deep: Any = 1
        for _ in range(70):
            deep = {"in": deep}
        many = [QueryItem(tags=(f"n:{n}",)) for n in range(17)]
        expected = [
            (client.append("order-1", []), INVALID),
            (client.append("order-1", [placed()] * 2), INVALID),
            (client.append("order-1", [placed() for _ in range(1_001)]), INVALID),
            (client.append("order-1", placed(tags=tuple(map(str, range(17))))), INVALID),
            (client.append("order-1", placed(metadata={"a": "\x00"})), INVALID),
            (client.append("order-1", placed(data={"n": deep})), INVALID),
            (client.append("order-1", placed(id="no uuid")), INVALID),
            (client.append("order-1", placed(), expected_version=-1), INVALID),
            (client.append("order-1", placed(), expected_version="some"), INVALID),
            (client.append("order-1$metadata", placed()), INVALID),
            (
                client.append("order-1", placed(data={"t": "x" * 300_000})),
                (Refused, "event-too-large", 413),
            ),
            (client.append_many([]), INVALID),
            (client.append_many([StreamAppend(stream="a-1", events=(placed(),))] * 2), INVALID),
            (client.query([]), INVALID),
            (client.query(QueryItem()), INVALID),
            (client.query(many), INVALID),
            (client.query(QueryItem(types=("no type",))), INVALID),
            (client.query(QueryItem(tags=("a b",))), INVALID),
            (client.query(QueryItem(tags=("a",)), limit=0), INVALID),
            (client.query(QueryItem(tags=("a",)), limit=1_001), INVALID),
            (client.query(QueryItem(tags=("a",)), after=-1), INVALID),
            (client.event("no uuid"), INVALID),
            (client.stream_page("order"), (NotFound, "not-found", 404)),
            (client.stream_page("order-1", limit=0), INVALID),
            (client.stream_page("order-1", limit=1_001), INVALID),
            (client.streams.show("order-1"), (NotFound, "not-found", 404)),
        ]
        assert [await refusal(call) for call, _ in expected] == [answer for _, answer in expected]
        nameless = (Refused, "malformed-address", 400)
        assert await refusal(anext(client.read_all(tag="a\x00b"))) == nameless
        assert await client.head() == 0

    run(body)


def test_a_page_begins_below_the_head_and_may_end_before_it(run: Run) -> None:
    async def body(world: World) -> None:
        await world.client.append("order-1", [placed(tags=("a",)), placed(tags=("a",)), placed()])
        tagged = QueryItem(tags=("a",))
        assert await refusal(world.client.query(tagged, after=7)) == (
            BeyondHead,
            "beyond-head",
            409,
        )
        full = await world.client.query(tagged, limit=2)
        assert (len(full.events), full.head, full.next_after) == (2, 3, 2)
        short = await world.client.query(tagged, limit=3)
        assert (len(short.events), short.next_after) == (2, 3)

    run(body)


def test_a_filter_names_a_type_with_its_category_too(run: Run) -> None:
    async def body(world: World) -> None:
        for stream in ("order-1", "cart-1"):
            await world.client.append(stream, placed())
        for name, positions in (("placed", [1, 2]), ("cart.placed", [2]), ("shop.placed", [])):
            found = [event.position async for event in world.client.read_all(type=name)]
            assert found == positions

    run(body)


def test_a_repetition_is_the_same_request_but_for_its_trace(run: Run) -> None:
    async def body(world: World) -> None:
        first, second = placed(metadata={"by": "me", "traceparent": "1"}), placed()
        answer = await world.client.append("order-1", [first, second])
        again = placed(id=first.id, metadata={"by": "me", "correlation_id": "2"})
        assert await world.client.append("order-1", [again, second]) == answer
        for other in (
            [second, first],
            [first, placed(id=second.id, data={"n": 2})],
            [first, placed()],
            [placed(id=first.id, metadata={"by": "you"}), second],
        ):
            with pytest.raises(IdReused):
                await world.client.append("order-1", other)
        with pytest.raises(IdReused) as changed:
            await world.client.append("order-1", [first, placed(id=second.id, data={"n": 2})])
        assert (changed.value.fields["id"], changed.value.position) == (str(second.id), 2)
        # What stands apart in the store is no request of its own.
        await world.client.append("order-1", third := placed())
        with pytest.raises(IdReused):
            await world.client.append("order-1", [first, third])

    run(body)


def test_what_comes_first_is_complained_of_first(run: Run) -> None:
    async def body(world: World) -> None:
        client, tagged = world.client, (QueryItem(tags=("a",)),)
        await client.schemas.add("order.placed", SCHEMA)
        await client.append("order-1", placed(tags=("a",)))
        with pytest.raises(UnknownType):
            await client.append("order-1", NewEvent(type="other", data={}), expected_version=7)
        wrong = StreamAppend(stream="order-1", events=(placed(),), expected_version=7)
        with pytest.raises(ConditionFailed) as failed:
            await client.append_many([wrong], condition=Condition(query=tagged))
        assert failed.value.position == 1
        # Of an import nothing is there when one of its lines is refused.
        lines = [("order-2", placed()), ("order-2", NewEvent(type="other", data={}))]
        with pytest.raises(UnknownType) as unknown:
            await client.import_events(lines)
        assert (unknown.value.fields["line"], unknown.value.fields["lines"]) == (2, 0)
        assert await client.head() == 1

    run(body, mode="strict")


SCHEMA = {
    "type": "record",
    "name": "placed",
    "namespace": "order",
    "fields": [{"name": "n", "type": "long"}],
}
WHEN = datetime(2013, 1, 1, 7, 15, 0, 5, tzinfo=timezone(timedelta(hours=2)))


def test_values_that_json_has_not_keep_what_they_are(run: Run) -> None:
    async def body(world: World) -> None:
        amount, id_ = Decimal("12345678901234567890.10"), uuid.uuid4()
        data = {"at": WHEN, "day": date(2013, 1, 1), "amount": amount, "of": [{"id": id_}]}
        paid = NewEvent(type="paid", data=data, metadata={"by": id_, "at": WHEN}, occurred_at=WHEN)
        answer = await world.client.append("order-1", paid)
        assert await world.client.append("order-1", paid) == answer
        (read,) = [event async for event in world.client.read_stream("order-1")]
        assert read.data == {
            "at": "2013-01-01T05:15:00.000005Z",
            "day": "2013-01-01",
            "amount": "12345678901234567890.10",
            "of": [{"id": str(id_)}],
        }
        assert read.metadata == {"by": str(id_), "at": "2013-01-01T05:15:00.000005Z"}
        assert read.occurred_at == WHEN
        assert Decimal(read.data["amount"]) == amount
        big = NewEvent(type="big", data={"amount": Decimal("1E+3")})
        await world.client.append("order-2", big)
        assert (await world.client.event(big.id)).data == {"amount": "1000"}
        for value in (Decimal("NaN"), Decimal("1E+999999"), WHEN.replace(tzinfo=None), {1, 2}):
            with pytest.raises(Refused):
                await world.client.append("order-3", NewEvent(type="paid", data={"v": value}))
        assert await world.client.head() == 2

    run(body)


def test_there_is_an_end_to_categories(run: Run) -> None:
    async def body(world: World) -> None:
        now = datetime.now(UTC)
        appends = [
            StreamAppend(stream=f"c{n}-1", events=(placed(occurred_at=now),)) for n in range(500)
        ]
        await world.client.append_many(appends)
        assert await refusal(world.client.append("order-1", placed())) == INVALID
        await world.client.append("c7-2", placed())

    run(body)
