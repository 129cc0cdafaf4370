"""The law of projections of one step sees keys and needs that are too few: faults, planted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow as pa
import pytest
from sqlglot import exp

from kernel.positions import Epoch
from lake.ranges import Among, Condition, Spans
from projections.run import key_runs
from projections.run.database import TEXT
from projections.run.keyed_facts import KeyedFacts
from projections.sql.operators.shape import Strategy
from projections.sql.operators.tree import Map, Newest, Scan
from projections.sql.plans.key_steps import KeySteps, Lookup
from tests.property.test_sql_incremental import DuckEngine
from tests.support.oracles.sql_projections import CASES
from tests.support.oracles.sql_world import (
    Fact,
    Reading,
    Row,
    World,
    WorldEngine,
    canonical,
    kept,
    planned,
)

SMALL = tuple(name for name, case in CASES.items() if planned(case.statement).small)
WINDOWED = ("hop", "tumble", "cumulate", "as of, windowed")
TOUCHED = tuple(n for n in SMALL if planned(CASES[n].statement).strategy is Strategy.KEYS)
LOOKED_UP = ("as of, left", "as of, inner", "as of, windowed")
SEEDS = (1, 2, 3)
LAST_MINUTES = (-16, -6, -1, 4, 14, 19, 24, 29, 34, 39, 44, 54, 59)
"""Of windows of the cases, and between readings."""


def crowd(seed: int) -> World:
    """Facts close together and readings between them, late ones too, in four epochs."""
    draw = random.Random(seed)
    facts = tuple(
        Fact(
            position,
            draw.randint(1, 4),
            f"f{draw.randint(1, 12)}",
            draw.choice(["AA", "UA"]),
            draw.choice(["JFK", "LGA"]),
            draw.choice(LAST_MINUTES),
            draw.choice([0, 1, 3]),
            draw.choice([0.1, 0.2, 1.0]),
        )
        for position in draw.sample(range(60), 24)
    )
    epochs = sorted(draw.randint(1, 4) for _ in range(12))
    readings = tuple(
        Reading(
            number,
            epoch,
            draw.choice(["JFK", "LGA"]),
            draw.randrange(-40, 60, 10),
            draw.choice([None, 1, 2, 3]),
        )
        for number, epoch in enumerate(epochs)
    )
    return World(facts=facts, readings=readings)


@pytest.fixture
def small() -> Iterator[DuckEngine]:
    made = DuckEngine(spark=False)
    yield made
    made.close()


DELETED = World(
    facts=tuple(
        Fact(n, 1, f"f{n}", "AA", "JFK", minute, 3, 0.1) for n, minute in enumerate((4, 14, 24, 44))
    ),
    readings=(
        Reading(0, 1, "JFK", 0, 3),
        Reading(1, 1, "JFK", 30, 2),
        # The row of this time is gone; it came late.
        Reading(2, 2, "JFK", 10, None),
    ),
)
"""Facts look up a version that a later epoch puts an end to."""


def holds(
    small: DuckEngine, name: str, worlds: Sequence[World] = (), *, by_keys: bool = False
) -> bool:
    """Keep the case over some worlds; say whether it equals its oracle in all of them.

    `by_keys`: facts of some keys are found by these.
    """
    case = CASES[name]

    def rows(world: World) -> list[Row]:
        keyed = KeyedFacts() if by_keys else None
        return kept(small, planned(case.statement), world, TEXT, keyed=lambda: keyed)

    return all(
        canonical(rows(world)) == canonical(case.oracle(world))
        for world in worlds or map(crowd, SEEDS)
    )


@pytest.mark.parametrize("name", SMALL)
def test_without_a_fault_the_law_holds(small: DuckEngine, name: str) -> None:
    assert holds(small, name)


def _facts_without(
    monkeypatch: pytest.MonkeyPatch, changed: Callable[[list[Condition]], list[Condition]]
) -> None:
    # What is added to needs no facts of before.
    monkeypatch.setattr(key_runs, "_added", lambda *_: None)
    plain = WorldEngine.facts

    def facts(
        engine: WorldEngine, scan: Scan, conditions: Sequence[Condition], **_: object
    ) -> None:
        plain(engine, scan, changed(list(conditions)))

    monkeypatch.setattr(WorldEngine, "facts", facts)


def _earlier(bound: object) -> object:
    return bound - timedelta(minutes=1) if isinstance(bound, datetime) else bound


@pytest.mark.parametrize("name", WINDOWED)
def test_a_need_too_short_by_a_minute_is_seen(
    small: DuckEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shorter(conditions: list[Condition]) -> list[Condition]:
        return [
            Spans(column=c.column, spans=tuple((low, _earlier(high)) for low, high in c.spans))
            if isinstance(c, Spans)
            else c
            for c in conditions
        ]

    _facts_without(monkeypatch, shorter)
    assert not holds(small, name)


@pytest.mark.parametrize("name", [n for n in TOUCHED if n not in ("tumble", "one group of all")])
def test_a_need_without_one_value_is_seen(
    small: DuckEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fewer(conditions: list[Condition]) -> list[Condition]:
        return [
            Among(column=c.column, values=c.values.slice(1)) if isinstance(c, Among) else c
            for c in conditions
        ]

    _facts_without(monkeypatch, fewer)
    assert not holds(small, name)


@pytest.mark.parametrize("name", TOUCHED)
def test_a_region_without_one_key_is_seen(
    small: DuckEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = key_runs._touched
    monkeypatch.setattr(
        key_runs, "_touched", lambda *given: [keys.slice(1) for keys in plain(*given)]
    )
    assert not holds(small, name)


@pytest.mark.parametrize("name", LOOKED_UP)
def test_a_late_version_that_repairs_nothing_is_seen(
    small: DuckEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = key_runs.key_steps

    def without(tree: Newest) -> KeySteps:
        steps = plain(tree)
        return replace(steps, lookups=tuple(map(_untouched, steps.lookups)))

    def _untouched(lookup: Lookup) -> Lookup:
        keys = lookup.keys
        assert isinstance(keys, Map)
        return replace(lookup, keys=replace(keys, where=(exp.false(),)))

    monkeypatch.setattr(key_runs, "key_steps", without)
    assert not holds(small, name)


@pytest.mark.parametrize("name", LOOKED_UP)
def test_a_deleted_version_that_repairs_nothing_is_seen(
    small: DuckEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = WorldEngine.versions

    def versions(
        engine: WorldEngine, scan: Scan, conditions: Sequence[Condition], *, alike: bool = False
    ) -> None:
        plain(engine, scan, conditions)

    assert holds(small, name, [DELETED])
    monkeypatch.setattr(WorldEngine, "versions", versions)
    assert not holds(small, name, [DELETED])


@pytest.mark.parametrize("name", LOOKED_UP)
def test_p7_a_future_version_is_seen(
    small: DuckEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = '"e.occurred_at" >= r."w.valid_from"'

    def patched(name: str) -> None:
        plain = getattr(key_runs, name)

        def next_one(*given: object, **more: object) -> str:
            text: str = plain(*given, **more)
            assert begun in text
            return text.replace(begun, begun.replace(">=", "<="))

        monkeypatch.setattr(key_runs, name, next_one)

    for text in ("whole", "touched_rows_sql", "added_sql"):
        patched(text)
    assert not holds(small, name)


@pytest.mark.parametrize("name", LOOKED_UP)
def test_facts_without_those_of_one_key_are_seen(
    small: DuckEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = key_runs._own_keys

    def fewer(driver: Scan, equal: Sequence[tuple[str, str]], found: pa.Table) -> pa.Table | None:
        keys = plain(driver, equal, found)
        return None if keys is None else keys.slice(1)

    assert holds(small, name, by_keys=True)
    monkeypatch.setattr(key_runs, "_own_keys", fewer)
    assert not holds(small, name, by_keys=True)


@pytest.mark.parametrize("name", LOOKED_UP)
def test_facts_by_their_keys_without_those_that_came_first_are_seen(
    small: DuckEngine, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = WorldEngine._came

    def later(engine: WorldEngine, scan: Scan, after: Epoch) -> list[pa.Table]:
        return plain(engine, scan, Epoch(after + 1))

    monkeypatch.setattr(WorldEngine, "_came", later)
    assert not holds(small, name, by_keys=True)
