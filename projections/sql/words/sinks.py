"""`sink = 'topic:report'`: where the changes of a projection are sent, as it is declared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from projections.sql.words.places import Script

if TYPE_CHECKING:
    from projections.sql.words.options import StatementOptions

_TOPIC, _EVENT = "topic:", "event:"
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_CATEGORY = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
MOST_PARTITIONS = 1_000
EVENT_TYPES: Mapping[str, str] = {"insert": "raised", "update": "changed", "delete": "cleared"}
"""What an operation on a row is called as an event of a sink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """A Kafka topic that gets each change of a projection's rows once.

    `partitions`: what the statement says that the topic has; None where it says nothing.
    """

    topic: str
    partitions: int | None = None
    swapped = "the rows that differ, once, in the sink's next transaction"
    """What a swap of generations gives out, in words."""

    @property
    def target(self) -> str:
        """What the statement says, without its partitions."""
        return f"{_TOPIC}{self.topic}"

    @property
    def note(self) -> str:
        """What the plan says of it."""
        return (
            f"each change goes to the Kafka topic {self.topic} once, as Avro under its key: the new"
            " row, for a row that is gone a null (a tombstone); a swap of generations sends what"
            " differs"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSink:
    """A category of the event store in which each change of a projection's rows is one event."""

    category: str
    swapped = "the rows that differ, once, as events that no delivery sends"
    """What a swap of generations gives out, in words."""

    @property
    def target(self) -> str:
        """What the statement says."""
        return f"{_EVENT}{self.category}"

    @property
    def note(self) -> str:
        """What the plan says of it."""
        return (
            f"each change is an event of the category {self.category} once: raised with a new row,"
            " changed, cleared with the row that is gone; what a first look, a swap or a rollback"
            " tells is recorded, and no delivery sends it"
        )


Sink = TopicSink | EventSink


def sink_of(script: Script, given: StatementOptions, at: int) -> Sink | None:
    """Read the options of a sink; None where none is declared. Raises `InvalidRequest`."""
    text, partitions = given.text("sink"), given.text("sink_partitions")
    category = (text or "").removeprefix(_EVENT)
    if partitions is not None and (text is None or text.startswith(_EVENT)):
        raise script.refusal(
            "sink_partitions is said of no topic",
            at=given.place("sink_partitions", at),
            fix="Name the topic, too: sink = 'topic:NAME'.",
        )
    if text is None:
        return None
    if text.startswith(_EVENT) and _CATEGORY.fullmatch(category):
        return EventSink(category=category)
    name = text.removeprefix(_TOPIC)
    if not text.startswith(_TOPIC) or not _TOPIC_NAME.fullmatch(name) or name in (".", ".."):
        raise script.refusal(
            f"sink = '{text}' names no topic and no category of events",
            at=given.place("sink", at),
            fix="Write sink = 'topic:NAME' (letters, digits, '.', '_' and '-'), or sink = "
            "'event:CATEGORY' (small letters, digits and '_'), from which webhooks and mail are "
            "delivered, docs/how-to/deliver-events.md.",
        )
    return TopicSink(topic=name, partitions=_partitions_of(script, given, partitions, at))


def _partitions_of(
    script: Script, given: StatementOptions, text: str | None, at: int
) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= MOST_PARTITIONS:
        raise script.refusal(
            f"sink_partitions = '{text}' is no number of partitions",
            at=given.place("sink_partitions", at),
            fix=f"Write a whole number from 1 to {MOST_PARTITIONS}.",
        )
    return int(text)
