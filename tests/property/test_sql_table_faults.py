"""The laws of tables and of projections over each other see what is wrong: faults, each planted."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pytest

from kernel.errors import ContractViolation
from projections.run import changing_groups
from projections.run.dataflow import Dataflow
from projections.run.regions import Region
from projections.sql.operators import pruning
from projections.sql.operators.tree import Scan
from tests.property.test_sql_region_faults import (
    Changed,
    change_regions,
    look_at_less,
    smaller,
)
from tests.support.oracles.shop_projections import CASES
from tests.support.oracles.shop_world import Change, KeptChain, Payment, Shop
from tests.support.oracles.sql_world import canonical

SEEDS = (1, 2, 3)
RECOMPUTED = ("newest row of another key", "the top of a projection")
ADDED_TO = (
    "groups of a table",
    "foreign key, grouped by the other",
    "a table and a stream",
    "rows of a projection that move",
)
PAIRED = (
    "foreign key, left",
    "tables, semi",
    "tables, anti",
    "a stream and a table",
    "a table with itself",
    "what a projection lacks",
)
TAKEN_BACK = ("rows of a table", "groups of a table", "foreign key, left", "three on each other")


FEW = ("groups of a table", "rows of a projection that move", "foreign key, left", "tables, anti")
"""Of these each fault is planted by default: the operators of the others are the same."""


def crowd(seed: int) -> Shop:
    """Few rows that change often, and payments for all orders, in four epochs."""
    draw = random.Random(seed)
    changes = []
    for n in range(28):
        table, values = draw.choice(
            [
                ("orders", (draw.randint(1, 3), draw.randint(1, 9), draw.choice(["open", "shut"]))),
                ("customers", (draw.choice(["Ada", "Bob"]), draw.choice(["Rome", "Oslo"]))),
            ]
        )
        gone = draw.random() < 0.2
        changes.append(
            Change(n, 1 + n // 7, table, draw.randint(1, 4), None if gone else tuple(values))
        )
    payments = tuple(
        Payment(n, draw.randint(1, 4), draw.randint(1, 4), draw.randint(0, 9), draw.randint(1, 5))
        for n in range(12)
    )
    return Shop(changes=tuple(changes), payments=payments)


def holds(name: str, seed: int) -> bool:
    """Keep the projections of a case epoch by epoch; say whether they fit all the way."""
    kept, shop = KeptChain(CASES[name].statements), crowd(seed)
    try:
        for epoch in shop.epochs:
            kept.epoch(shop.until(epoch))
            if canonical(kept.result()) != canonical(CASES[name].oracle(shop.until(epoch))):
                return False
    except (AssertionError, KeyError, ContractViolation):
        return False
    finally:
        kept.close()
    return True


def seen(name: str) -> bool:
    return not all(holds(name, seed) for seed in SEEDS)


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted({*RECOMPUTED, *ADDED_TO, *PAIRED, *TAKEN_BACK}))
def test_without_a_fault_crowds_hold(name: str) -> None:
    assert holds(name, SEEDS[0])


def needier(region: Region) -> Region:
    return replace(region, need=f"({region.need}) AND hash(x) % 3 <> 1")


@pytest.mark.parametrize("fault", [smaller, needier])
@pytest.mark.parametrize("name", RECOMPUTED)
def test_a_region_too_small_and_a_need_too_short_are_seen(
    name: str, fault: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_regions(fault, monkeypatch)
    assert seen(name)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.matrix] * (name not in FEW)) for name in ADDED_TO],
)
def test_what_went_and_is_not_taken_off_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    less = changing_groups._less
    monkeypatch.setattr(changing_groups, "_less", lambda call: less(call).removeprefix("-"))
    assert seen(name)


@pytest.mark.parametrize("side", ["left_near", "right_before"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.matrix] * (name not in FEW)) for name in PAIRED]
)
def test_pairs_that_are_not_looked_at_are_seen(
    name: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_less(side, monkeypatch)
    assert seen(name)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.matrix] * (name not in FEW)) for name in TAKEN_BACK],
)
def test_rows_that_went_and_are_not_taken_back_are_seen(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Dataflow.add

    def only_those_that_came(
        self: Dataflow, scan: Scan, rows: Iterable[pa.Table], *, weight: int = 1
    ) -> None:
        if weight > 0:
            add(self, scan, rows)

    monkeypatch.setattr(Dataflow, "add", only_those_that_came)
    assert seen(name)


def test_p5_a_projection_that_runs_before_the_one_it_reads_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def backwards(self: KeptChain, shop: Shop) -> None:
        for name in reversed(self._names):
            self._feed(name, shop)
            self._apply(name, self._flows[name].round())

    monkeypatch.setattr(KeptChain, "epoch", backwards)
    assert seen("rows of a projection that move")


def test_a_key_that_is_not_unique_by_itself_and_said_to_be_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pruning, "one_row_of_each_key", lambda tree: True)
    assert seen("newest row of another key")
