"""Records that Kafka lost before they were read: when it is a gap, and how far a skip goes."""

from __future__ import annotations

from collections.abc import Mapping

from apps import gaps
from apps.gaps import Gap, gaps_of, next_offsets, skips_of
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.state.installs import InstallBook, hold

TOPIC = "shop.public.orders"


def at(offset: int) -> Mapping[str, Mapping[str, int]]:
    return {TOPIC: {"0": offset}}


def found(after: int, first: int, end: int) -> dict[str, list[Gap]]:
    return gaps_of(at(after), at(first), at(end), "")


def test_what_was_read_may_expire() -> None:
    assert found(after=10, first=0, end=10) == {}
    assert found(after=10, first=10, end=10) == {}
    assert found(after=5, first=5, end=10) == {}
    assert gaps_of({}, at(7), at(10), "") == {}, "nothing was read of it: there is no gap"


def test_what_was_not_read_and_is_gone_is_a_gap_of_its_source() -> None:
    (gap,) = found(after=5, first=7, end=10)["shop"]
    assert str(gap) == f"{TOPIC}/0 lacks 2 records"
    assert gaps.told({"shop": [gap]}) == {
        "shop": f"gone from Kafka before they were read: {TOPIC}/0 lacks 2 records"
        " | fix: penstock source resnapshot shop --yes"
    }


def test_a_topic_that_ends_before_what_was_read_is_another_one() -> None:
    (gap,) = found(after=50, first=0, end=10)["shop"]
    assert "another topic" in str(gap)


def test_topics_of_events_belong_to_the_outbox_and_prefixes_are_taken_off() -> None:
    assert gaps.source_of("t.events.flight", "t.") == "outbox"
    assert gaps.source_of("t.shop.public.a", "t.") == "shop"


def test_only_three_partitions_are_told() -> None:
    many = [Gap(topic=TOPIC, partition=str(n), next=0, first=1, end=2) for n in range(5)]
    assert gaps.reason(many).endswith("/2 lacks 1 records and 2 partitions more")


def test_a_skip_covers_its_own_gap_and_no_later_one(lake: Lake) -> None:
    book = InstallBook(lake, Tables())
    (lost,) = found(after=5, first=20, end=30)["shop"]
    gaps.skip(book, "shop", [lost])
    skips = skips_of(InstallBook(lake, Tables()))

    assert next_offsets(at(5), skips) == at(20)
    assert next_offsets(at(12), skips) == at(20), "an epoch that ends inside the gap"
    assert next_offsets(at(4), skips) == at(4), "more is gone than the copy was asked for"
    assert next_offsets(at(20), skips) == at(20)
    assert next_offsets(at(25), skips) == at(25), "reading has moved on"
    assert next_offsets({}, skips) == {}


def test_a_skip_leads_into_the_topic_that_took_the_place_of_another(lake: Lake) -> None:
    book = InstallBook(lake, Tables())
    (replaced,) = found(after=50, first=0, end=10)["shop"]
    gaps.skip(book, "shop", [replaced])
    hold(lake, Tables(), "shop")
    skips = skips_of(book)
    assert next_offsets(at(50), skips) == at(0)
    assert next_offsets(at(8), skips) == at(8)
