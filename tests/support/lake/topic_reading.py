"""One who reads a whole topic, committed transactions only."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


def records_of(bootstrap: str, topic: str, group: str) -> list[Message]:
    """Read all records of committed transactions, by partition in their order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    found: list[Message] = []
    try:
        partitions = consumer.list_topics(topic, 20).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        ended = 0
        while ended < len(partitions):
            message = consumer.poll(20)
            assert message is not None, f"Kafka does not give {topic}"
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
                continue
            found.append(message)
    finally:
        consumer.close()
    return sorted(found, key=lambda each: (each.partition() or 0, each.offset() or 0))
