"""Rows that an epoch has just appended to the log are folded as they are, and no others."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from kernel import failpoints
from lake.layout import Lake
from pipeline.commit import foldable_rows
from pipeline.commit.manifest_rows import Committed
from pipeline.log.pending_rows import PendingRows
from tests.support.lake.folding import Done, changes
from tests.support.lake.poisoned import ENDS, GOODS, ITEMS, PoisonedShop, topic_of

ROWS = {ITEMS: [Done("c", 1, name="a")], GOODS: [Done("c", 1, name="b"), Done("c", 2, name="c")]}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Epochs since which the log was read for a fold."""
    epochs: list[int] = []
    real = foldable_rows.dataset_since

    def noting(table: DeltaTable, column: str, least: int) -> ds.Dataset:
        epochs.append(least)
        return real(table, column, least)

    monkeypatch.setattr(foldable_rows, "dataset_since", noting)
    return epochs


def assert_all_is_there(shop: PoisonedShop) -> None:
    last = shop.manifest.last()
    assert last is not None
    for table in (ITEMS, GOODS):
        assert shop.state(table, last) == shop.expected(table)


def test_a_transaction_that_comes_whole_is_folded_without_a_look_at_the_log(
    lake: Lake, read: list[int]
) -> None:
    shop = PoisonedShop(lake)
    shop.epoch()
    shop.commit(ROWS)
    shop.commit({ITEMS: [Done("u", 1, name="d"), Done("c", 3)], GOODS: [Done("d", 2)]})
    shop.epoch()
    assert_all_is_there(shop)
    assert not read


def begun(shop: PoisonedShop) -> Committed:
    """Make an epoch that ends amid a transaction."""
    shop.epoch()
    shop.commit(ROWS)
    return shop.epoch(without=[topic_of(GOODS), ENDS])


def test_a_transaction_that_began_an_epoch_before_is_folded_without_a_look_at_the_log(
    lake: Lake, read: list[int]
) -> None:
    """So do nearly all epochs of a backlog end: each would have its files read once more."""
    shop = PoisonedShop(lake)
    begun(shop)
    shop.commit({ITEMS: [Done("u", 1, name="d"), Done("c", 3)]})
    shop.epoch(without=[ENDS])
    shop.epoch()
    shop.commit({ITEMS: [Done("u", 1, name="e")]})
    shop.epoch()
    assert_all_is_there(shop)
    assert not read


def test_a_transaction_that_began_before_a_restart_is_read_from_the_log(
    lake: Lake, read: list[int]
) -> None:
    shop = PoisonedShop(lake)
    first = begun(shop)
    shop.restart()
    shop.epoch()
    assert_all_is_there(shop)
    assert read == [first.epoch]


def test_what_would_take_much_memory_is_read_from_the_log(lake: Lake, read: list[int]) -> None:
    shop = PoisonedShop(lake)
    shop.ingest._folding.pending = PendingRows(most_bytes=0)
    first = begun(shop)
    shop.epoch()
    assert_all_is_there(shop)
    assert read == [first.epoch]


def test_p4_rows_that_executors_wrote_between_are_folded(lake: Lake, read: list[int]) -> None:
    """An epoch before left nothing: what came since is not all in what is in memory."""
    shop = PoisonedShop(lake)
    shop.epoch()
    shop.commit(ROWS)
    shop.epoch()
    shop.commit({ITEMS: [Done("u", 1, name="d")], GOODS: [Done("c", 3)]})
    done = shop.epoch(on_executors=True, without=[ENDS])
    shop.commit({GOODS: [Done("u", 3, name="e")]})
    shop.epoch()
    assert_all_is_there(shop)
    assert read == [done.epoch]


def test_p4_rows_of_a_whole_epoch_of_executors_are_folded(lake: Lake) -> None:
    shop = PoisonedShop(lake)
    shop.epoch()
    shop.commit(ROWS)
    shop.epoch()
    shop.commit({ITEMS: [Done("u", 1, name="d")], GOODS: [Done("c", 3)]})
    shop.epoch(on_executors=True)
    assert_all_is_there(shop)


def test_rows_that_were_folded_are_not_kept(lake: Lake) -> None:
    shop = PoisonedShop(lake)
    begun(shop)
    pending = shop.ingest._folding.pending
    ((kept, _),) = pending._kept.values()
    assert kept.rows.num_rows == len(ROWS[ITEMS])
    shop.epoch()
    ((kept, _),) = pending._kept.values()
    assert kept.rows.num_rows == 0


def test_p3_an_epoch_that_is_made_again_folds_what_the_log_has_of_it(
    lake: Lake, read: list[int]
) -> None:
    """Not what came with the same offsets this time, even if that is something else."""
    shop = PoisonedShop(lake)
    shop.epoch()
    shop.commit(ROWS)
    failpoints.arm(failpoints.EPOCH_AFTER_LOG)
    with pytest.raises(failpoints.Crash):
        shop.epoch()
    other: pa.Table = changes([Done("c", 1, name="another")], first=1)
    shop.records[topic_of(ITEMS)][-1]["value"] = other["value"][0].as_py()
    done = shop.finish()
    assert_all_is_there(shop)
    assert read == [done.epoch]
