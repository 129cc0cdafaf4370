"""External topics on the real broker: declared, waited for, read once, joined, and lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel.errors import Conflict, Unavailable
from lake.layout import Lake
from lake.tables import Tables
from pipeline.read.gaps import reason
from projections.run.catalog import DeployedCatalog
from tests.support.lake.topic_stream import READING, TopicStream, ping, reading


@pytest.fixture
def stream(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, tmp_path: Path
) -> TopicStream:
    return TopicStream(stack, spark, lake, prefix, tmp_path)


def statements(pings: str, readings: str) -> str:
    return f"""
    CREATE SOURCE pings (device BIGINT, at TIMESTAMP, v INT) WITH (
      topic = '{pings}', format = 'json', key = device, event_time = at);
    CREATE SOURCE readings WITH (topic = '{readings}', format = 'avro');
    CREATE PROJECTION heard WITH (key = 'device') AS
    SELECT device, count(*) AS pings, max(at) AS last FROM STREAM pings GROUP BY device;
    CREATE PROJECTION known WITH (key = 'device') AS SELECT device, v FROM pings;
    CREATE PROJECTION warm WITH (key = 'place') AS
    SELECT r.kafka_offset AS place, r.celsius, p.v
    FROM STREAM readings r LEFT JOIN pings FOR SYSTEM_TIME AS OF r.kafka_timestamp p
    ON p.device = r.device;
    """


def test_p1_p8_a_topic_that_appears_after_its_declaration_is_read_once_and_projected(
    stream: TopicStream,
) -> None:
    name = stream.prefix.rstrip(".")
    pings, readings = f"{name}-pings", f"{name}-readings"
    stream.deploy(statements(pings, readings))
    with pytest.raises(Unavailable, match="no topic matches"):
        stream.run().start()
    assert stream.states() == {
        "pings": (f"waits; there is no topic {pings} yet", 0, 0, 0),
        "readings": (f"waits; there is no topic {readings} yet", 0, 0, 0),
    }
    stream.make(pings)
    stream.make(readings)
    schema_id = stream.registry.register(f"{readings}-value", json.dumps(READING))
    stream.send(pings, [ping(1, 5), ping(2, 6), b"garbage", ping("x", 7), ping(1, 4, 7)])
    stream.send(pings, [None], key=b"2")
    stream.send(readings, [reading(schema_id, 1, 21.5)])
    run = stream.run()
    run.start()
    try:
        stream.read(run, 7)
        stream.widen(pings, 2)
        stream.send(pings, [ping(3, 30)], partition=1)
        stream.read(run, 8)
    finally:
        run.stop()
    stream.project()
    assert [row[:2] for row in stream.rows("projection/heard", "device", "pings")] == [
        (1, 2),
        (2, 2),
        (3, 1),
    ], {s.name: s.error for s in stream.projecting.states.values()}
    assert stream.rows("projection/known", "device", "v") == [(1, 1), (3, 1)]
    assert stream.rows("projection/warm", "celsius", "v") == [(21.5, 1)]
    refused = stream.rows("quarantine/records", "partition", "offset", "reason")
    assert [(row[0], row[1]) for row in refused] == [(0, 2), (0, 3)]
    assert "expected a whole number (long), found the text 'x'" in refused[1][2]
    assert len(stream.rows("log/topics/pings", "partition", "offset")) == 5
    assert stream.states() == {"pings": ("runs", 5, 0, 2), "readings": ("runs", 1, 0, 0)}
    catalog = DeployedCatalog(stream.lake, Tables())
    with pytest.raises(Conflict, match="heard, known, warm read the source pings"):
        catalog.drop_source("pings")
    with pytest.raises(Conflict, match=f"topic {pings} is in the log of source pings"):
        stream.deploy(f"CREATE SOURCE again (a INT) WITH (topic = '{pings}', format = json);")

    stream.delete(pings)
    stream.make(pings)
    stream.send(pings, [ping(1, 40)])
    run = stream.run()
    run.start()
    try:
        assert "it is another topic now" in str(run.gaps["pings"][0])
    finally:
        run.stop()
    state, *_ = stream.states()["pings"]
    assert state.startswith(f"gap; {reason(run.gaps['pings'])}; ")
    assert "penstock source resnapshot pings" in state
    assert stream.states()["readings"] == ("runs", 1, 0, 0)
