"""Transactions that are pending for long do not grow in the manifest's rows, and none is lost."""

from __future__ import annotations

import pytest

from kernel import failpoints
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.pending_transactions import MOST_IN_ROW, PENDING
from pipeline.installs.install_book import DECODE
from tests.support.lake.folding import Done
from tests.support.lake.poisoned import ENDS, GOODS, ITEMS, PoisonedShop

MANY = MOST_IN_ROW


def stuck(lake: Lake) -> PoisonedShop:
    """Return a source whose cut stands still behind an END that cannot be read."""
    shop = PoisonedShop(lake)
    shop.commit({ITEMS: [Done("c", 1)]}, spoil={(ENDS, 0)})
    shop.commit({GOODS: [Done("c", 1)]})
    for _ in range(3):
        shop.epoch()
    assert shop.ingest.poisoned() == {"shop": ENDS}
    return shop


def more(shop: PoisonedShop, count: int) -> int:
    """Commit transactions and make an epoch of them; return the size of its row."""
    for number in range(count):
        shop.commit({ITEMS: [Done("u", number % 5)], GOODS: [Done("u", number % 3)]})
    return len(shop.epoch().progress)


def test_the_manifests_rows_stay_small_while_a_cut_stands_still(lake: Lake) -> None:
    shop = stuck(lake)
    small = more(shop, MANY // 2)
    sizes = [more(shop, MANY) for _ in range(5)]
    assert max(sizes) < small
    rows = Tables().read(lake.path(PENDING))
    assert rows is not None
    each = rows.group_by("epoch").aggregate([("item", "count")]).sort_by("epoch")
    # An epoch writes what came, and not what has come before.
    assert max(each["item_count"].to_pylist()[1:]) <= 4 * MANY
    shop.restart()
    shop.mended = True
    shop.decide(DECODE, ENDS)
    done = shop.epoch()
    for _ in range(2):
        done = shop.epoch()
    assert shop.state(ITEMS, done) == shop.expected(ITEMS)
    assert shop.state(GOODS, done) == shop.expected(GOODS)
    assert done.cuts["shop"] == shop.lsn
    left = Tables().read(lake.path(PENDING))
    assert left is not None
    assert left.num_rows == 0


@pytest.mark.parametrize("many", [MANY + 1, 2 * MANY])
def test_a_crash_behind_what_is_pending_repeats_the_epoch(lake: Lake, many: int) -> None:
    shop = stuck(lake)
    more(shop, many)
    failpoints.arm(failpoints.PENDING_AFTER_APPEND)
    with pytest.raises(failpoints.Crash):
        more(shop, 3)
    shop.finish()
    more(shop, 3)
    shop.restart()
    shop.mended = True
    shop.decide(DECODE, ENDS)
    for _ in range(3):
        done = shop.epoch()
    assert shop.state(ITEMS, done) == shop.expected(ITEMS)
    assert shop.state(GOODS, done) == shop.expected(GOODS)
