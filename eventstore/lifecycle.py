"""What a stream shows of its events: the policy of a stream, and the window that follows from it.

    policy, last version, now -> the first version that is shown

A policy hides events from reads of the stream. The log keeps them: reads of all events,
subscriptions, Kafka and the tables see every event, those that changed a policy among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from kernel.errors import NotFound, StreamGone
from kernel.positions import Version

METADATA_SUFFIX = "$metadata"
"""`order-1` has its life recorded in `order-1$metadata`: same category, hence the same topic."""

ChangeType = Literal[
    "stream_metadata_set",
    "stream_truncated",
    "stream_deleted",
    "stream_tombstoned",
    "stream_archived",
]

CHANGE_TYPES: frozenset[str] = frozenset(get_args(ChangeType))
"""Types of the events that record such changes, in every category: no event of others has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPolicy:
    """What is hidden: versions below `truncate_before`, events recorded longer ago than
    `max_age_s`, all but the newest `max_count`.

    `deleted`: everything, until somebody appends. `tombstoned`: everything, and nobody may.
    Versions below `archived_up_to` are in the archive, which hides nothing.
    """

    deleted: bool = False
    tombstoned: bool = False
    truncate_before: int = 0
    max_age_s: int | None = None
    max_count: int | None = None
    archived_up_to: int = 0

    @property
    def closed(self) -> bool:
        """Whether an append to the stream is special."""
        return self.deleted or self.tombstoned


SHOWS_ALL = StreamPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """A change of a stream's policy, judged and made together with the event that records it.

    It needs the stream to be at `version`: what is decided to be hidden is what there is.
    """

    stream: str
    version: Version
    policy: StreamPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStanding:
    """A stream's last version and policy, and the last version of its metadata stream."""

    stream: str
    version: Version
    policy: StreamPolicy
    metadata_version: Version | None


def metadata_stream(stream: str) -> str:
    """Return the name of the stream that records the life of `stream`."""
    return stream + METADATA_SUFFIX


def is_metadata(stream: str) -> bool:
    """Return whether a stream records another one's life: only policies append to it."""
    return stream.endswith(METADATA_SUFFIX)


def first_shown(policy: StreamPolicy, version: int) -> int:
    """Return the first version that is shown of a stream at `version`, age left aside."""
    if policy.closed:
        return version + 1
    newest = 0 if policy.max_count is None else version + 1 - policy.max_count
    return max(policy.truncate_before, newest, 0)


def check_readable(standing: StreamStanding) -> None:
    """Return when a stream may be read. Raises `StreamGone`, or `NotFound` when it was deleted."""
    stream = standing.stream
    if standing.policy.tombstoned:
        raise StreamGone(f"stream {stream} was deleted for good", stream=stream)
    if standing.policy.deleted:
        raise NotFound(
            f"stream {stream} was deleted at version {standing.version}",
            remedy="Append to it to begin again: its versions go on.",
            stream=stream,
        )


def change_data(
    stream: str, version: int, policy: StreamPolicy, type_: ChangeType
) -> Mapping[str, object]:
    """Return the data of the event that records a policy: the whole of it, from now on.

    How much is in the archive is said only where it changes.
    """
    data: dict[str, object] = {
        "stream": stream,
        "version": version,
        "truncate_before": policy.truncate_before,
        "max_age_s": policy.max_age_s,
        "max_count": policy.max_count,
    }
    if type_ == "stream_archived":
        data["archived_up_to"] = policy.archived_up_to
    return data


def change_schema(category: str, type_: ChangeType) -> Mapping[str, object]:
    """Return the Avro schema of `change_data`."""
    whole = [{"name": name, "type": "long"} for name in ("version", "truncate_before")]
    if type_ == "stream_archived":
        whole.append({"name": "archived_up_to", "type": "long"})
    bounds = [
        {"name": name, "type": ["null", "long"], "default": None}
        for name in ("max_age_s", "max_count")
    ]
    return {
        "type": "record",
        "name": type_,
        "namespace": category,
        "fields": [{"name": "stream", "type": "string"}, *whole, *bounds],
    }
