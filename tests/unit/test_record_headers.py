"""Headers of Kafka records: a name may occur twice, and one may have no value."""

from __future__ import annotations

import json

import pyarrow as pa

from pipeline.decode.records import Decoder, Router, decode_batches, kafka_records
from pipeline.read.driver_reads import RECORDS
from schemas.header_text import headers_of

TOLD = [("trace", b"a"), ("other", b"\xff"), ("trace", None), ('q"', b"b"), ("trace", b"")]


class Nobody(Router):
    """Claims no topic."""

    def decoder(self, topic: str) -> Decoder | None:
        return None


def _batch(told: list[tuple[str, bytes | None]] | None) -> pa.RecordBatch:
    headers = None if told is None else [{"key": k, "value": v} for k, v in told]
    row = {"topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "headers": headers}
    return pa.RecordBatch.from_pylist([row], schema=RECORDS)


def test_p8_each_header_is_kept_in_its_order() -> None:
    found = pa.Table.from_batches(decode_batches(iter([_batch(TOLD)]), Nobody()))
    (text,) = found["metadata"].to_pylist()
    assert headers_of(text) == TOLD
    assert json.loads(text).keys() == {"trace", "other", 'q"'}, "an object to whoever reads it"
    (record,) = kafka_records(_batch(TOLD))
    assert record.headers == {"trace": b"", "other": b"\xff", 'q"': b"b"}, "the last one counts"
    assert record.every_header == (*TOLD,)


def test_ordinary_headers_are_written_as_before() -> None:
    told = [("b", b"\x01"), ("a", b"")]
    found = pa.Table.from_batches(decode_batches(iter([_batch(told)]), Nobody()))
    assert found["metadata"].to_pylist() == [json.dumps({"b": "01", "a": ""})]
    assert headers_of(None) == headers_of("{}") == []
    (record,) = kafka_records(_batch(None))
    assert record.every_header == ()
