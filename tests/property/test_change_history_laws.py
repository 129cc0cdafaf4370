"""History of captured tables: epochs, snapshots and clocks do not matter, only what was committed.

The pipeline's process computes the folds: hundreds of tables in seconds. Spark's executors do so in
tests/integration/test_change_history.py and tests/contracts/test_history_folds.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from lake.ranges import Range
from lake.writer import OP, UPSERT
from pipeline.history.driver_fold import changed_versions, opened
from pipeline.history.fold import HistoryFold
from pipeline.history.shape import HistoryOf
from tests.support.oracles.change_facts import (
    TYPED,
    Fact,
    Version,
    Writer,
    expected,
    truncates,
    typed,
)
from tests.support.services.tier import examples

PEOPLE = HistoryOf(name="history/x", typed="typed/x", key=("id",), identity=("id",), by_row=False)


class Duck:
    """One history in memory, whose folds are computed as the pipeline's process does."""

    def __init__(self) -> None:
        self.connection = opened()
        self.clear()

    def clear(self) -> None:
        self.epoch = 0
        self.stored: dict[tuple[object, object], Version] = {}

    def fold(self, facts: Sequence[Fact]) -> None:
        self.epoch += 1
        fold = HistoryFold(
            history=PEOPLE,
            incoming=TYPED,
            within=Range(column="_epoch", lower=self.epoch, upper=self.epoch + 1),
            epoch=Epoch(self.epoch),
            anew=False,
        )
        stored = pa.Table.from_pylist(list(self.stored.values()), fold.stored)
        cleared = truncates(facts, self.epoch)
        incoming = typed(facts, self.epoch)
        changed = changed_versions(self.connection, fold, incoming, stored, cleared)
        for row in changed.to_pylist():
            key = row["id"], row["valid_from"]
            if row.pop(OP) == UPSERT:
                self.stored[key] = row
            else:
                del self.stored[key]

    def rows(self) -> list[Version]:
        rows = ({n: v for n, v in row.items() if n != "_epoch"} for row in self.stored.values())
        return sorted(rows, key=lambda row: (row["id"], row["valid_from"]))


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    engine = Duck()
    yield engine
    engine.connection.close()


@settings(max_examples=examples(8, matrix=30))
@given(
    chance=st.randoms(use_true_random=False),
    transactions=st.integers(1, 25),
    again_at=st.integers(0, 25),
    cuts=st.lists(st.integers(1, 8), min_size=1, max_size=8),
)
def test_p6_history_is_a_function_of_what_was_committed(
    chance: random.Random, transactions: int, again_at: int, cuts: list[int], duck: Duck
) -> None:
    writer = Writer(chance=chance, clears=0.06)
    parts = [writer.snapshot({0: "ann", 1: "bob"})]
    for number in range(transactions):
        if number == again_at:
            seen = dict(list(writer.rows.items())[:2]) | {3: "mended"}
            parts.append(writer.snapshot(seen, later=True))
        parts.append(writer.transaction(keys=8))
    wanted = expected([fact for part in parts for fact in part])
    duck.clear()
    duck.fold([fact for part in parts for fact in part])
    assert duck.rows() == wanted
    duck.clear()
    while parts:
        size = cuts[0]
        cuts = [*cuts[1:], cuts[0]]
        duck.fold([fact for part in parts[:size] for fact in part])
        parts = parts[size:]
    assert duck.rows() == wanted
