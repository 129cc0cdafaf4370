"""Keys and values at the edge: times that Python cannot tell, numbers that only look like some."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.errors import InvalidRequest
from lake.layout import Lake
from projections.serve.row_changes import difference
from projections.serve.row_values import documents, key_of, shown
from tests.support.lake.handmade import HandMade, words

MOMENT = pa.timestamp("us", "UTC")
FAR = 253_402_300_800_000_000
"""The first microsecond of the year 10000."""


@pytest.mark.parametrize("kind", [MOMENT, pa.timestamp("us"), pa.date32()])
def test_a_cursor_is_read_back_whatever_its_year(kind: pa.DataType) -> None:
    dice = random.Random(7)
    most = 2**31 - 1 if kind == pa.date32() else 2**63 - 1
    numbers = [0, 1, -1, most, -most, *(dice.randint(-most, most) for _ in range(200))]
    if kind != pa.date32():
        numbers += [FAR, FAR - 1, *(dice.randint(-FAR, FAR) for _ in range(200))]
    column = pa.array(numbers, pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    rows = documents(pa.table({"k": column}))
    texts = [json.dumps(row, default=lambda value: value.isoformat()) for row in rows]
    keys = [key_of(text, [pa.field("k", kind)]) for text in texts]
    assert [key.places for key in keys] == [(number,) for number in numbers]
    assert [key.values[0] for key in keys] == [*column]


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("0001-01-01T00:00:00+14:00", -62_135_596_800_000_000 - 14 * 3_600_000_000),
        ("9999-12-31T23:59:59-14:00", FAR - 1_000_000 + 14 * 3_600_000_000),
    ],
)
def test_a_time_that_its_zone_puts_beyond_the_years_is_a_key(text: str, micros: int) -> None:
    assert key_of(text, [pa.field("k", MOMENT)]).places == (micros,)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.float64(), "1_0"),
        (pa.float64(), "\u0661"),
        (pa.float64(), " 1"),
        (pa.decimal128(10, 2), "1_0.5"),
        (pa.decimal128(10, 2), " 1"),
        (MOMENT, "2013-01-01T00:00:00.123456789Z"),
        (MOMENT, "2013"),
        (MOMENT, "999999-01-01T00:00:00Z"),
        (pa.date32(), "20130131"),
        (pa.date32(), "2013-02-30"),
    ],
)
def test_what_no_row_shows_is_no_key(kind: pa.DataType, text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no value of k"):
        key_of(text, [pa.field("k", kind)])


def test_times_beyond_the_years_are_shown_within_lists_maps_and_structs() -> None:
    far = pa.scalar(FAR, pa.int64()).cast(MOMENT)
    text = "10000-01-01T00:00:00.000000Z"
    listed = pa.array([[FAR], None], pa.list_(pa.int64())).cast(pa.list_(MOMENT))
    assert shown(pa.chunked_array([listed])) == [[text], None]
    struct = pa.StructArray.from_arrays([pa.array([far]), listed[:1]], ["at", "all"])
    assert shown(pa.chunked_array([struct])) == [{"at": text, "all": [text]}]
    mapped = pa.MapArray.from_arrays([0, 1], ["k"], pa.array([far]))
    assert shown(pa.chunked_array([mapped])) == [{"k": text}]


def test_a_nan_within_a_list_that_was_written_again_is_no_change(tmp_path: Path) -> None:
    made = HandMade(Lake.at(tmp_path))
    made.deploy("a")
    values: list[object] = [[float("nan"), 1.0], [2.0]]
    written = [values, values, [[1.0, 1.0], [2.0]]]
    versions = [
        made.run("a", words((1, "x"), (2, "y"), list=lists), made.epoch()) for lists in written
    ]
    path = made.lake.path("projection/a")
    first, again, changed = (DeltaTable(path, version=version) for version in versions)
    same, other = (difference(first, each, ["id"], 2**20) for each in (again, changed))
    assert same is not None
    assert other is not None
    assert (len(same), len(other)) == (0, 1)
