"""Many changes decoded together are what they are decoded one by one (records of a connector)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.decode import ChangeDecoder
from lake.table_columns import DECODED
from pipeline.decode.records import Decoder, decode_batches
from pipeline.read.driver_reads import RECORDS
from tests.support.oracles.one_by_one import AnyTopic, OneByOne

KEPT = json.loads((Path(__file__).parent / "captured_records.json").read_text())
TIMES = 12
PLACE = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]


class Schemas:
    """The schemas of the kept records."""

    def schema(self, schema_id: int) -> str:
        return json.dumps(KEPT["schemas"][str(schema_id)])


def batch() -> pa.RecordBatch:
    """Every kept record many times over, so that there are many of a kind."""
    rows = [
        {
            "topic": kept["topic"],
            "partition": kept["partition"],
            "offset": kept["offset"] * TIMES + i,
            "timestamp": 0,
            "key": None if kept["key"] is None else bytes.fromhex(kept["key"]),
            "value": None if kept["value"] is None else bytes.fromhex(kept["value"]),
            "headers": None,
        }
        for kept in KEPT["records"]
        for i in range(TIMES)
    ]
    return pa.RecordBatch.from_pylist(rows, RECORDS)


def decoded(decoder: Decoder, records: pa.RecordBatch) -> pa.Table:
    found = decode_batches(iter([records]), AnyTopic(decoder))
    return pa.Table.from_batches(found, DECODED).sort_by(PLACE).combine_chunks()


@pytest.mark.parametrize("event_times", [{}, {"public.item": "price"}])
def test_many_are_decoded_as_one_is(event_times: dict[str, str]) -> None:
    decoder = ChangeDecoder("sample", "", Schemas(), event_times)
    records = batch()
    together = decoded(decoder, records)
    assert together.equals(decoded(OneByOne(decoder), records))
    assert {"change", "end"} <= set(together["kind"].to_pylist())


def test_changes_are_read_side_by_side_at_all() -> None:
    decoder = ChangeDecoder("sample", "", Schemas(), {})
    records = batch()
    item = records.filter(pa.compute.equal(records.column("topic"), "sample.public.item"))
    heads = [value[:5] for value in item.column("value").to_pylist()]
    alike = item.filter(pa.array([head == heads[0] for head in heads]))
    found = decoder.many("sample.public.item", alike)
    assert found is not None
    assert found.num_rows == alike.num_rows


def test_a_poisoned_record_does_not_take_its_neighbours_along() -> None:
    decoder = ChangeDecoder("sample", "", Schemas(), {})
    records = batch().to_pylist()
    place = next(i for i, r in enumerate(records) if r["topic"] == "sample.public.item")
    records[place]["value"] = records[place]["value"][:30]
    broken = pa.RecordBatch.from_pylist(records, batch().schema)
    together = decoded(decoder, broken)
    assert together.equals(decoded(OneByOne(decoder), broken))
    assert together["kind"].to_pylist().count("rejected") == 1
