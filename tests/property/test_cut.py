"""The cut shows whole transactions in commit order, however Kafka interleaves them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.position.cut import Cut


@dataclass(frozen=True)
class Item:
    """A row of a transaction, or its END when `table` is None."""

    transaction: int
    table: str | None


@st.composite
def interleavings(draw: st.DrawFn) -> tuple[list[dict[str, int]], list[list[Item]]]:
    """Transactions (rows per table) and their records, each topic in order, cut into epochs."""
    transactions = draw(
        st.lists(
            st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), max_size=3),
            min_size=1,
            max_size=6,
        )
    )
    topics: dict[str | None, list[Item]] = {None: [], "a": [], "b": [], "c": []}
    for number, counts in enumerate(transactions):
        topics[None].append(Item(number, None))
        for table, rows in counts.items():
            topics[table].extend([Item(number, table)] * rows)
    arrived: list[Item] = []
    while any(topics.values()):
        topic = draw(st.sampled_from([name for name, items in topics.items() if items]))
        arrived.append(topics[topic].pop(0))
    epochs: list[list[Item]] = [[]]
    for item in arrived:
        if draw(st.booleans()):
            epochs.append([])
        epochs[-1].append(item)
    return transactions, epochs


def feed(cut: Cut, items: list[Item], transactions: list[dict[str, int]], epoch: int) -> None:
    for item in items:
        if item.table is None:
            cut.end(f"t{item.transaction}", item.transaction + 1, transactions[item.transaction])
        else:
            cut.row(f"t{item.transaction}", item.table, epoch=epoch)


@given(interleavings())
def test_p4_transactions_become_foldable_whole_once_and_in_commit_order(
    drawn: tuple[list[dict[str, int]], list[list[Item]]],
) -> None:
    transactions, epochs = drawn
    cut = Cut()
    cut.snapshot_end(None, 0)
    arrived: list[Item] = []
    folded: list[str] = []
    for epoch, items in enumerate(epochs, start=1):
        feed(cut, items, transactions, epoch)
        arrived += items
        advance = cut.advance()
        # What it says must survive the manifest.
        cut = Cut.from_json(json.loads(json.dumps(cut.to_json())))
        folded += advance.transactions
        for name in advance.transactions:
            number = int(name[1:])
            rows = [i for i in arrived if i.transaction == number and i.table is not None]
            assert len(rows) == sum(transactions[number].values())
            assert advance.from_epoch is not None
            assert advance.from_epoch <= epoch
    assert folded == [f"t{n}" for n, counts in enumerate(transactions) if counts]
    assert cut.lsn == len(transactions)
    assert cut.waiting_for() is None
    assert cut.pending_from_epoch(default=99) == 99


@given(interleavings(), st.data())
def test_p4_a_missing_row_holds_the_cut_and_is_named(
    drawn: tuple[list[dict[str, int]], list[list[Item]]], data: st.DataObject
) -> None:
    transactions, epochs = drawn
    items = [item for epoch in epochs for item in epoch]
    rows = [i for i, item in enumerate(items) if item.table is not None]
    if not rows:
        return
    lost = data.draw(st.sampled_from(rows))
    missing = items.pop(lost)
    cut = Cut()
    cut.snapshot_end(None, 0)
    feed(cut, items, transactions, 1)
    advance = cut.advance()
    assert all(int(name[1:]) < missing.transaction for name in advance.transactions)
    assert f"t{missing.transaction}" in (cut.waiting_for() or "")


def test_the_end_of_a_transaction_that_was_seen_is_a_duplicate() -> None:
    cut = Cut()
    assert cut.end("t1", 10, {})
    assert not cut.end("t1", 10, {})
    assert not cut.end("t0", 9, {})


def test_p4_a_snapshot_is_foldable_only_when_every_table_is_complete() -> None:
    cut = Cut()
    for _ in range(3):
        cut.snapshot_row("a", lsn=5, epoch=1)
    cut.end("t1", 20, {})
    cut.snapshot_end("a", 3)
    cut.snapshot_end("b", 1)
    cut.snapshot_end(None, 0)
    assert not cut.advance().anything
    assert "snapshot" in (cut.waiting_for() or "")
    cut.snapshot_row("b", lsn=5, epoch=2)
    advance = cut.advance()
    assert advance.snapshot
    assert advance.from_epoch == 1
    assert cut.lsn == 20


def test_so_many_transactions_become_foldable_at_once_and_no_more() -> None:
    """An epoch names each of them; what waits may be those of hours."""
    cut = Cut()
    cut.snapshot_end(None, 0)
    for number in range(1, 8):
        has_rows = number != 2
        if has_rows:
            cut.row(f"t{number}", "a", epoch=1)
        cut.end(f"t{number}", 10 * number, {"a": 1} if has_rows else {})
    found = [cut.advance(most=3).transactions for _ in range(3)]
    assert found == [("t1", "t3", "t4"), ("t5", "t6", "t7"), ()]
    assert cut.lsn == 70


def test_rows_and_bytes_of_a_snapshot_count_as_those_of_their_table_over_a_restart() -> None:
    """Few wide rows are large, too: else the epoch that ends a snapshot folds them in its turn."""
    cut = Cut()
    cut.snapshot_row("a", lsn=4, epoch=1, size=10_000)
    for table, rows, size in (("a", 3, 100), ("b", 5, 30)):
        for _ in range(rows):
            cut.snapshot_row(table, lsn=5, epoch=1, size=size)
            cut = Cut.from_json(json.loads(json.dumps(cut.to_json())))
        cut.snapshot_end(table, rows)
    cut.snapshot_end(None, 0)
    cut.row("t1", "a", epoch=1, size=7)
    cut.end("t1", 20, {"a": 1})
    kept = cut.to_json()
    advance = cut.advance()
    assert (advance.snapshot, advance.most_rows, advance.rows) == (True, 5, 9)
    assert advance.most_bytes == 307
    # Versions that counted no bytes of a snapshot read this, and wrote as much.
    assert kept["snapshot"] == [5, 1, {"a": 3, "b": 5}]
    del kept["snapshot_sizes"]
    before = Cut.from_json(kept).advance()
    assert (before.rows, before.most_bytes) == (9, 7)


def test_a_snapshot_of_before_bytes_were_counted_goes_on() -> None:
    cut = Cut()
    cut.snapshot_row("a", lsn=5, epoch=1)
    kept = {**cut.to_json(), "snapshot": [5, 1, {"a": 1}]}
    cut = Cut.from_json(kept)
    cut.snapshot_row("a", lsn=5, epoch=2, size=9)
    cut.snapshot_end("a", 2)
    cut.snapshot_end(None, 0)
    assert (cut.advance().most_rows, cut.snapshot_lsn) == (2, 5)


def test_p4_rows_of_an_abandoned_snapshot_do_not_count() -> None:
    cut = Cut()
    cut.snapshot_row("a", lsn=5, epoch=1)
    cut.snapshot_row("a", lsn=5, epoch=1)
    cut.snapshot_end("a", 2)
    cut.snapshot_row("a", lsn=9, epoch=2)
    cut.snapshot_end("a", 2)
    cut.snapshot_end(None, 0)
    assert not cut.advance().snapshot
    cut.snapshot_row("a", lsn=9, epoch=3)
    assert cut.advance().snapshot
    assert cut.snapshot_lsn == 9


def restarted() -> Cut:
    """Return a cut whose connector started again amid transaction 7, of which 2 of 3 rows came."""
    cut = Cut()
    cut.snapshot_done = True
    cut.begin("7")
    cut.row("7", "public.a", epoch=1, lsn=10, rows=2)
    cut.begin("7")
    assert cut.end("7", 20, {"public.a": 1})
    return cut


def test_p5_a_restart_amid_a_transaction_is_settled_one_epoch_after_kafka_was_asked() -> None:
    cut = restarted()
    cut.settle({"a": {"0": 9}}, lambda: {"a": {"0": 9}})
    assert not cut.advance().anything, "an epoch that is done again may be told of another end"
    assert "started again" in str(cut.waiting_for())
    cut = Cut.from_json(cut.to_json())
    cut.settle({"a": {"0": 8}}, dict)
    assert not cut.advance().anything
    cut.settle({"a": {"0": 9}}, dict)
    assert cut.advance().transactions == ("7",)


def test_p5_what_an_end_counts_is_waited_for_all_the_same() -> None:
    cut = restarted()
    cut.end("8", 30, {"public.a": 1})
    ends = {"a": {"0": 9}}
    cut.settle(ends, lambda: ends)
    cut.settle(ends, dict)
    assert cut.advance().transactions == ("7",)
    assert "have {}" in str(cut.waiting_for())


def test_a_release_forgets_no_restart_of_a_transaction_that_is_still_sent() -> None:
    cut = Cut()
    cut.hold()
    cut.begin("7")
    cut.begin("7")
    cut.release(copied={"public.a"}, since=5)
    cut.row("7", "public.a", epoch=2, lsn=10)
    cut.end("7", 20, {"public.a": 1})
    assert not cut.advance().anything


@pytest.mark.parametrize("late", [False, True])
def test_p9_rows_of_before_a_copy_are_waited_for_until_kafka_has_no_more(late: bool) -> None:
    cut, ends = Cut(), {"a": {"0": 9}}
    cut.hold()
    cut.end("1", 20, {"public.a": 1})
    cut.row("lost", "public.a", epoch=1, lsn=15, order=10)
    cut.row("2", "public.a", epoch=2, lsn=35, order=20)
    cut.end("2", 40, {"public.a": 1})
    for read in (3, 4, 9):
        cut.advance()
        cut.give_up(25)
        assert cut.reached == 0, "more of it may come"
        cut = Cut.from_json(cut.to_json())
        if late and read == 9:
            cut.row("1", "public.a", epoch=3, lsn=15, order=10)
        cut.settle({"a": {"0": read}}, lambda: ends)
    cut.advance()
    cut.give_up(25)
    assert cut.reached == 40
    assert cut.pending_from_epoch(default=9) == 2
    cut.release(copied={"public.a"}, since=25)
    assert cut.pending_from_epoch(default=9) == 9
