"""What a batch asks of the registry: an id that it does not have is asked for once."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from apps.pipeline import routing
from apps.pipeline.routing import TopicRouter
from kernel.errors import NotFound
from lake.table_columns import REJECTED
from pipeline.read.driver_reads import RECORDS
from pipeline.read.kafka_records import decoded_here
from schemas.lookups import AskedOnce
from schemas.topic_records import AVRO, TopicShape
from schemas.wire import frame

UNKNOWN, TOPIC = 99_999, "readings"


@dataclass
class Nobody:
    """A registry that has no schema, and counts who asks."""

    url: str = ""
    asked: Counter[int] = field(default_factory=Counter)

    def schema(self, schema_id: int) -> str:
        self.asked[schema_id] += 1
        raise NotFound(f"no schema {schema_id}", remedy="none")


def test_records_of_an_unknown_schema_wait_for_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Nobody()
    monkeypatch.setattr(routing, "ConfluentRegistry", lambda _: registry)
    shape = TopicShape(source=TOPIC, topic=TOPIC, format=AVRO)
    router = TopicRouter(prefix="", registry_url="", captures={}, external={TOPIC: shape})
    now = datetime.now(UTC)
    records = pa.Table.from_pylist(
        [
            {"topic": TOPIC, "partition": 0, "offset": n, "timestamp": now, "value": value}
            for n, value in enumerate([frame(UNKNOWN, b"\2")] * 50)
        ],
        RECORDS,
    )
    for batch in (1, 2):
        rows = decoded_here(records, router)
        assert rows["kind"].to_pylist() == [REJECTED] * 50
        assert set(rows["reason"].to_pylist()) == {"no schema 99999"}
        assert registry.asked == {UNKNOWN: batch}, "the schema may have come since"


def test_a_lookup_travels_to_workers() -> None:
    once = AskedOnce(Nobody("there"))
    with pytest.raises(NotFound):
        once.schema(1)
    assert pickle.loads(pickle.dumps(once)).registry.url == "there"
