"""Whoever folds a projection's changes has its rows, whatever happened to its table meanwhile."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernel.positions import DeltaVersion, Epoch
from lake.layout import Lake
from lake.writer import DELETE, UPSERT, Guard, with_op
from projections.serve.lookups import Lookups
from projections.serve.newest_runs import ServedVersion
from projections.serve.row_changes import RowChange, difference
from projections.serve.row_values import documents
from replay.generations import live_app
from tests.support.lake.handmade import HandMade
from tests.support.lake.swaps import rollback, swap
from tests.support.services.tier import examples

MEMORY = 2**22
NUMBERS = [None, 0.0, 1.5, float("nan"), float("inf")]
STEPS = ("merge", "delete", "whole", "optimize", "swap", "rollback", "nothing")


class ChangingTable:
    """A projection to which one thing after the other happens."""

    def __init__(self, root: Path, seed: int) -> None:
        self.made = HandMade(Lake.at(root))
        self.dice = random.Random(seed)
        self.generation = self.built = 1
        self.swapped = False
        self.made.deploy("report")
        self.path = self.made.lake.path("projection/report")
        self.step("whole")

    def rows(self, count: int, epoch: int) -> pa.Table:
        ids = self.dice.sample(range(12), count)
        return pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "word": pa.array([self.dice.choice("abc") for _ in ids], pa.string()),
                "number": pa.array([self.dice.choice(NUMBERS) for _ in ids], pa.float64()),
                "list": pa.array([[self.dice.choice("xy")] for _ in ids], pa.list_(pa.string())),
                "_epoch": pa.array([epoch] * count, pa.int64()),
            }
        )

    def step(self, what: str) -> None:
        made, dice = self.made, self.dice
        epoch = made.epoch()
        app = live_app("report", self.generation)
        guard = Guard(app, Epoch(epoch))
        version = None
        match what:
            case "whole":
                rows = self.rows(dice.randint(0, 12), epoch)
                version = made.writer.overwrite(self.path, rows, guard)
            case "merge" | "delete":
                op = UPSERT if what == "merge" else DELETE
                rows = with_op(self.rows(dice.randint(0, 4), epoch), op)
                version = made.writer.merge(self.path, rows, guard, keys=["id"])
            case "optimize":
                DeltaTable(self.path).optimize.compact()
                made.tables.forget(self.path)
            case "swap" if not self.swapped:
                self.built += 1
                rows = self.rows(dice.randint(0, 12), epoch)
                made.note(app, {"projection/report": DeltaTable(self.path).version()}, epoch)
                made.build("report", rows, epoch, generation=self.built)
                swap(made.site, "report", lambda replay: replay)
                made.tables.forget(self.path)
                self.generation, self.swapped = self.built, True
            case "rollback" if self.swapped:
                rollback(made.site, "report")
                made.tables.forget(self.path)
                self.generation, self.swapped = 1, False
            case _:
                version = DeltaTable(self.path).version()
        if version is not None:
            made.note(app, {"projection/report": version}, epoch)


def folded(rows: dict[object, object], changes: list[RowChange]) -> None:
    for change in changes:
        key = change.key["id"]
        assert rows.get(key) == change.old
        assert change.old != change.new
        if change.new is None:
            del rows[key]
        else:
            rows[key] = change.new


def rows_of(lookups: Lookups, served: ServedVersion) -> dict[object, object]:
    return {row["id"]: row for row in documents(lookups.rows(served).page(None, 99))}


@settings(
    max_examples=examples(4, matrix=12), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), max_size=7))
def test_folding_changes_from_the_beginning_gives_the_rows(
    tmp_path_factory: pytest.TempPathFactory, seed: int, steps: list[str]
) -> None:
    table = ChangingTable(tmp_path_factory.mktemp("lake"), seed)
    lookups = Lookups(table.made.lake, most_bytes=MEMORY)
    served = lookups.look().projections["report"]
    known: dict[object, object] = {}
    for batch in lookups.all_rows(served, 0):
        folded(known, batch)
    assert known == rows_of(lookups, served)
    for what in steps:
        table.step(what)
        after = lookups.look().projections["report"]
        assert served.version is not None
        assert after.version is not None
        found = lookups.difference(after, served.version, after.version)
        assert found is not None, what
        changes = [change for batch in found.after(0) for change in batch]
        # Whoever broke off goes on with what is left, and has each change once.
        done = table.dice.randint(0, len(changes))
        again = lookups.difference(after, served.version, after.version)
        assert again is not None
        assert [c for batch in again.after(done) for c in batch] == changes[done:]
        folded(known, changes)
        assert known == rows_of(lookups, after), what
        served = after


def test_differences_that_are_too_large_or_of_another_key_are_none(tmp_path: Path) -> None:
    table = ChangingTable(tmp_path, 1)
    table.step("whole")
    table.step("merge")
    newest = DeltaTable(table.path)
    before = DeltaTable(table.path, version=newest.version() - 1)
    assert difference(before, newest, ["id"], MEMORY) is not None
    assert difference(before, newest, ["id"], 1) is None
    assert difference(before, newest, ["other"], MEMORY) is None
    lookups = Lookups(table.made.lake, most_bytes=MEMORY)
    served = lookups.look().projections["report"]
    assert served.version is not None
    gone = DeltaVersion(served.version + 99)
    assert lookups.difference(served, gone, served.version) is None
