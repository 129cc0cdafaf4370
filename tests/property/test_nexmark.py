"""Nexmark's queries, kept epoch by epoch over disturbed input, equal their answers in one batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kernel.errors import ContractViolation
from projections.sql.rendering.certified import uncertified
from tests.property.test_sql_region_faults import change_regions, smaller
from tests.support.lake.auction_house import (
    EPOCHS,
    AuctionHouse,
    arrivals,
    planned,
    side_input_at,
)
from tests.support.oracles.nexmark import QUERIES, answer
from tests.support.oracles.sql_world import canonical

House = Callable[[int], AuctionHouse]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    """Return the lake of one seed, ingested once for all queries."""
    made: dict[int, AuctionHouse] = {}

    def of(seed: int) -> AuctionHouse:
        if seed not in made:
            folder: Path = tmp_path_factory.mktemp("auctions")
            made[seed] = AuctionHouse(folder, arrivals(seed))
            made[seed].ingest()
        return made[seed]

    return of


@pytest.mark.parametrize("name", QUERIES)
def test_p6_nexmark_over_disturbed_input_equals_the_batch(name: str, house: House) -> None:
    assert keep(name, house(7)), "the query has an answer to compare"


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("name", QUERIES)
def test_p6_nexmark_over_many_disturbances(name: str, seed: int, house: House) -> None:
    keep(name, house(seed))


def keep(name: str, lake: AuctionHouse) -> int:
    """Keep a query over all epochs; compare its table after each, return how many rows it has."""
    made = planned(name)
    assert made.tree is not None
    assert uncertified(made.tree) is None
    for epoch in EPOCHS:
        lake.show_side_input(epoch)
        rows = lake.run(made, epoch)
        wanted = answer(name, lake.facts(epoch), side_input_at(epoch))
        assert canonical(rows) == canonical(wanted)
    return len(rows)


def test_a_region_that_lacks_a_row_is_seen(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    change_regions(smaller, monkeypatch)
    with pytest.raises((AssertionError, ContractViolation)):
        keep("q19", house(99))
