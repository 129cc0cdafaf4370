"""What happens to the other lanes: each returns when the pipeline is through with it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import psycopg
import pyarrow.compute as pc
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from benchmarks.cdc.catch_up import await_cut, head
from benchmarks.cdc.world import World
from kernel.errors import Unavailable
from lake.datasets import dataset_of
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import COMMITTED
from pipeline.read.kafka_topics import KafkaTopics

BACKLOG, GARBAGE, UNKNOWN, LOST = "backlog", "garbage", "unknown", "lost"
BIG, CHANGING = "big", "changing"
_UNKNOWN_ID = 99_999
_PER_S = 200.0
_READ_S = 900.0
_MANY = 500


def transaction(world: World, rows: int) -> dict[str, float]:
    """Update all rows of a captured table by one transaction; wait until the table shows it.

    `made_at`, `logged_at` and `shown_at` are when it was committed, in the log and in the table.
    """
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        connection.execute(f"UPDATE {BIG} SET status = 'all', updated_at = now()".encode())
    committed = time.time()
    done = await_cut(world, head(world))
    return {
        "rows": float(rows),
        "visible_s": done.at.timestamp() - committed,
        "fold_s": done.timings_ms.get("fold", 0.0) / 1000,
        "made_at": committed,
        "logged_at": _last_of_many(world),
        "shown_at": done.at.timestamp(),
    }


def _last_of_many(world: World) -> float:
    """Return when the last epoch was committed that had many changes."""
    epochs = dataset_of(DeltaTable(world.lake.epochs)).to_table(
        columns=["at", "counts"], filter=pc.field("kind") == COMMITTED
    )
    counts = (json.loads(each).get("changes", 0) for each in epochs["counts"].to_pylist())
    moments = zip(epochs["at"].to_pylist(), counts, strict=True)
    return float(max(at.timestamp() for at, changes in moments if changes > _MANY))


def backlog(world: World, records: int) -> dict[str, float]:
    """Send so many records to a topic as fast as it takes them; wait until they are read."""
    began = time.time()
    _send(world, BACKLOG, (json.dumps({"n": n}).encode() for n in range(records)))
    _await_read(world, BACKLOG)
    return {"records": float(records), "read_s": time.time() - began}


def undecodable(world: World, seconds: float) -> dict[str, float]:
    """Send bytes that are no records of their lane, at a rate, for some seconds."""
    return _at_rate(world, GARBAGE, b"\xff{ no record", seconds)


def unknown_schema(world: World, seconds: float) -> dict[str, float]:
    """Send records of a schema that the registry does not have, at a rate, for some seconds."""
    return _at_rate(world, UNKNOWN, b"\0" + _UNKNOWN_ID.to_bytes(4, "big") + b"\2", seconds)


def ddl(world: World, rows: int, seconds: float) -> dict[str, float]:
    """Add, rename, widen and drop columns of a captured table of so many rows, for some seconds."""
    steps = (
        "ALTER TABLE {0} ADD COLUMN extra int DEFAULT 7",
        "ALTER TABLE {0} ALTER COLUMN extra TYPE bigint",
        "ALTER TABLE {0} RENAME COLUMN extra TO other",
        "ALTER TABLE {0} DROP COLUMN other",
    )
    deadline, done = time.monotonic() + seconds, 0
    with psycopg.connect(world.dsn, autocommit=True) as connection:
        while time.monotonic() < deadline:
            connection.execute(steps[done % len(steps)].format(CHANGING).encode())
            touched = f"UPDATE {CHANGING} SET status = 'd' WHERE id % 1000 = {done % 1000}"
            connection.execute(touched.encode())
            done += 1
            time.sleep(1.0)
    await_cut(world, head(world))
    return {"rows": float(rows), "statements": float(done)}


def lose(world: World, records: int) -> None:
    """Send records that Kafka lets go of before they are read; the pipeline is down."""
    _send(world, LOST, (b"{}" for _ in range(records)))
    admin = AdminClient({"bootstrap.servers": world.settings.required("kafka.bootstrap")})
    first = TopicPartition(LOST, 0, _end(world, LOST) - records // 2)
    for future in admin.delete_records([first]).values():
        future.result(60)


def read_one(world: World, topic: str) -> None:
    """Send one record, and wait until it is read: what is missing from then on is a gap."""
    _send(world, topic, iter([b"{}"]))
    _await_read(world, topic)


def _at_rate(world: World, topic: str, value: bytes, seconds: float) -> dict[str, float]:
    producer = Producer({"bootstrap.servers": world.settings.required("kafka.bootstrap")})
    count, began = round(_PER_S * seconds), time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number / _PER_S - time.monotonic()))
        producer.produce(topic, value)
        producer.poll(0)
    producer.flush(60)
    return {"records": float(count)}


def _send(world: World, topic: str, values: Iterator[bytes]) -> None:
    producer = Producer(
        {
            "bootstrap.servers": world.settings.required("kafka.bootstrap"),
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    for value in values:
        producer.produce(topic, value)
        producer.poll(0)
    producer.flush(300)


def _end(world: World, topic: str) -> int:
    ends = KafkaTopics(world.settings.required("kafka.bootstrap")).readable_ends({topic: [0]})
    return ends[topic]["0"]


def _await_read(world: World, topic: str) -> None:
    manifest, deadline = Manifest(world.lake, Tables()), time.monotonic() + _READ_S
    end = _end(world, topic)
    while time.monotonic() < deadline:
        last = manifest.last()
        if last is not None and last.end.get(topic, {}).get("0", 0) >= end:
            return
        time.sleep(0.2)
    raise Unavailable(f"{topic} was not read")
