"""AUTO CDC flows on Spark and Delta: what the model says, whatever came when and in what batch."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession, functions

from kernel import failpoints
from kernel.clock import ManualClock
from kernel.errors import Conflict, Incompatible, InvalidRequest, LeaseLost, SequenceReused
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from projections.auto_cdc import TYPED_COLUMNS, AutoCdcFlow, create_auto_cdc_flow
from projections.auto_cdc.tables import FlowTables, Place
from tests.support.oracles.cdc_flows import Kind, Row, Said, expected
from tests.support.oracles.change_facts import Fact, typed

SCHEMA = "id INT, name STRING, city STRING, seq BIGINT, op STRING"
NOW = datetime(2013, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _no_failpoint_stays() -> Iterator[None]:
    yield
    failpoints.disarm()


def changes(spark: SparkSession, said: Sequence[Said]) -> DataFrame:
    rows = [(s.key, s.name, s.city, s.sequence, s.op) for s in said]
    return spark.createDataFrame(rows, SCHEMA)


def flow(lake: Lake, source: DataFrame | str, **given: Any) -> AutoCdcFlow:
    """Make a flow with the arguments that most tests share."""
    arguments: dict[str, Any] = {
        "target": "projection/people",
        "keys": ["id"],
        "sequence_by": "seq",
        "apply_as_deletes": "op = 'd'",
        "except_column_list": ["seq", "op"],
        "lake": lake,
        "clock": ManualClock(NOW),
    }
    return create_auto_cdc_flow(source=source, **(arguments | given))


def rows_of(path: str) -> list[Row]:
    rows = pl.read_delta(path).to_dicts()
    return sorted(rows, key=lambda row: (row["id"], str(row.get("__START_AT")).zfill(9)))


def some(seed: int, count: int, keys: int, *, truncates: bool = False) -> list[Said]:
    chance = random.Random(seed)
    made = [
        Said(
            key=chance.randrange(keys),
            sequence=chance.randrange(40),
            op=chance.choice("uuuuuud"),
            name=chance.choice([None, "a", "b"]),
            city=chance.choice([None, "x", "y"]),
        )
        for _ in range(count)
    ]
    if truncates:
        made[count // 2] = Said(key=None, sequence=12, op="t")
    return made


KINDS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "latest, truncated, from executors": (
        Kind(truncates=True),
        {"apply_as_truncates": "op = 't'", "bounded_rows": 0},
    ),
    "latest, partial": (
        Kind(partial=("city",)),
        {"ignore_null_updates_column_list": ["city"], "stored_as_scd_type": "1"},
    ),
    "versions, partial, one tracked": (
        Kind(scd_type=2, partial=("name", "city"), tracked=("city",)),
        {
            "stored_as_scd_type": 2,
            "ignore_null_updates": True,
            "track_history_except_column_list": ["name"],
        },
    ),
}


@pytest.mark.matrix
@pytest.mark.parametrize("name", KINDS)
def test_p6_late_and_repeated_changes_become_what_the_model_says(
    name: str, spark: SparkSession, lake: Lake
) -> None:
    kind, arguments = KINDS[name]
    said = some(7, 240, 30, truncates=kind.truncates)
    for batch in (said[:150], said[100:]):
        done = flow(lake, changes(spark, batch), **arguments).run()
    assert done.changes == 140
    assert rows_of(lake.path("projection/people")) == expected(kind, said)


@pytest.mark.matrix
@pytest.mark.parametrize("scd_type", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_columns_may_be_called_as_ours_were(spark: SparkSession, lake: Lake, scd_type: int) -> None:
    """Those that only pass through our queries begin with two underscores, and are refused."""
    # Of two changes of one place the content decides, which is another one with more columns.
    said = [*{(each.key, each.sequence): each for each in some(7, 60, 10)}.values()]
    rows = changes(spark, said).withColumnRenamed("name", "_refused")
    rows = rows.withColumnRenamed("city", "_known")
    others = ("loser", "r", "last", "best", "newest", "since", "before", "life", "bound", "there")
    for name in (*others, "partial", "said_0"):
        rows = rows.withColumn(f"_{name}", rows["_refused"])
    flow(lake, rows, stored_as_scd_type=scd_type).run()
    called = {"_refused": "name", "_known": "city"}
    found = [
        {called.get(n, n): value for n, value in row.items() if n in called or n[:1] != "_"}
        | {n: value for n, value in row.items() if n[:2] == "__"}
        for row in rows_of(lake.path("projection/people"))
    ]
    assert found == expected(Kind(scd_type=scd_type), said)
    ours = rows.withColumnRenamed("_refused", "__Refused")
    with pytest.raises(InvalidRequest, match="Penstock's own"):
        flow(lake, ours, target="projection/others").run()


@pytest.mark.matrix
def test_what_cannot_be_used_is_in_quarantine_once(spark: SparkSession, lake: Lake) -> None:
    first = [Said(key=1, sequence=5, name="ann"), Said(key=None, sequence=1, name="nobody")]
    flow(lake, changes(spark, first)).run()
    second = [
        Said(key=1, sequence=5, name="eve"),
        Said(key=2, sequence=None, name="never"),
        *first,
    ]
    made = flow(lake, changes(spark, second))
    made.run()
    version = DeltaTable(made.place.path).version()
    assert made.run().version == version + 1
    refused = pl.read_delta(made.quarantine).to_dicts()
    winner = max(first[0], second[0], key=lambda said: said.content)
    loser = {"ann", "eve"} - {winner.name}
    assert rows_of(made.place.path) == [{"id": 1, "name": winner.name, "city": None}]
    assert {(r["reason"], json.loads(r["change"])["name"]) for r in refused} == {
        ("null_key", "nobody"),
        ("null_sequence", "never"),
        ("sequence_reused", *loser),
    }
    assert len(refused) == 3
    strict = flow(lake, changes(spark, second), on_reused_sequence="error")
    with pytest.raises(SequenceReused, match="sequence of another change"):
        strict.run()


@pytest.mark.matrix
def test_a_delete_keeps_a_late_row_away_until_its_tombstone_is_old(
    spark: SparkSession, lake: Lake
) -> None:
    clock = ManualClock(NOW)
    dead = changes(spark, [Said(key=1, sequence=9, op="d")])
    late = changes(spark, [Said(key=1, sequence=3, name="ghost")])
    for source in (dead, late):
        made = flow(lake, source, clock=clock)
        made.run()
    assert rows_of(made.place.path) == []
    made.tend()
    assert pl.read_delta(made.place.facts)["__deleted"].to_list() == [True]
    clock.set(NOW + timedelta(days=3))
    made.tend()
    assert pl.read_delta(made.place.facts).is_empty()
    flow(lake, late, clock=clock).run()
    assert [row["name"] for row in rows_of(made.place.path)] == ["ghost"]


def test_a_crash_between_the_two_commits_loses_nothing(spark: SparkSession, lake: Lake) -> None:
    said = some(3, 40, 8)
    kind = Kind(scd_type=2)
    unusable = [Said(key=None, sequence=n) for n in (1, 2, 3)]
    failpoints.arm(failpoints.AUTO_CDC_AFTER_REFUSED)
    failpoints.arm(failpoints.AUTO_CDC_AFTER_FACTS)
    for number, batch in enumerate((said[:10], said[10:20])):
        source = changes(spark, [*batch, unusable[number]])
        with pytest.raises(failpoints.Crash):
            flow(lake, source, stored_as_scd_type=2).run()
    # Not the same batch again, but another one: what was taken is followed all the same.
    made = flow(lake, changes(spark, [*said[:10], *said[20:], unusable[2]]), stored_as_scd_type=2)
    made.run()
    assert rows_of(lake.path("projection/people")) == expected(kind, said)
    refused = pl.read_delta(made.quarantine).filter(pl.col("reason") == "null_key")
    assert refused.height == len(unusable)


def test_two_runs_at_one_moment_do_not_both_believe_that_they_wrote(lake: Lake) -> None:
    tables = Tables()
    flows = FlowTables(Place(name="t", path=lake.path("t")), tables)
    theirs = pa.table({"__id": ["theirs"], "__epoch": pa.array([1], pa.int64())})
    ArrowWriter(tables).append(flows.place.facts, theirs, Guard("auto_cdc/t", Epoch(1)))
    flows.own(Epoch(1), theirs)
    with pytest.raises(LeaseLost, match="another run"):
        flows.own(Epoch(1), pa.table({"__id": ["ours"]}))


@pytest.mark.matrix
def test_a_typed_table_is_followed_as_a_stream_and_once_means_once(
    spark: SparkSession, lake: Lake
) -> None:
    writer = ArrowWriter(Tables())
    source = "typed/shop.public.people"

    def append(epoch: int, *facts: Fact) -> None:
        rows = typed(facts, epoch)
        writer.append(lake.path(source), rows, Guard(source, Epoch(epoch)))

    def fact(operation: str, id_: int, name: str | None, hi: int) -> Fact:
        return Fact(
            operation=operation, id=id_, name=name, transaction=hi, second=hi, hi=hi, lo=1, lsn=hi
        )

    arguments: dict[str, Any] = {
        "sequence_by": functions.struct("_seq_hi", "_seq_lo"),
        "apply_as_deletes": "_operation = 'd'",
        "except_column_list": list(TYPED_COLUMNS),
        "stored_as_scd_type": 2,
        "spark": spark,
    }
    append(1, fact("c", 1, "ann", 1), fact("c", 2, "bob", 2))
    followed = flow(lake, source, **arguments)
    assert followed.run().changes == 2
    assert followed.run().changes == 0
    append(2, fact("u", 1, "amy", 3), fact("d", 2, None, 4))
    assert followed.run().changes == 2
    rows = [(r["id"], r["name"], r["__END_AT"]) for r in rows_of(followed.place.path)]
    ends = {"_seq_hi": 3, "_seq_lo": 1}, {"_seq_hi": 4, "_seq_lo": 1}
    assert rows == [(1, "ann", ends[0]), (1, "amy", None), (2, "bob", ends[1])]
    backfill = changes(spark, [Said(key=7, sequence=1, name="old")])
    for changed in (1, 0):
        once = flow(lake, backfill, target="projection/once", name="backfill", once=True)
        assert once.run().changes == changed


@pytest.mark.matrix
def test_columns_that_come_later_are_added(spark: SparkSession, lake: Lake) -> None:
    flow(lake, changes(spark, [Said(key=1, sequence=1, name="ann")])).run()
    wider = changes(spark, [Said(key=2, sequence=2, name="bob")]).withColumn(
        "age", functions.lit(7)
    )
    made = flow(lake, wider)
    made.run()
    assert [(row["name"], row["age"]) for row in rows_of(made.place.path)] == [
        ("ann", None),
        ("bob", 7),
    ]


@pytest.mark.matrix
def test_what_contradicts_itself_or_the_target_is_refused_before_anything_is_written(
    spark: SparkSession, lake: Lake
) -> None:
    source = changes(spark, [Said(key=1, sequence=1)])
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"keys": []}, "keys is empty"),
        ({"keys": ["idd"]}, "did you mean id"),
        ({"column_list": ["id"]}, "exclude each other"),
        ({"except_column_list": ["id"]}, "leave out the key"),
        ({"sequence_by": "nothing"}, "cannot be computed"),
        ({"sequence_by": "map(id, id)"}, "has no order"),
        ({"stored_as_scd_type": 3}, "is 1 or 2"),
        ({"track_history_column_list": ["name"]}, "stored_as_scd_type = 2"),
        ({"stored_as_scd_type": 2, "apply_as_truncates": "op = 't'"}, "stored_as_scd_type = 1"),
        ({"name": "a/b"}, "no name of a flow"),
        ({"on_reused_sequence": "ignore"}, "quarantine or error"),
    )
    for given, message in wrong:
        with pytest.raises(InvalidRequest, match=message):
            flow(lake, source, **given).run()
    assert not DeltaTable.is_deltatable(lake.path("projection/people"))
    flow(lake, source).run()
    with pytest.raises(Incompatible, match="keys was"):
        flow(lake, source, keys=["name"]).run()
    source.write.format("delta").save(lake.path("projection/theirs"))
    with pytest.raises(Conflict, match="no target of AUTO CDC"):
        flow(lake, source, target="projection/theirs").run()


def test_sparks_own_arguments_are_ours() -> None:
    """Every argument of the function that Spark ships, by its name."""
    theirs = pipelines.create_auto_cdc_flow.__annotations__.keys() - {"return"}
    assert theirs <= create_auto_cdc_flow.__annotations__.keys()
