"""Lists of streams and categories, memory and PostgreSQL alike."""

from __future__ import annotations

import pytest

from eventstore.listing import StreamRange, range_of
from kernel.errors import InvalidRequest
from tests.contracts.conftest import Run, Store
from tests.contracts.events import event, request, to

NAMES = (
    *("order-1", "order-10", "order-2", "order-B", "order-a", "order-é", "order-\U0001f30d"),
    *("order_line-1", "orders-1", "cart-9"),
)


def test_streams_come_by_code_points_page_after_page(run: Run) -> None:
    async def body(store: Store) -> None:
        for name in NAMES:
            await store.append(request(to(name, [event(), event()])))
        await store.append(request(to("order-10", [event()])))

        async def listed(limit: int = 100, **asked: str) -> list[str]:
            found = await store.streams(StreamRange(**asked), limit=limit)
            return [each.stream for each in found]

        everything = await listed()
        assert everything == sorted(NAMES)
        paged, after = list[str](), ""
        while page := await listed(3, after=after):
            paged, after = paged + page, page[-1]
        assert paged == everything
        assert await listed(prefix="order-1") == ["order-1", "order-10"]
        assert await listed(prefix="order-", after="order-B") == [
            "order-a",
            "order-é",
            "order-\U0001f30d",
        ]
        assert await listed(prefix="order-", after="zebra") == []
        (ten,) = await store.streams(StreamRange(prefix="order-10"), limit=1)
        page = await store.read_stream("order-10", from_version=2, direction="forward", limit=1)
        assert (ten.category, ten.version, ten.position) == ("order", 2, 21)
        assert ten.recorded_at == page.events[0].recorded_at
        assert (ten.deleted, ten.tombstoned) == (False, False)

    run(body)


def test_categories_come_with_their_streams_and_last_event(run: Run) -> None:
    async def body(store: Store) -> None:
        assert await store.categories() == ()
        for name in NAMES:
            await store.append(request(to(name, [event()])))
        await store.append(request(to("cart-9", [event()])))
        found = [(each.category, each.streams, each.position) for each in await store.categories()]
        assert found == [("cart", 1, 11), ("order", 7, 7), ("order_line", 1, 8), ("orders", 1, 9)]
        assert not any(each.more for each in await store.categories())

    run(body)


@pytest.mark.parametrize(
    ("category", "prefix", "expected"),
    [
        (None, None, ""),
        ("order", None, "order-"),
        ("order", "ord", "order-"),
        ("order", "order-1", "order-1"),
        ("order", "cart", None),
        ("order", "order_", None),
        (None, "cart-", "cart-"),
    ],
)
def test_a_category_is_a_prefix_too(
    category: str | None, prefix: str | None, expected: str | None
) -> None:
    found = range_of(category, prefix, None)
    assert (None if found is None else found.prefix) == expected


def test_a_name_without_sense_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        StreamRange(after="order-\x00")
