"""A record that cannot be read holds its own table alone, until somebody decides about it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel import failpoints
from kernel.errors import NotFound
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest_rows import Committed
from pipeline.installs.install_book import DECODE, WAIVE, hold
from projections.serve.query import ask
from tests.support.lake.folding import Done
from tests.support.lake.poisoned import ENDS, GOODS, ITEMS, PoisonedShop, topic_of
from tests.support.services.tier import examples

DONE = st.builds(
    Done,
    op=st.sampled_from("cud"),
    id=st.integers(1, 4),
    name=st.sampled_from(["one", "two"]),
    size=st.none() | st.integers(0, 9),
)
TRANSACTIONS = st.lists(
    st.tuples(st.lists(DONE, max_size=2), st.lists(DONE, max_size=2), st.booleans()),
    min_size=1,
    max_size=5,
)


def settled(shop: PoisonedShop) -> Committed:
    """Make epochs until all that can be complete is."""
    shop.epoch()
    shop.epoch()
    return shop.epoch()


@settings(max_examples=examples(4, matrix=8))
@given(transactions=TRANSACTIONS, mend=st.booleans(), crash=st.booleans())
def test_p5_a_record_that_cannot_be_read_holds_its_table_alone(
    transactions: list[tuple[list[Done], list[Done], bool]], mend: bool, crash: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        shop = PoisonedShop(Lake.at(Path(folder)))
        shop.commit({ITEMS: [Done("c", 9)], GOODS: [Done("c", 9)]})
        shop.epoch()
        shop.bring()
        for items, goods, poisoned in transactions:
            spoil = {(ITEMS, len(items) - 1)} if items and poisoned else set()
            shop.commit({ITEMS: items, GOODS: goods}, spoil=spoil)
            shop.epoch(without=[topic_of(ITEMS)] if len(goods) == 1 else ())
        done = settled(shop)
        lacking = {at for _, at in shop.poison}

        assert shop.ingest.waiting_for() == {}
        assert done.cuts["shop"] == shop.lsn
        assert shop.state(GOODS, done) == shop.expected(GOODS)
        assert shop.held() == ({ITEMS} if lacking else set())
        held = shop.bring().held
        assert set(held) == ({f"typed/shop.{ITEMS}"} if lacking else set())
        assert len(shop.typed(GOODS)) == len(shop.done[GOODS])
        if not lacking:
            return

        shop.mended = mend
        shop.decide(DECODE if mend else WAIVE, topic_of(ITEMS), reason="cannot be helped")
        if crash:
            failpoints.arm(failpoints.QUARANTINE_AFTER_OUTCOMES)
            with pytest.raises(failpoints.Crash):
                shop.epoch()
            done = shop.finish()
        else:
            done = shop.epoch()
        gone = set() if mend else lacking
        assert shop.held() == shop.waiting() == set()
        assert shop.state(ITEMS, done) == shop.expected(ITEMS, without=gone)
        assert shop.state(GOODS, done) == shop.expected(GOODS)
        assert done.tables[f"current/shop.{ITEMS}"].as_of_epoch == done.epoch
        assert shop.bring().held == {}
        assert len(shop.typed(ITEMS)) == len(shop.done[ITEMS]) - len(gone)
        shop.commit({ITEMS: [Done("u", 9, size=3)], GOODS: [Done("u", 9, size=4)]})
        done = shop.epoch()
        assert shop.state(ITEMS, done) == shop.expected(ITEMS, without=gone)


def test_p8_what_nobody_of_ours_wrote_stops_nothing(lake: Lake) -> None:
    shop = PoisonedShop(lake)
    for topic in (topic_of(ITEMS), ENDS):
        shop.plant(topic)
    shop.commit({ITEMS: [Done("c", 1)], GOODS: [Done("c", 1)]})
    done = settled(shop)
    assert shop.state(ITEMS, done) == shop.expected(ITEMS) != {}
    assert shop.held() == set()
    assert shop.ingest.waiting_for() == {}
    assert len(shop.waiting()) == 2
    # Waived before its transaction ended: the next one that lacks a row is complete without it.
    shop.decide(WAIVE, topic_of(ITEMS))
    shop.epoch()
    assert shop.waiting() == {(ENDS, 0)}


def test_p5_an_end_that_cannot_be_read_holds_its_source_until_it_is_decoded(lake: Lake) -> None:
    shop = PoisonedShop(lake)
    shop.commit({ITEMS: [Done("c", 1)]})
    before = settled(shop)
    shop.commit({ITEMS: [Done("c", 2)]}, spoil={(ENDS, 0)})
    shop.commit({ITEMS: [Done("c", 3)]})
    done = settled(shop)
    assert shop.state(ITEMS, done) == shop.state(ITEMS, before)
    assert shop.ingest.poisoned() == {"shop": ENDS}
    shop.mended = True
    shop.decide(DECODE, ENDS)
    done = settled(shop)
    assert shop.state(ITEMS, done) == shop.expected(ITEMS)
    assert shop.ingest.poisoned() == {}


def test_p11_an_end_that_cannot_be_read_is_told_while_tables_are_copied(lake: Lake) -> None:
    shop = PoisonedShop(lake)
    shop.commit({ITEMS: [Done("c", 1)]})
    settled(shop)
    hold(lake, shop.tables, "shop")
    shop.commit({ITEMS: [Done("c", 2)]}, spoil={(ENDS, 0)})
    shop.commit({ITEMS: [Done("c", 3)]})
    settled(shop)
    assert shop.ingest.poisoned() == {"shop": ENDS}
    assert shop.ingest.waiting_for()["shop"].startswith("transaction ")
    shop.mended = True
    shop.decide(DECODE, ENDS)
    settled(shop)
    assert shop.ingest.poisoned() == {}
    assert shop.ingest.waiting_for() == {"shop": "its tables are being copied"}


def test_p8_an_end_that_is_waived_leaves_its_rows_in_the_log(lake: Lake) -> None:
    shop = PoisonedShop(lake)
    shop.commit({ITEMS: [Done("c", 2)]}, spoil={(ENDS, 0)})
    shop.commit({ITEMS: [Done("c", 3)]})
    settled(shop)
    shop.decide(WAIVE, ENDS, reason="nobody has it")
    done = settled(shop)
    assert shop.state(ITEMS, done) == shop.expected(ITEMS, without=[0])
    assert done.pending_from["shop"] == done.epoch + 1
    logged = Tables().read(lake.path("log/changes/shop"))
    assert logged is not None
    assert logged["table"].to_pylist().count(ITEMS) == 2


def test_what_still_cannot_be_read_stays_with_the_newer_reason(lake: Lake) -> None:
    shop = PoisonedShop(lake)
    shop.commit({ITEMS: [Done("c", 1), Done("c", 2)]}, spoil={(ITEMS, 0)})
    settled(shop)
    shop.decide(DECODE, topic_of(ITEMS))
    shop.epoch()
    assert shop.held() == {ITEMS}
    assert shop.waiting() == {(topic_of(ITEMS), 0)}
    outcomes = Tables().read(lake.outcomes)
    assert outcomes is not None
    (outcome,) = outcomes.to_pylist()
    assert (outcome["outcome"], outcome["reason"]) == ("refused", "still not Avro")


def test_p5_a_query_names_the_table_whose_records_wait_and_the_command(lake: Lake) -> None:
    shop = PoisonedShop(lake)
    shop.commit({ITEMS: [Done("c", 1)], GOODS: [Done("c", 1)]})
    shop.epoch()
    shop.commit({ITEMS: [Done("c", 2)], GOODS: [Done("c", 2)]}, spoil={(ITEMS, 0)})
    done = settled(shop)
    both = ask(lake, f"SELECT count(*) AS n FROM current.shop.{ITEMS}, current.shop.{GOODS}")
    assert (both.epoch, both.rows["n"][0].as_py()) == (2, 1)
    with pytest.raises(NotFound) as refused:
        ask(lake, f"SELECT * FROM current.shop.{ITEMS}", epoch=done.epoch)
    assert "1 of its records in quarantine, the newest: not Avro" in refused.value.message
    assert f"penstock quarantine retry shop.{ITEMS}" in refused.value.remedy
