"""Records that Kafka lost before they were read: when it is a gap, and how far a skip goes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from kernel.errors import Unavailable
from kernel.positions import Epoch, TopicId
from kernel.retry import Backoff
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest_rows import Bound
from pipeline.installs.install_book import InstallBook, hold
from pipeline.read import gaps, kafka_topics, stream
from pipeline.read.batch_plan import BatchPlans
from pipeline.read.gaps import (
    Gap,
    KafkaContents,
    ReadStanding,
    Skip,
    gaps_of,
    kept_by,
    next_offsets,
    silent_of,
    skips_of,
    standing_of,
    still_there,
)
from pipeline.read.kafka_topics import KafkaTopics

TOPIC = "shop.public.orders"


def at(offset: int) -> Mapping[str, Mapping[str, int]]:
    return {TOPIC: {"0": offset}}


def found(after: int, first: int, end: int) -> dict[str, list[Gap]]:
    return gaps_of(
        ReadStanding(offsets=at(after)), KafkaContents(first=at(first), ends=at(end)), ""
    )


def goes_on(after: int, skips: list[Skip]) -> Mapping[str, Mapping[str, int]]:
    return next_offsets(ReadStanding(offsets=at(after)), skips, {}).offsets


class Contents(KafkaTopics):
    """What Kafka still has: the first offsets of topics of which each has one partition."""

    def __init__(self, first: Mapping[str, int]) -> None:
        self._first = first

    def ids(self, names: Collection[str]) -> dict[str, TopicId]:
        return {name: TopicId(f"id of {name}", 1) for name in names if name in self._first}

    def silent(self, topics: Mapping[str, list[int]]) -> dict[str, str]:
        return {}

    def earliest(self, topics: Mapping[str, list[int]]) -> dict[str, dict[str, int]]:
        return {topic: {"0": self._first[topic]} for topic in topics}


def test_p9_an_epoch_that_is_bound_to_records_that_are_gone_lacks_their_source_alone() -> None:
    bound = Bound(
        epoch=Epoch(2),
        run_id="r",
        batch_id=0,
        start={"shop.public.orders": {"0": 0}, "bank.public.accounts": {"0": 3}},
        end={"shop.public.orders": {"0": 9}, "bank.public.accounts": {"0": 5}},
    )
    kept = Contents({"shop.public.orders": 4, "bank.public.accounts": 0})
    there, lost = still_there(bound, None, [], kept, ("", {}))
    assert there == {"bank.public.accounts": {"0": 3}}
    assert [*lost] == ["shop"]
    assert "epoch 2 of shop is bound to records" in str(lost["shop"])

    skip = Skip(TOPIC, "0", 0, 4, f"id of {TOPIC}", f"id of {TOPIC}")
    named = replace(bound, topics=kept.ids(bound.end))
    there, lost = still_there(named, None, [skip], kept, ("", {}))
    assert there == {"shop.public.orders": {"0": 4}, "bank.public.accounts": {"0": 3}}
    assert not lost


def test_p9_a_topic_that_only_the_bound_epoch_knows_has_its_place() -> None:
    bound = Bound(
        epoch=Epoch(1), run_id="r", batch_id=0, start={TOPIC: {"0": 2}}, end={TOPIC: {"0": 9}}
    )
    assert standing_of(None, bound).offsets == {TOPIC: {"0": 2}}


def test_what_was_read_may_expire() -> None:
    assert found(after=10, first=0, end=10) == {}
    assert found(after=10, first=10, end=10) == {}
    assert found(after=5, first=5, end=10) == {}
    unread = gaps_of(ReadStanding(offsets={}), KafkaContents(first=at(7), ends=at(10)), "")
    assert unread == {}, "nothing was read of it: there is no gap"


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

    assert goes_on(5, skips) == at(20)
    assert goes_on(12, skips) == at(20), "an epoch that ends inside the gap"
    assert goes_on(4, skips) == at(4), "more is gone than the copy was asked for"
    assert goes_on(20, skips) == at(20)
    assert goes_on(25, skips) == at(25), "reading has moved on"
    assert next_offsets(ReadStanding(offsets={}), skips, {}).offsets == {}


def test_a_skip_leads_into_the_topic_that_took_the_place_of_another(lake: Lake) -> None:
    book = InstallBook(lake, Tables())
    (replaced,) = found(after=50, first=0, end=10)["shop"]
    gaps.skip(book, "shop", [replaced])
    hold(lake, Tables(), "shop")
    skips = skips_of(book)
    assert goes_on(50, skips) == at(0)
    assert goes_on(8, skips) == at(8)


OLD, NEW, THIRD = (TopicId(name, 1) for name in ("old", "new", "third"))


def known_as(topic: TopicId, after: int) -> ReadStanding:
    return ReadStanding(offsets=at(after), topics={TOPIC: topic})


def has(topic: TopicId, *, first: int = 0, end: int = 100) -> KafkaContents:
    return KafkaContents(first=at(first), ends=at(end), topics={TOPIC: topic})


DELETED = KafkaContents(first={}, ends={}, gone={TOPIC})


def test_p9_a_topic_that_was_made_again_is_named_however_long_it_has_grown() -> None:
    assert gaps_of(known_as(OLD, 50), has(OLD), "") == {}
    (gap,) = gaps_of(known_as(OLD, 50), has(NEW), "")["shop"]
    assert "was deleted and made again" in str(gap)
    assert gaps.told({"shop": [gap]})["shop"].endswith("fix: penstock source resnapshot shop --yes")


def test_p9_a_topic_that_was_deleted_is_named() -> None:
    (gap,) = gaps_of(known_as(OLD, 50), DELETED, "")["shop"]
    assert "was deleted" in str(gap)


class Broker(KafkaTopics):
    """A broker that has topics of one partition each."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def matching(self, pattern: str) -> dict[str, list[int]]:
        return {name: [0] for name in self.names}

    def ids(self, names: Collection[str]) -> dict[str, TopicId]:
        return {name: OLD for name in names if name in self.names}

    def silent(self, topics: Mapping[str, list[int]]) -> dict[str, str]:
        return {}

    def earliest(self, topics: Mapping[str, list[int]]) -> dict[str, dict[str, int]]:
        return {name: {"0": 0} for name in topics}

    def ends(self, topics: Mapping[str, list[int]]) -> dict[str, dict[str, int]]:
        return {name: {"0": 100} for name in topics}


@pytest.mark.parametrize(
    ("topic", "named"),
    [
        ("w.shop.transaction", True),
        ("w.shop.message", True),
        ("w.shop.public.orders", True),
        ("w.shop.public.captured_no_more", False),
        ("w.events.order", True),
    ],
)
def test_p9_a_topic_that_is_gone_is_named_unless_its_table_is_captured_no_more(
    topic: str, named: bool
) -> None:
    """Without the topic of transactions no transaction of the source would ever be complete."""
    read = ReadStanding(offsets={topic: {"0": 50}}, topics={topic: OLD})
    kept = kept_by(Broker(), ".*", read, {"shop": {"public.orders"}}, "w.")
    source = "outbox" if topic == "w.events.order" else "shop"
    told = gaps.told(gaps_of(read, kept, "w."))
    assert (source in told) == named
    assert not named or f"{topic} was deleted" in told[source]


def test_partitions_that_are_added_are_no_gap() -> None:
    wider = KafkaContents(
        first={TOPIC: {"0": 0, "1": 0}},
        ends={TOPIC: {"0": 60, "1": 5}},
        topics={TOPIC: TopicId("old", 2)},
    )
    assert gaps_of(known_as(OLD, 50), wider, "") == {}


def test_a_skip_leads_into_another_topic_once(lake: Lake) -> None:
    book = InstallBook(lake, Tables())
    gaps.skip(book, "shop", gaps_of(known_as(OLD, 50), has(NEW, first=3), "")["shop"])
    skips = skips_of(book)

    going_on = next_offsets(known_as(OLD, 50), skips, {TOPIC: NEW})
    assert going_on.offsets == at(3)
    assert gaps_of(going_on, has(NEW, first=3), "") == {}
    again = next_offsets(known_as(NEW, 50), skips, {TOPIC: NEW})
    assert again.offsets == at(50), "reading stands where it stood, in the new topic"
    third = next_offsets(known_as(OLD, 50), skips, {TOPIC: THIRD})
    assert gaps_of(third, has(THIRD), "") != {}, "it was made again once more, before it was read"


def test_a_skip_over_a_deleted_topic_leads_to_the_beginning_of_the_next(lake: Lake) -> None:
    book = InstallBook(lake, Tables())
    gaps.skip(book, "shop", gaps_of(known_as(OLD, 50), DELETED, "")["shop"])
    skips = skips_of(book)
    assert gaps_of(next_offsets(known_as(OLD, 50), skips, {}), DELETED, "") == {}
    going_on = next_offsets(known_as(OLD, 50), skips, {TOPIC: NEW})
    assert going_on.offsets == {TOPIC: {}}, "it is read from its first record"
    assert gaps_of(going_on, has(NEW), "") == {}
    same = next_offsets(known_as(OLD, 50), skips, {TOPIC: OLD})
    assert same.offsets == at(50), "it was there all the time"


LOST, REFUSED, FINE = "shop.public.orders", "bank.public.accounts", "crew.public.people"


class Admin:
    """A broker with topics of one partition: of one it has no leader, of one an error."""

    def __init__(self) -> None:
        self.leaderless, self.refused, self.offset = {LOST}, {REFUSED}, 7
        self.names = [LOST, REFUSED, FINE]

    def list_topics(self, *, timeout: float) -> object:
        def partition(name: str) -> object:
            return SimpleNamespace(leader=-1 if name in self.leaderless else 0)

        topics = {name: SimpleNamespace(partitions={0: partition(name)}) for name in self.names}
        return SimpleNamespace(topics=topics)

    def describe_topics(self, names: Any, *, request_timeout: float) -> dict[str, Future[Any]]:
        told = SimpleNamespace(topic_id="old", partitions=[0])
        return {name: self._answer(name, told, set()) for name in names.topic_names}

    def list_offsets(
        self, wanted: Mapping[TopicPartition, object], *, isolation_level: object
    ) -> dict[TopicPartition, Future[Any]]:
        found = SimpleNamespace(offset=self.offset)
        bad = self.leaderless | self.refused
        return {place: self._answer(place.topic, found, bad) for place in wanted}

    @staticmethod
    def _answer(topic: str, told: object, bad: Collection[str]) -> Future[Any]:
        answer = Future[Any]()
        if topic in bad:
            answer.set_exception(KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
        else:
            answer.set_result(told)
        return answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaTopics, Admin]:
    admin = Admin()
    monkeypatch.setattr(kafka_topics, "_PATIENCE", Backoff(attempts=2, base_s=0.0))
    topics = KafkaTopics("127.0.0.1:1")
    monkeypatch.setattr(topics, "_admin", admin)
    return topics, admin


def test_p9_a_topic_of_which_kafka_tells_nothing_is_that_of_its_source_alone(
    broker: tuple[KafkaTopics, Admin],
) -> None:
    topics, admin = broker
    read = ReadStanding(offsets={LOST: {"0": 9}}, topics={LOST: OLD})
    kept = kept_by(topics, ".*", read, {"shop": {"public.orders"}}, "")
    assert kept.first == kept.ends == {FINE: {"0": 7}}
    assert gaps_of(read, kept, "") == {}, "what Kafka cannot tell now is no gap"
    told = silent_of(kept.silent, "")
    assert {*told} == {"shop", "bank"}
    assert f"{LOST}/0 has no leader" in str(told["shop"])
    assert f"{REFUSED}/0" in str(told["bank"])

    admin.leaderless, admin.refused = set(), set()
    kept = kept_by(topics, ".*", read, {"shop": {"public.orders"}}, "")
    assert {*kept.first} == {LOST, REFUSED, FINE}
    assert not kept.silent


def test_one_leader_that_lets_all_topics_wait_blames_no_source(
    broker: tuple[KafkaTopics, Admin],
) -> None:
    topics, admin = broker
    admin.leaderless, admin.refused = set(), {LOST, REFUSED, FINE}
    with pytest.raises(Unavailable):
        topics.silent({LOST: [0], REFUSED: [0], FINE: [0]})
    assert {*topics.silent({LOST: [0]})} == {LOST}


def test_a_broker_that_begins_and_knows_no_offsets_yet_has_not_answered(
    broker: tuple[KafkaTopics, Admin],
) -> None:
    topics, admin = broker
    admin.offset = OFFSET_INVALID
    for ask in (topics.earliest, topics.ends, topics.readable_ends):
        with pytest.raises(Unavailable, match="it knows no offsets yet"):
            ask({FINE: [0]})
    assert {*topics.silent({FINE: [0]})} == {FINE}


def test_a_partition_whose_offset_nobody_knew_is_read_from_its_beginning() -> None:
    read = ReadStanding(offsets={TOPIC: {"0": OFFSET_INVALID, "1": 3}}, topics={TOPIC: OLD})
    going_on = next_offsets(read, [], {TOPIC: OLD})
    assert going_on.offsets == {TOPIC: {"1": 3}}
    there = {TOPIC: {"0": 0, "1": 0}}
    assert gaps_of(going_on, KafkaContents(first=there, ends={TOPIC: {"0": 9, "1": 9}}), "") == {}


def test_a_source_with_a_gap_has_not_recovered_when_another_topic_of_it_is_silent(
    broker: tuple[KafkaTopics, Admin], lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, admin = broker
    gapped = "shop.public.lines"
    admin.names.append(gapped)
    admin.refused = set()
    read = ReadStanding(offsets={gapped: {"0": 3}}, topics={gapped: OLD})
    monkeypatch.setattr(stream, "standing_of", lambda _: read)
    gaps_before = gaps_of(read, kept_by(topics, ".*", read, {}, ""), "")
    assert {*gaps_before} == {"shop"}
    run = SimpleNamespace(
        _ingest=SimpleNamespace(last=None),
        _router=SimpleNamespace(pattern=lambda: ".*"),
        _told=("", {}),
        _topics=topics,
        _captures={},
        _book=InstallBook(lake, Tables()),
        gaps=gaps_before,
    )
    assert not stream.IngestRun.recovered(cast(stream.IngestRun, run))
    read = replace(read, offsets={gapped: {"0": 7}})
    admin.leaderless = set()
    assert stream.IngestRun.recovered(cast(stream.IngestRun, run))


def test_p9_who_asks_what_a_source_lost_is_told_that_kafka_does_not_say(
    broker: tuple[KafkaTopics, Admin], lake: Lake
) -> None:
    with pytest.raises(Unavailable, match="Kafka tells nothing of its topics"):
        gaps.look(broker[0], ".*", None, InstallBook(lake, Tables()), {}, "")


def test_p9_a_bound_epoch_lacks_a_source_alone_of_which_kafka_tells_nothing(
    broker: tuple[KafkaTopics, Admin],
) -> None:
    places: Mapping[str, Mapping[str, int]] = {name: {"0": 7} for name in (LOST, FINE)}
    ends: Mapping[str, Mapping[str, int]] = {name: {"0": 9} for name in (LOST, FINE)}
    bound = Bound(epoch=Epoch(2), run_id="r", batch_id=0, start=places, end=ends)
    there, lost = still_there(bound, None, [], broker[0], ("", {}))
    assert there == {FINE: {"0": 7}}
    assert [*lost] == ["shop"]


def test_a_skip_back_inside_one_topic_is_made_once_in_a_run(lake: Lake) -> None:
    """The topic lost what was read of it last; reading comes to its place of then once more."""
    (lost,) = gaps_of(known_as(OLD, 50), has(OLD, end=10), "")["shop"]
    gaps.skip(book := InstallBook(lake, Tables()), "shop", [lost])
    ingest = SimpleNamespace(last=None, next_epoch=Epoch(2))
    plans = BatchPlans(
        Broker(TOPIC),
        cast(Any, ingest),
        skips_of(book),
        run_id="r",
        start=at(0),
        ids={TOPIC: OLD},
    )

    def bound(after: int, end: int) -> Bound:
        ingest.last = SimpleNamespace(end=at(after), topics={TOPIC: OLD})
        return plans.bound(0, at(end))

    assert [bound(50, 10).start for _ in range(2)] == [at(0)] * 2, "until there is an epoch of it"
    assert bound(10, 50).start == at(10)
    assert bound(50, 51).start == at(50)


def test_what_was_looked_at_before_the_turn_is_not_asked_for_in_it() -> None:
    broker, asked = Broker(TOPIC), list[list[str]]()
    cast(Any, broker).ids = lambda names: asked.append([*names]) or {TOPIC: OLD}
    ingest = SimpleNamespace(
        last=SimpleNamespace(end=at(5), topics={TOPIC: OLD}), next_epoch=Epoch(2)
    )
    plans = BatchPlans(broker, cast(Any, ingest), [], run_id="r", start=at(0), ids={TOPIC: OLD})
    plans.look(at(9))
    assert plans.bound(0, at(9)).end == at(9)
    assert [each for each in asked if each] == [[TOPIC]]
    plans.look(at(9))
    cast(Any, broker).ids = lambda names: {TOPIC: NEW}
    plans.look(at(9))
    with pytest.raises(Unavailable, match="made again"):
        plans.bound(0, at(9))
