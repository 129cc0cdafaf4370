"""A projection's changes in a Kafka topic: each once, across swaps, rollbacks and new topics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from apps.settings import Setting, Settings
from lake.layout import Lake
from pipeline.read.kafka_topics import KafkaTopics
from projections.run.catalog import DROPPED
from service.standstills import of_pipeline
from tests.support.lake.handmade import words
from tests.support.lake.topic_sink import SinkWorld
from tests.support.services.waiting import until


@pytest.fixture
def world(stack: Settings, lake: Lake, prefix: str) -> Iterator[SinkWorld]:
    made = SinkWorld(stack, lake, prefix)
    made.deploy()
    yield made
    made.sinks.close()


def test_p10_each_change_is_in_the_topic_once_and_in_order(world: SinkWorld) -> None:
    assert not world.sinks.step()  # It has not run yet: there is not even a topic.
    world.first_run()
    world.send()
    # Two versions between two looks are two changes, not the sum of both.
    world.run(words((2, "B"), (3, "c")))
    world.run(words((2, "BB")))
    world.run(words((1, "a")), op="delete")
    world.run(words((3, "c")))  # Rewritten as it was.
    world.send()
    assert world.changes() == [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("update", 2, "B"),
        ("insert", 3, "c"),
        ("update", 2, "BB"),
        ("delete", 1, None),
    ]
    last = world.received()[-1]
    assert last.headers == {
        "penstock-operation": "delete",
        "penstock-epoch": "4",
        "penstock-generation": "1",
    }
    value = world.registry.latest(f"{world.topic}-value")
    assert value is not None
    assert [field["name"] for field in json.loads(value.schema)["fields"]] == ["id", "word"]
    state = world.sinks.documents()["report"]
    assert (state["records"], state["lag_s"], state["error"]) == (6, 0.0, None)


def test_p10_a_swap_and_a_rollback_send_what_differs_and_a_dropped_one_goes_on(
    world: SinkWorld,
) -> None:
    world.swap_and_roll_back()
    world.deploy(status=DROPPED)
    assert not world.sinks.step()
    assert not world.sinks.states
    world.deploy(generation=3)
    world.made.run("report", words((2, "b"), (9, "z")), world.made.epoch(head=2), generation=3)
    world.send()
    assert world.changes() == [
        ("insert", 1, "a"),
        ("insert", 2, "b"),
        ("delete", 1, None),
        ("insert", 3, "new"),
        ("insert", 1, "a"),
        ("delete", 3, None),
        ("delete", 1, None),
        ("insert", 9, "z"),
    ]
    assert [each.headers.get("penstock-generation") for each in world.received()][2:4] == ["2"] * 2


@pytest.mark.matrix
def test_a_topic_is_made_as_declared_and_refused_otherwise(world: SinkWorld) -> None:
    topics = KafkaTopics(world.stack.required("kafka.bootstrap"))
    world.deploy(", sink_partitions = '3'")
    world.first_run()
    world.send()
    assert topics.ids([world.topic])[world.topic].partitions == 3
    world.deploy(", sink_partitions = '2'")
    world.restart()
    assert not world.sinks.step()
    (told,) = of_pipeline({"sinks": world.sinks.documents()})
    assert (told.component, told.name) == ("sink", "report")
    assert told.cause == f"topic {world.topic} has 3 partitions, sink_partitions says 2"
    assert "Write sink_partitions = '3'" in told.command
    world.deploy()
    world.restart()
    world.send()
    assert sorted(world.changes()) == [("insert", 1, "a"), ("insert", 2, "b")]


@pytest.mark.matrix
def test_a_topic_that_was_made_again_gets_all_rows(world: SinkWorld) -> None:
    world.first_run()
    world.run(words((2, "B")))
    world.send()
    admin = AdminClient({"bootstrap.servers": world.stack.required("kafka.bootstrap")})
    for future in admin.delete_topics([world.topic]).values():
        future.result(timeout=30)
    topics = KafkaTopics(world.stack.required("kafka.bootstrap"))
    until(lambda: not topics.ids([world.topic]), "the topic is gone")
    world.restart()
    world.send()
    # All rows come in the order of the files that they are in.
    assert sorted(world.changes()) == [("insert", 1, "a"), ("insert", 2, "B")]


@pytest.mark.matrix
def test_columns_that_do_not_go_with_the_topic_stand_still_and_another_topic_gets_all(
    world: SinkWorld,
) -> None:
    world.first_run()
    world.send()
    more = words((1, "a"), (2, "b"), extra=[7, None])
    world.made.run("report", more, world.made.epoch(head=1))
    world.send()  # A column more is read by both sides.
    assert world.received()[-2].value == {"id": 1, "word": "a", "extra": 7}
    other = pa.table({"id": [1], "word": [5], "_epoch": pa.array([3], pa.int64())})
    world.made.run("report", other, world.made.epoch(head=1))
    while world.sinks.step():
        pass
    (told,) = of_pipeline({"sinks": world.sinks.documents()})
    assert f"do not go with what the topic {world.topic} had before" in told.cause
    assert "Declare another topic" in told.command
    world.topic += "_2"
    world.deploy()
    world.send()
    assert [each.value for each in world.received()] == [{"id": 1, "word": 5}]


@pytest.mark.matrix
def test_a_topic_with_the_changes_of_another_lake_is_refused(
    world: SinkWorld, tmp_path: Path
) -> None:
    world.first_run()
    world.send()
    other = replace(world, lake=Lake.at(tmp_path / "other"))
    other.deploy()
    other.first_run()
    assert not other.sinks.step()
    assert "has the changes of a table that was here before" in str(
        other.sinks.states["report"].error
    )


@pytest.mark.matrix
def test_a_record_that_kafka_refuses_stops_its_own_sink_alone(world: SinkWorld) -> None:
    world.settings.values["kafka.max_record_bytes"] = Setting(value=20_000, origin="test")
    world.restart()
    world.first_run()
    world.send()
    settings = {"cleanup.policy": "compact", "max.message.bytes": "10000"}
    KafkaTopics(world.stack.required("kafka.bootstrap")).make(f"{world.topic}_2", 1, settings)
    for length, refuses in ((30_000, "the client"), (15_000, "the broker")):
        if refuses == "the broker":
            world.topic += "_2"
            world.deploy()
        world.run(words((2, "".join(chr(97 + i * i % 26) for i in range(length)))))
        while world.sinks.step():
            pass
        (told,) = of_pipeline({"sinks": world.sinks.documents()})
        assert f"topic {world.topic} does not take a record" in told.cause, refuses
        assert "Raise kafka.max_record_bytes and the topic's max.message.bytes" in told.command
        transactions = world.sinks._transactions
        assert transactions is not None, "the others go on with the one that they had"
        assert not transactions.doubtful
    world.run(words((2, "short")))
    until(lambda: world.sinks.step() or world.sinks.states["report"].error is None, "it goes on")
    world.send()
    assert sorted(world.changes()) == [("insert", 1, "a"), ("insert", 2, "short")]
