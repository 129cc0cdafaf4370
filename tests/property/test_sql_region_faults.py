"""The laws of the regions see what is wrong: each fault is planted, and the table is wrong then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from kernel.errors import ContractViolation
from projections.run import matcher, operator_tables, operators
from projections.run.operators import JoinOperator, RecomputedOperator
from projections.run.regions import Recomputed, Region, region_of
from projections.run.sorted_runs import SortedRuns
from projections.sql.operators.tree import Call, Function
from projections.sql.rendering.duckdb_text import DuckText
from tests.support.oracles.changing_projections import CHANGING, PLACED
from tests.support.oracles.choice_projections import CHOSEN
from tests.support.oracles.pattern_projections import PATTERNS
from tests.support.oracles.range_projections import RANGES
from tests.support.oracles.region_projections import CASES as REGIONS
from tests.support.oracles.region_world import Kept, tree_of
from tests.support.oracles.sql_world import Fact, Reading, Row, World, canonical

CASES = {**REGIONS, **PATTERNS, **RANGES, **CHOSEN, **CHANGING, **PLACED}
BY_REGION = (
    "sessions",
    "over a range",
    "over rows",
    "top of each group",
    "ranks",
    "count windows",
    "union",
    *PLACED,
    *PATTERNS,
    *RANGES,
)
BY_PAIRS = ("two streams", "two streams, left", "semi", "anti", "in", "as of, then grouped")


def crowd(seed: int) -> World:
    """Facts of few flights close to each other in time, in four epochs."""
    draw = random.Random(seed)
    facts = tuple(
        Fact(
            position=position,
            epoch=draw.randint(1, 4),
            flight=draw.choice(["f1", "f2"]),
            carrier=draw.choice(["AA", "UA"]),
            origin=draw.choice(["JFK", "LGA"]),
            minute=draw.randint(0, 40),
            delay=draw.choice([None, 0, 1, 3]),
            distance=draw.choice([0.1, 0.2, 1.0, 1e16]),
        )
        for position in range(30)
    )
    readings = tuple(
        Reading(
            n, 1 + n // 4, draw.choice(["JFK", "LGA"]), draw.randint(-5, 40), draw.randint(1, 9)
        )
        for n in range(16)
    )
    return World(facts=facts, readings=readings)


def holds(name: str, seed: int) -> bool:
    """Keep a projection epoch by epoch; say whether it equals the batch all the way."""
    case = CASES[name]
    try:
        return all(canonical(rows) == canonical(case.oracle(now)) for rows, now in kept(name, seed))
    except _BROKEN:
        return False


_BROKEN = (AssertionError, KeyError, ContractViolation)
SEEDS = (5, 6, 7)


def kept(name: str, seed: int) -> Iterator[tuple[list[Row], World]]:
    """Yield the rows that a projection has after each epoch, and the facts up to it."""
    table, world = Kept(tree_of(CASES[name].statement)), crowd(seed)
    before = world.until(0)
    try:
        for epoch in world.epochs:
            now = world.until(epoch)
            table.epoch(before, now)
            yield [*table.rows.values()], now
            before = now
    finally:
        table.close()


Changed = Callable[[Region], Region]


def smaller(region: Region) -> Region:
    return replace(region, rows=f"SELECT * FROM ({region.rows}) AS all_rows ORDER BY ALL OFFSET 1")


def needier(region: Region) -> Region:
    return replace(region, need=f"({region.need}) AND x._seq_hi % 3 <> 1")


@pytest.mark.parametrize("fault", [smaller, needier])
@pytest.mark.parametrize("name", BY_REGION)
def test_a_region_too_small_and_a_need_too_short_are_seen(
    name: str, fault: Changed, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_regions(fault, monkeypatch)
    assert not all(holds(name, seed) for seed in SEEDS)


def change_regions(fault: Changed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let operators work with other regions than theirs."""

    def faulty(node: Recomputed, changes: str, given: str) -> Region:
        return fault(region_of(node, changes, given))

    monkeypatch.setattr(operators, "region_of", faulty)


@pytest.mark.parametrize("side", ["left_near", "right_before"])
@pytest.mark.parametrize("name", BY_PAIRS)
def test_pairs_that_are_not_looked_at_are_seen(
    name: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at_less(side, monkeypatch)
    assert not all(holds(name, seed) for seed in SEEDS)


def look_at_less(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let joins overlook a row of those that they look through for pairs."""
    found = JoinOperator._find

    def short(self: JoinOperator, what: str, side_of: str, came: Sequence[str]) -> None:
        found(self, what, side_of, came)
        if what == side:
            table = self._tables.name(what)
            self._tables.fresh(what, f"SELECT * FROM {table} ORDER BY ALL OFFSET 1")

    monkeypatch.setattr(JoinOperator, "_find", short)


# Far above the largest fact: at 1e16 a double moves in steps of two, and what is added to it must
# not be rounded to one of a few numbers, or two sums are the same by chance.
TREMOR = 1e18


def trembling(self: DuckText, call: Call, value: str, over: str) -> str:
    """A sum of floating-point numbers that differs whenever it is computed."""
    text = _TOTAL(self, call, value, over)
    floating = call.function is Function.SUM and call.kind == "DOUBLE"
    return f"({text} + {TREMOR} * random())" if floating else text


def computed_anew(self: RecomputedOperator) -> str:
    region = self._tables.name("region")
    stored = (
        f"SELECT x.* FROM {self._tables.name('rows')} x SEMI JOIN {region} r ON {self._region.need}"
    )
    was = self._query(operator_tables.bag(stored, self._input))
    return self._touched(f"SELECT *, 1 AS _w FROM ({was}) AS q")


def test_matches_that_were_given_out_are_taken_back_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = matcher.total_of
    monkeypatch.setattr(
        matcher, "total_of", lambda values: total(values) + TREMOR * random.random()
    )
    for rows, now in kept("pattern", 5):
        assert len(rows) == len(CASES["pattern"].oracle(now))
    monkeypatch.setattr(RecomputedOperator, "_before", computed_anew)
    with pytest.raises(_BROKEN):
        list(kept("pattern", 5))


def test_an_attempt_that_reached_a_changed_row_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(node: Recomputed, changes: str, given: str) -> Region:
        made = region_of(node, changes, given)
        return replace(made, rows=made.rows.replace(" - 900000000 AS __from", " AS __from"))

    monkeypatch.setattr(operators, "region_of", short)
    assert not all(holds("pattern", seed) for seed in SEEDS)


def test_a_match_that_reaches_over_the_bound_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgotten(node: Recomputed, changes: str, given: str) -> Region:
        made = region_of(node, changes, given)
        return replace(
            made, rows=made.rows.replace(f"JOIN {given} g ON", f"JOIN {given} g ON false AND")
        )

    monkeypatch.setattr(operators, "region_of", forgotten)
    assert not all(holds("pattern", seed) for seed in range(20))


_TOTAL = DuckText.total
SUMS = (
    "sessions",
    "over a range",
    "range on both sides",
    "over rows",
    "count windows, with their last",
)


@pytest.mark.parametrize("name", SUMS)
def test_what_was_given_out_is_taken_back_as_it_was(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums that differ each time leave a key with one row; taken back anew, they would pile up."""
    monkeypatch.setattr(DuckText, "total", trembling)
    for rows, now in kept(name, 5):
        assert len(rows) == len(CASES[name].oracle(now))
    monkeypatch.setattr(RecomputedOperator, "_before", computed_anew)
    with pytest.raises(_BROKEN):
        list(kept(name, 5))


@pytest.mark.parametrize("name", ["sessions", "over rows", "two streams", "groups"])
def test_rows_that_are_not_found_by_their_keys_are_missed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_tables, "RUN_ROWS", 4)
    assert all(holds(name, seed) for seed in SEEDS)
    find_nothing(monkeypatch)
    assert not all(holds(name, seed) for seed in SEEDS)


def find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stored row be found by its keys."""
    find = SortedRuns.find

    def nothing(
        self: SortedRuns, keys: str, *, all_rows: bool, most_bytes: int | None = None
    ) -> None:
        find(self, f"{keys} LIMIT 0", all_rows=all_rows)

    monkeypatch.setattr(SortedRuns, "find", nothing)
