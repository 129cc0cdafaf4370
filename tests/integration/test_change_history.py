"""History of captured tables: every committed change, in commit order, whatever came how."""

from __future__ import annotations

import random
from collections.abc import Sequence

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kernel.errors import InvalidRequest
from lake.layout import Lake
from pipeline.history.shape import HistoryOf
from tests.architecture.tree import ROOT
from tests.docs.markdown import blocks
from tests.support.lake.kept_history import Form, KeptHistory
from tests.support.oracles.change_facts import Fact, Version, Writer, expected, truncates, typed

PEOPLE = HistoryOf(
    name="history/shop.public.people",
    typed="typed/shop.public.people",
    key=("id",),
    identity=("id",),
    by_row=False,
    truncates="typed/shop._truncates",
    table="public.people",
)


class World(KeptHistory):
    """The history of a small table."""

    def take(self, facts: Sequence[Fact], *, wide: int = 0) -> None:
        rows = typed(facts, self.epoch + 1)
        for number in range(wide):
            rows = rows.append_column(f"c{number}", pa.array(["x"] * rows.num_rows))
        self.fold(rows, truncates(facts, self.epoch + 1))

    def versions(self) -> list[Version]:
        return [{n: v for n, v in row.items() if n != "_epoch"} for row in self.rows()]


def work(seed: int, transactions: int) -> list[list[Fact]]:
    """A snapshot, transactions, and another snapshot among them that saw other than was known."""
    writer = Writer(chance=random.Random(seed))
    done = [writer.snapshot({0: "ann", 1: "bob"})]
    done += [writer.transaction() for _ in range(transactions)]
    seen = dict(list(writer.rows.items())[:4])
    done.append(writer.snapshot(seen | {0: "healed"}, later=True))
    return done + [writer.transaction() for _ in range(transactions)]


@pytest.mark.parametrize(
    ("seed", "form"),
    [
        (1, Form.DRIVER),
        pytest.param(1, Form.COLLECTED, marks=pytest.mark.matrix),
        pytest.param(2, Form.EXECUTORS, marks=pytest.mark.matrix),
    ],
)
def test_p6_history_equals_a_walk_through_the_transactions(
    seed: int, form: Form, spark: SparkSession, lake: Lake
) -> None:
    done = work(seed, 90)
    world = World(spark, lake, PEOPLE, form)
    for start in range(0, len(done), 50):
        world.take([fact for part in done[start : start + 50] for fact in part])
    facts = [fact for part in done for fact in part]
    assert world.versions() == expected(facts)
    # What the seeds are for.
    assert {fact.operation for fact in facts} == set("rcudt")
    assert any(row["_previous_key"] for row in world.versions())


@pytest.mark.matrix
@pytest.mark.timeout(240, func_only=True)
@pytest.mark.parametrize("form", [Form.DRIVER, Form.COLLECTED])
def test_a_table_of_many_columns_has_a_history(form: Form, spark: SparkSession, lake: Lake) -> None:
    done = work(3, 4)
    world = World(spark, lake, PEOPLE, form)
    for facts in (done[:5], done[5:]):
        world.take([fact for part in facts for fact in part], wide=40)
    rows = [{n: v for n, v in row.items() if n[0] != "c"} for row in world.versions()]
    assert rows == expected([fact for part in done for fact in part])


def test_a_late_snapshot_opens_versions_only_where_it_differs(
    spark: SparkSession, lake: Lake
) -> None:
    writer = Writer(chance=random.Random(0))
    first = writer.snapshot({1: "ann", 2: "bob", 3: "cy"})
    writer.number, writer.second = 1, 10
    changed = Fact(operation="u", id=3, name="dan", transaction=2, second=20, hi=2, lo=1, lsn=7)
    world = World(spark, lake, PEOPLE)
    world.take([*first, changed])
    unchanged = {row["id"]: row for row in world.versions()}[1]
    # Read between the transactions, folded after both.
    world.take(writer.snapshot({1: "ann", 2: "mended", 3: "cy"}, later=True))
    assert [(r["id"], r["name"], r["_transaction"]) for r in world.versions()] == [
        (1, "ann", None),
        (2, "bob", None),
        (2, "mended", None),
        (3, "cy", None),
        (3, "dan", "2"),
    ]
    epochs = dict(zip(*world.table().select(["name", "_epoch"]).to_pydict().values(), strict=True))
    assert epochs["ann"] == 1, "an unchanged row is not even written again"
    assert unchanged in world.versions()


@pytest.mark.matrix
def test_a_key_is_followed_through_its_changes_by_any_engine(
    spark: SparkSession, lake: Lake
) -> None:
    writer = Writer(chance=random.Random(0))
    facts = writer.snapshot({1: "ann", 2: "bob"})
    moves = [(1, 7), (7, 9), (2, 1)]
    for number, (old, new) in enumerate(moves, start=1):
        name = "ann" if new > 1 else "bob"
        at = {"transaction": number, "second": number, "hi": number, "lsn": number}
        facts.append(Fact(operation="d", id=old, name=None, lo=1, **at))
        facts.append(Fact(operation="c", id=new, name=name, lo=2, **at))
    at = {"transaction": 4, "second": 4, "hi": 4}
    facts.append(Fact(operation="u", id=9, name="amy", lo=1, lsn=8, **at))
    # This one deletes and inserts: two statements, two LSNs, no link.
    facts.append(Fact(operation="d", id=1, name=None, lo=2, lsn=9, **at))
    facts.append(Fact(operation="c", id=5, name="eve", lo=3, lsn=10, **at))
    world = World(spark, lake, PEOPLE)
    world.take(facts)
    assert world.versions() == expected(facts)
    people = world.table()
    page = ROOT / "docs/reference/capture.md"
    (past,) = [b.text for b in blocks(page) if b.language == "sql" and "past" in b.text]
    found = [row[:2] for row in duckdb.sql(past).fetchall()]
    assert found == [(1, "ann"), (7, "ann"), (9, "ann"), (9, "amy")]
    assert [r["_previous_key"] for r in world.versions() if r["id"] == 5] == [None]
    assert people.num_rows == len(world.versions())


def test_a_table_without_a_key_has_no_history(spark: SparkSession, lake: Lake) -> None:
    keyless = HistoryOf(name="history/x", typed="typed/x", key=(), identity=(), by_row=False)
    with pytest.raises(InvalidRequest, match="needs a key"):
        KeptHistory(spark, lake, keyless).fold(typed([], 1))
