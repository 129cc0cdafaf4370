"""`sink = 'topic:report'`: where the changes of a projection are sent, as it is declared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from projections.sql.places import Script

if TYPE_CHECKING:
    from projections.sql.options import Options

_TOPIC = "topic:"
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
MOST_PARTITIONS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """A Kafka topic that gets each change of a projection's rows once.

    `partitions`: what the statement says that the topic has; None where it says nothing.
    """

    topic: str
    partitions: int | None = None

    @property
    def note(self) -> str:
        """What the plan says of it."""
        return (
            f"each change goes to the Kafka topic {self.topic} once, as Avro under its key: the new"
            " row, for a row that is gone a null (a tombstone); a swap of generations sends what"
            " differs"
        )


def sink_of(script: Script, given: Options, at: int) -> TopicSink | None:
    """Read the options of a sink; None where none is declared. Raises `InvalidRequest`."""
    text, partitions = given.text("sink"), given.text("sink_partitions")
    if text is None:
        if partitions is not None:
            raise script.refusal(
                "sink_partitions is said of no sink",
                at=given.place("sink_partitions", at),
                fix="Name the topic, too: sink = 'topic:NAME'.",
            )
        return None
    name = text.removeprefix(_TOPIC)
    if not text.startswith(_TOPIC) or not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise script.refusal(
            f"sink = '{text}' names no topic",
            at=given.place("sink", at),
            fix="Write sink = 'topic:NAME'; names of topics have letters, digits, '.', '_' and "
            "'-'. Webhooks and mail are files of deliveries, docs/how-to/deliver-events.md.",
        )
    if partitions is None:
        return TopicSink(topic=name)
    if not (partitions.isascii() and partitions.isdecimal()) or not (
        1 <= int(partitions) <= MOST_PARTITIONS
    ):
        raise script.refusal(
            f"sink_partitions = '{partitions}' is no number of partitions",
            at=given.place("sink_partitions", at),
            fix=f"Write a whole number from 1 to {MOST_PARTITIONS}.",
        )
    return TopicSink(topic=name, partitions=int(partitions))
