"""What every `RowTasks` promises: executors find what the driver finds, for odd values too."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from kernel.errors import NotFound, TooLarge
from lake.collecting import Limit
from lake.datasets import dataset_of
from lake.executor_rows import RowTasks, SparkRows
from pipeline.verification import large_states
from pipeline.verification.hashing import LakeRows
from pipeline.verification.lake_state import LakeState, Layer
from pipeline.verification.large_states import LargeStates
from replay import large_tables
from replay.comparison import row_differences
from schemas.key_ranges import KeyColumn, KeyOrder, KeyRange
from tests.support.lake.numbered_rows import (
    TogetherIn,
    apart,
    broken,
    numbered,
    refused,
    sorted_rows,
)
from tests.support.lake.rows_here import RowsHere
from tests.support.services.tier import spark_group

ROWS = 60
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.string()),
        ("ratio", pa.float64()),
        ("small", pa.float32()),
        ("amount", pa.decimal128(20, 4)),
        ("whole", pa.decimal128(38, 0)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("many", pa.list_(pa.string())),
        ("deep", pa.list_(pa.list_(pa.int32()))),
        ("both", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("raw", pa.binary()),
        ("flag", pa.bool_()),
    ]
)
LIMIT = Limit(what="rows of a test", most_bytes=2**20)

pytestmark = pytest.mark.xdist_group(spark_group())


@pytest.fixture(params=["here", "spark"])
def tasks(request: pytest.FixtureRequest) -> RowTasks:
    if request.param == "here":
        return RowsHere()
    session: SparkSession = request.getfixturevalue("spark")
    return SparkRows(lambda: session)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several parts and buckets also of few rows."""
    monkeypatch.setattr(large_tables, "BUCKET_ROWS", 30)


class Answering:
    """Fails where executors leave something to the driver, which would find the same."""

    def __init__(self, tasks: RowTasks) -> None:
        self.tasks = tasks

    def of_parts(self, *asked: Any) -> Mapping[int, pa.Table]:
        found = self.tasks.of_parts(*asked)
        assert found is not None
        return found

    def of_buckets(self, *asked: Any) -> bool:
        assert self.tasks.of_buckets(*asked)
        return True


@pytest.fixture
def large(tasks: RowTasks) -> LargeStates:
    return LargeStates(most_bytes=0, tasks=Answering(tasks))


def row(number: int) -> dict[str, Any]:
    """Make a row of odd values; each column but the key's is null now and then, the key once."""
    values: dict[str, Any] = {
        "ratio": (float("nan"), float("inf"), -0.0, 0.0, number / 3)[number % 5],
        "small": (float("nan"), -0.0, number / 3)[number % 3],
        "amount": Decimal(number) / 16,
        "whole": Decimal(10**37) + number,
        "at": datetime(1900, 1, 1, 0, 0, 0, number, tzinfo=UTC),
        "local": datetime(9999, 12, 31, 23, 59, 59, number),  # noqa: DTZ001
        "day": date(1, 1, 1 + number % 28),
        "many": ["a", None, "ß", ""][: number % 5],
        "deep": [[number, None], [1, 2]][: number % 3],
        "both": {"a": number, "b": None},
        "raw": b"\0\xff" * (number % 4),
        "flag": number % 2 == 0,
    }
    kept = {
        name: value for place, (name, value) in enumerate(values.items()) if number % 13 != place
    }
    return {"id": None if number == 7 else number, "part": "ab\U0001f600"[number % 3], **kept}


def table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> DeltaTable:
    """Write rows as a table of three files."""
    for first in range(3):
        write_deltalake(path, pa.Table.from_pylist(rows[first::3], schema), mode="append")
    return DeltaTable(path)


def changed(rows: list[dict[str, Any]], number: int | None, **values: Any) -> list[dict[str, Any]]:
    return [{**each, **values} if each["id"] == number else each for each in rows]


ORIGINAL = [row(number) for number in range(ROWS)]
OTHERS: dict[str, list[dict[str, Any]]] = {
    "equal": ORIGINAL,
    "other nulls, signs and zeros": changed(
        changed(changed(ORIGINAL, 2, ratio=0.0), 10, many=[]), 12, flag=None
    ),
    "rows missing and rows added": [*ORIGINAL[5:], row(ROWS), row(ROWS + 1)],
    "every row": [{**each, "whole": Decimal(1)} for each in ORIGINAL],
    "a key of nulls that differs": changed(ORIGINAL, None, raw=b"other"),
    "a row twice": [*ORIGINAL, ORIGINAL[3]],
    "no rows": [],
}


REPEATS = {"every row", "a key of nulls that differs", "no rows", "equal", "a row twice"}


@pytest.mark.parametrize(
    "other",
    [pytest.param(name, marks=[pytest.mark.matrix] * (name in REPEATS)) for name in OTHERS],
)
def test_executors_find_the_rows_that_differ_as_the_driver_does(
    tmp_path: Path, large: LargeStates, other: str
) -> None:
    live, built = table(tmp_path / "live", ORIGINAL), table(tmp_path / "built", OTHERS[other])
    wanted = {"key": ("id", "part"), "columns": SCHEMA.names, "expect": "live.id = 2"}
    here = row_differences(live, built, **wanted)
    assert (here.missing + here.extra + here.differing + here.repeated_keys == 0) == (
        other == "equal"
    )
    assert row_differences(live, built, **wanted, large=large) == here


def test_a_row_that_both_tables_have_twice_is_found(tmp_path: Path, large: LargeStates) -> None:
    twice = [*ORIGINAL, ORIGINAL[3]]
    live, built = table(tmp_path / "live", twice), table(tmp_path / "built", twice)
    found = row_differences(live, built, key=("id", "part"), columns=SCHEMA.names, large=large)
    assert (found.repeated_keys, found.live_hash) == (2, found.built_hash)


def test_rows_of_other_types_are_compared_by_their_texts(
    tmp_path: Path, large: LargeStates
) -> None:
    live = table(tmp_path / "live", ORIGINAL)
    other = SCHEMA.set(0, pa.field("id", pa.int32())).set(4, pa.field("amount", pa.float64()))
    rows = [{**each, "amount": 1.5} for each in ORIGINAL]
    built = table(tmp_path / "built", rows, other)
    here = row_differences(live, built, key=("id", "part"), columns=SCHEMA.names)
    assert here.differing == ROWS
    assert here == row_differences(
        live, built, key=("id", "part"), columns=SCHEMA.names, large=large
    )


def test_more_rows_than_come_to_the_driver_are_looked_at_there(
    tmp_path: Path, large: LargeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, built = table(tmp_path / "live", ORIGINAL), table(tmp_path / "built", OTHERS["every row"])
    here = row_differences(live, built, key=("id", "part"), columns=SCHEMA.names)
    monkeypatch.setattr(large_tables, "MOST_KEYS", 4)
    assert here == row_differences(
        live, built, key=("id", "part"), columns=SCHEMA.names, large=large
    )


def layered(tmp_path: Path) -> LakeState:
    """Return a state with changes and deletions over its files."""
    base = dataset_of(table(tmp_path / "base", ORIGINAL))
    gone = pa.array([True, False, False])
    above = pa.Table.from_pylist([row(1), {**row(2), "raw": b"new"}, row(ROWS)], SCHEMA)
    under = pa.Table.from_pylist([{**row(2), "raw": b"old"}, row(20)], SCHEMA).drop_columns(["at"])
    return LakeState(
        key=("id", "part"),
        base=base,
        layers=(
            Layer(rows=under, deleted=None),
            Layer(rows=above.append_column("gone", gone), deleted="gone"),
        ),
    )


def test_executors_hash_ranges_and_rows_as_the_driver_does(
    tmp_path: Path, large: LargeStates
) -> None:
    state, columns = layered(tmp_path), tuple(sorted(SCHEMA.names))
    ordered = (KeyColumn(name="id", type="int8", order=KeyOrder.INTEGER),)
    here, there = LakeRows(state, columns, ordered), LakeRows(state, columns, ordered, large)
    for bounds, buckets in (((), 1), ((), 7), ((("10",), ("30",)), 1)):
        assert there.group_hashes(bounds, buckets) == here.group_hashes(bounds, buckets)
    within = KeyRange(low=("2",), high=("40",))
    assert there.group_hashes((), 3, within=within) == here.group_hashes((), 3, within=within)
    rows = dict(here.row_hashes(within=within, group=((), 3, 1)))
    assert dict(there.row_hashes(within=within, group=((), 3, 1))) == rows
    keys = [*rows][:4]
    assert there.column_hashes(within=within, keys=keys) == here.column_hashes(
        within=within, keys=keys
    )


def test_hashes_beyond_the_bound_are_made_by_the_driver(
    tmp_path: Path, large: LargeStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, columns = layered(tmp_path), tuple(sorted(SCHEMA.names))
    here = LakeRows(state, columns, None).group_hashes((), 7)
    monkeypatch.setattr(large_states, "HASHES", Limit(what="hashes of a test", most_bytes=10))
    assert LakeRows(state, columns, None, large).group_hashes((), 7) == here


def test_rows_come_by_part_or_by_bucket(tasks: RowTasks) -> None:
    assert tasks.of_parts(numbered, 3, LIMIT) == {n: numbered(n) for n in range(3)}
    assert tasks.of_parts(numbered, 0, LIMIT) == {}
    found: list[pa.Table] = []
    assert tasks.of_buckets(apart, 5, sorted_rows, 2, LIMIT, found.append)
    assert sorted(each["n"].to_pylist() for each in found) == [[0, 2, 4], [1, 3]]
    # Each answer comes alone where no two are below the limit.
    few = Limit(what="few rows of a test", most_bytes=2_000)
    found.clear()
    assert tasks.of_buckets(apart, 5, sorted_rows, 2, few, found.append)
    assert sorted(each["n"].to_pylist() for each in found) == [[0, 2, 4], [1, 3]]


def test_errors_of_ours_are_raised_and_others_leave_it_to_the_driver(tasks: RowTasks) -> None:
    found: list[pa.Table] = []
    with pytest.raises(NotFound, match="not there"):
        tasks.of_parts(refused, 3, LIMIT)
    with pytest.raises(NotFound, match="not there"):
        tasks.of_buckets(TogetherIn(refused), 3, sorted_rows, 2, LIMIT, found.append)
    assert tasks.of_parts(broken, 3, LIMIT) is None
    assert not tasks.of_buckets(TogetherIn(broken), 3, sorted_rows, 2, LIMIT, found.append)
    assert not tasks.of_buckets(apart, 3, broken, 2, LIMIT, found.append)
    assert found == []


def test_no_more_rows_come_than_the_limit_allows(spark: SparkSession) -> None:
    with pytest.raises(TooLarge, match="few rows"):
        SparkRows(lambda: spark).of_parts(numbered, 3, Limit(what="few rows", most_bytes=10))
