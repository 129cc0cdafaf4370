"""When a history can go on with its columns, and when it must be computed anew."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.history.shape import outgrown
from projections.run.captured_tables import CapturedTable
from projections.run.catalog import Deployment

HIDDEN = [("_seq_hi", pa.int64()), ("_epoch", pa.int64())]
TYPED = [("id", pa.int64()), ("name", pa.string()), ("_operation", pa.string()), *HIDDEN]
OWN = [("valid_from", pa.timestamp("us", "UTC")), ("_deleted", pa.bool_()), *HIDDEN]


@pytest.mark.parametrize(
    ("stored", "anew"),
    [
        ([("id", pa.int64()), ("name", pa.string())], False),
        ([("id", pa.int64())], False),
        ([("id", pa.int32()), ("name", pa.string())], True),
        ([("id", pa.int64()), ("called", pa.string())], True),
        ([("id", pa.int64()), ("name", pa.string()), ("_previous_key", pa.string())], False),
    ],
    ids=["the same", "one column more", "another type", "another name", "links"],
)
def test_columns_that_came_are_added_and_columns_that_changed_mean_anew(
    stored: list[tuple[str, pa.DataType]], anew: bool
) -> None:
    assert outgrown(pa.schema([*stored, *OWN]), pa.schema(TYPED)) is anew


def test_a_column_of_the_source_with_a_name_of_ours_is_known_by_its_other_name() -> None:
    typed = pa.schema([*TYPED, ("valid_from", pa.date32())])
    assert not outgrown(pa.schema([("data_valid_from", pa.date32()), *OWN]), typed)
    assert outgrown(pa.schema([("data_valid_from", pa.date64()), *OWN]), typed)


def test_histories_are_those_that_were_asked_for() -> None:
    tables = {
        "public.people": CapturedTable(keys=("id",), history=True),
        "public.orders": CapturedTable(keys=("id",)),
        "public.notes": CapturedTable(keys=(), history=True),
    }
    deployment = Deployment(
        version=1, captures={"shop": tables}, slots={}, sources={}, projections={}
    )
    assert deployment.histories() == ["shop.public.people"]
