"""Times of Kafka records that no calendar has: a producer sets them as it likes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from pipeline.decode.records import Decoder, Router, decode_batches
from pipeline.read.driver_reads import RECORDS

LAST = datetime.max.replace(tzinfo=UTC)
FIRST = datetime.min.replace(tzinfo=UTC)
NOW = datetime(2026, 1, 2, 3, tzinfo=UTC)
_US = timedelta(microseconds=1)


class Nobody(Router):
    """Claims no topic."""

    def decoder(self, topic: str) -> Decoder | None:
        return None


def _micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _US


@pytest.mark.parametrize(
    ("micros", "kept"),
    [
        ([_micros(NOW)], [NOW]),
        ([2**62, _micros(NOW), -(2**62)], [LAST, NOW, FIRST]),
        ([], []),
    ],
)
def test_p9_a_time_beyond_the_calendar_is_the_last_or_the_first(
    micros: list[int], kept: list[datetime]
) -> None:
    n = len(micros)
    columns: list[list[object]] = [["t"] * n, [0] * n, [*range(n)], [*micros], *[[None] * n] * 3]
    records = pa.RecordBatch.from_arrays(
        [pa.array(c, i.type) for c, i in zip(columns, RECORDS, strict=True)], schema=RECORDS
    )
    found = pa.Table.from_batches(decode_batches(iter([records]), Nobody()))
    assert found["kafka_time"].to_pylist() == kept
