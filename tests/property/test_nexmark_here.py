"""Nexmark's queries in one batch by DuckDB, as a build computes them: the oracle's rows."""

from __future__ import annotations

import threading
import time

import pytest

from kernel.errors import ContractViolation
from kernel.positions import Epoch
from projections.run.database import TEXT
from projections.run.spark_hashes import hash_sql
from projections.run.whole_rows import WholeRows
from projections.sql.rendering.batch import satisfying
from tests.support.lake.auction_house import (
    EPOCHS,
    AuctionHouse,
    filled_house,
    planned,
    planned_text,
    query_text,
    side_input_at,
)
from tests.support.oracles.nexmark import QUERIES, answer
from tests.support.oracles.region_world import plain
from tests.support.oracles.sql_world import canonical

LAST = max(EPOCHS)
_SLICES = 2


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> AuctionHouse:
    return filled_house(tmp_path_factory.mktemp("auctions"), 7)


@pytest.mark.parametrize("name", QUERIES)
def test_p6_nexmark_in_one_batch_equals_the_oracle(name: str, house: AuctionHouse) -> None:
    made, work = planned(name), WholeRows(house.lake, house.tables)
    reading = house.reading(made)
    assert work.can(made, reading.catalog)
    hashed = hash_sql([each for each in made.columns if each.name in made.key])
    names = {each.name for each in made.columns}
    found: dict[str, list[dict[str, object]]] = {}
    for where in ("true", *(f"abs({hashed} % {_SLICES}) = {n}" for n in range(_SLICES))):
        with work.rows(
            reading, Epoch(LAST), {made.tree: satisfying(made.tree, where, TEXT)}
        ) as parts:
            rows = [row for part in parts for row in part.to_pylist()]
        assert {row.pop("_epoch") for row in rows} <= {LAST}
        found[where] = [{n: plain(v) for n, v in row.items() if n in names} for row in rows]
    whole, *slices = found.values()
    wanted = answer(name, house.facts(LAST), side_input_at(LAST))
    assert wanted
    assert canonical(whole) == canonical(wanted)
    assert canonical([row for rows in slices for row in rows]) == canonical(wanted)


def test_what_is_spark_alone_is_not_computed_here(house: AuctionHouse) -> None:
    made = planned_text(query_text("q21").replace("'(&|^)", "'(?i)(&|^)"))
    assert not WholeRows(house.lake, house.tables).can(made, house.reading(made).catalog)


def test_how_far_a_query_is_can_be_seen(house: AuctionHouse) -> None:
    made, work = planned("q2"), WholeRows(house.lake, house.tables)
    long = "(SELECT sum(hash(a.range * b.range)) FROM range(100000) a, range(100000) b) > 0"
    seen: list[float] = []

    def stopped_on_the_way() -> None:
        ends = time.monotonic() + 60
        while not (seen and seen[-1]) and time.monotonic() < ends:
            seen.append(work.share() or 0.0)
            time.sleep(0.01)
        work.stop()

    def read_all() -> None:
        with work.rows(
            house.reading(made), Epoch(LAST), {made.tree: satisfying(made.tree, long, TEXT)}
        ) as parts:
            list(parts)

    watcher = threading.Thread(target=stopped_on_the_way)
    watcher.start()
    with pytest.raises(ContractViolation, match="Interrupted"):
        read_all()
    watcher.join()
    assert 0.0 < seen[-1] < 1.0
