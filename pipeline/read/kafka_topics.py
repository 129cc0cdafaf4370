"""Topics and their offsets, as the broker tells them. Needs no Spark."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from concurrent.futures import wait

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicMetadata,
)

from kernel.errors import Unavailable
from kernel.positions import TopicId
from kernel.retry import Backoff, retrying

TIMEOUT_S = 15.0
# A topic that was just made has no leader for a moment.
_PATIENCE = Backoff(attempts=8, base_s=0.2, cap_s=2.0)

_RECORD_LIMIT = "max.message.bytes"


class KafkaTopics:
    """Asks the broker for topics and offsets."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})

    def matching(self, pattern: str) -> dict[str, list[int]]:
        """Return the partitions of every topic whose whole name matches."""
        found, whole = self._listed(), re.compile(pattern)
        return {
            name: sorted(topic.partitions)
            for name, topic in sorted(found.items())
            if whole.fullmatch(name)
        }

    def ask(self) -> None:
        """Ask once whether the broker answers. Raises `Unavailable`."""
        self._listed()

    def _listed(self) -> dict[str, TopicMetadata]:
        try:
            return dict(self._admin.list_topics(timeout=TIMEOUT_S).topics)
        except KafkaException as error:
            raise Unavailable(f"Kafka at {self.bootstrap} does not answer: {error}") from error

    def ids(self, names: Collection[str]) -> dict[str, TopicId]:
        """Return the id and the partitions of each topic; one that is gone is left out."""
        return retrying(lambda: self._ids(names), backoff=_PATIENCE) if names else {}

    def of_source(self, prefix: str, source: str) -> dict[str, list[int]]:
        """Return the partitions of a captured source's topics; `prefix` is the workspace's."""
        return self.matching(rf"{re.escape(prefix + source)}\..+")

    def make(self, name: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Make a topic with the broker's own replication; one that is there stays as it is."""
        new = NewTopic(name, partitions, replication_factor=-1, config=dict(settings))
        try:
            for future in self._admin.create_topics([new], request_timeout=TIMEOUT_S).values():
                future.result(timeout=TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            if _code_of(error) == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            reason = str(error) or f"no answer within {TIMEOUT_S:.0f} s"
            raise Unavailable(
                f"topic {name} could not be made: {reason}",
                remedy=f"Make the topic {name} on the broker yourself; it is tried again.",
            ) from error

    def allow(self, names: Collection[str], record_bytes: int) -> tuple[str, ...]:
        """Raise `max.message.bytes` of topics that take less; return which, sorted.

        A topic that takes more stays as it is. Raises `Unavailable`, also where altering a topic
        is not allowed.
        """
        wanted = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(names)]
        if not wanted:
            return ()
        try:
            found = self._admin.describe_configs(wanted, request_timeout=TIMEOUT_S)
            smaller = tuple(
                topic.name
                for topic, told in found.items()
                if int(told.result(timeout=TIMEOUT_S)[_RECORD_LIMIT].value) < record_bytes
            )
            changes = [
                ConfigResource(
                    ResourceType.TOPIC,
                    name,
                    incremental_configs=[
                        ConfigEntry(
                            _RECORD_LIMIT,
                            str(record_bytes),
                            incremental_operation=AlterConfigOpType.SET,
                        )
                    ],
                )
                for name in smaller
            ]
            if changes:
                altered = self._admin.incremental_alter_configs(changes, request_timeout=TIMEOUT_S)
                for done in altered.values():
                    done.result(timeout=TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise Unavailable(
                f"{_RECORD_LIMIT} could not be raised to {record_bytes}: {error}",
                remedy=f"Set {_RECORD_LIMIT} of the topics on the broker yourself.",
            ) from error
        return tuple(sorted(smaller))

    def made(self, name: str) -> TopicId:
        """Return the id of a topic that was just made: not every broker knows it at once.

        Raises `Unavailable`.
        """

        def there() -> TopicId:
            found = self._ids([name]).get(name)
            if found is None:
                raise Unavailable(f"topic {name} is not there yet")
            return found

        return retrying(there, backoff=_PATIENCE)

    def earliest(self, topics: Mapping[str, list[int]]) -> dict[str, dict[str, int]]:
        """Return the first offset of each partition."""
        return retrying(lambda: self._offsets(topics, OffsetSpec.earliest()), backoff=_PATIENCE)

    def ends(self, topics: Mapping[str, list[int]]) -> dict[str, dict[str, int]]:
        """Return the next offset of each partition."""
        return retrying(lambda: self._offsets(topics, OffsetSpec.latest()), backoff=_PATIENCE)

    def readable_ends(self, topics: Mapping[str, list[int]]) -> dict[str, dict[str, int]]:
        """Return of each partition where readers of committed records come to its end."""
        return self._offsets(topics, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)

    def silent(self, topics: Mapping[str, list[int]]) -> dict[str, str]:
        """Return the topics of which the broker tells nothing just now, each with why.

        It is asked with patience. Raises `Unavailable` where it does not answer at all, or tells
        nothing of any of several: one leader that hangs lets all topics of a call wait.
        """
        told: dict[str, str] = {}

        def ask() -> None:
            told.clear()
            told.update(self._unanswered(topics) if topics else {})
            self._refuse(told)

        try:
            retrying(ask, backoff=_PATIENCE)
        except Unavailable:
            if not told or 1 < len(topics) == len(told):
                raise
        return told

    def _unanswered(self, topics: Mapping[str, list[int]]) -> dict[str, str]:
        # Offsets of partitions without a leader would be waited for in vain, those of others, too.
        found = self._leaderless(topics)
        there, unknown = self._described([topic for topic in topics if topic not in found])
        asked = {topic: topics[topic] for topic in there}
        return found | unknown | self._asked(asked, OffsetSpec.earliest())[1]

    def _leaderless(self, topics: Collection[str]) -> dict[str, str]:
        """Say of topics which of their partitions have no leader."""
        found = {}
        for name, topic in self._listed().items():
            without = [place for place, told in topic.partitions.items() if told.leader < 0]
            if without and name in topics:
                lost = [f"{name}/{place} has no leader" for place in sorted(without)]
                found[name] = ", ".join(lost[:3])
        return found

    def _ids(self, names: Collection[str]) -> dict[str, TopicId]:
        found, failed = self._described(names)
        self._refuse(failed)
        return found

    def _described(self, names: Collection[str]) -> tuple[dict[str, TopicId], dict[str, str]]:
        """Return the topics that are there, and of which others that cannot be told, with why."""
        found: dict[str, TopicId] = {}
        failed: dict[str, str] = {}
        if not names:
            return found, failed
        asked = self._admin.describe_topics(
            TopicCollection(sorted(names)), request_timeout=TIMEOUT_S
        )
        wait(asked.values(), timeout=TIMEOUT_S)
        for name, future in asked.items():
            try:
                told = future.result(timeout=0)
            except (KafkaException, TimeoutError) as error:
                if not _is_unknown(error):
                    # A future that is not done in time raises Python's own error, without a text.
                    reason = str(error) or f"no topics within {TIMEOUT_S:.0f} s"
                    failed[name] = f"{name}: {reason}"
                continue
            found[name] = TopicId(str(told.topic_id), len(told.partitions))
        return found, failed

    def _offsets(
        self,
        topics: Mapping[str, list[int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[str, dict[str, int]]:
        found, failed = self._asked(topics, spec, isolation)
        self._refuse(failed)
        return found

    def _asked(
        self,
        topics: Mapping[str, list[int]],
        spec: OffsetSpec,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
        """Return offsets, and the topics of which not all can be told, each with why."""
        wanted = {TopicPartition(t, p): spec for t, parts in topics.items() for p in parts}
        found: dict[str, dict[str, int]] = {}
        failed: dict[str, str] = {}
        if not wanted:
            return found, failed
        try:
            asked = self._admin.list_offsets(wanted, isolation_level=isolation)
        except KafkaException as error:
            raise Unavailable(f"Kafka at {self.bootstrap} does not answer: {error}") from error
        wait(asked.values(), timeout=TIMEOUT_S)
        for place, future in asked.items():
            try:
                offset = future.result(timeout=0).offset
            except (KafkaException, TimeoutError) as error:
                reason = str(error) or f"no offsets within {TIMEOUT_S:.0f} s"
                failed.setdefault(place.topic, f"{place.topic}/{place.partition}: {reason}")
            else:
                # A broker that begins may answer without an error, and without an offset.
                if offset < 0:
                    reason = f"{place.topic}/{place.partition}: it knows no offsets yet"
                    failed.setdefault(place.topic, reason)
                found.setdefault(place.topic, {})[str(place.partition)] = offset
        return found, failed

    def _refuse(self, failed: Mapping[str, str]) -> None:
        if failed:
            reason = next(iter(failed.values()))
            raise Unavailable(f"Kafka at {self.bootstrap} does not answer: {reason}")


def _is_unknown(error: Exception) -> bool:
    return _code_of(error) == KafkaError.UNKNOWN_TOPIC_OR_PART


def _code_of(error: Exception) -> int | None:
    cause = error.args[0] if error.args else None
    return int(cause.code()) if isinstance(cause, KafkaError) else None
