"""What the driver's consumer says that is no record, and records that the client cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from confluent_kafka import KafkaError, Message

from pipeline.read import driver_reads
from pipeline.read.driver_reads import DriverReads

TOPIC = "t"


class Told:
    """A message of the client: a record, or an error of a topic or of none."""

    def __init__(
        self, offset: int | None, *, error: int | None = None, topic: str | None = TOPIC
    ) -> None:
        self._offset, self._topic = offset, topic
        self._error = None if error is None else KafkaError(error)
        self.named: list[tuple[str, bytes]] | Exception | None = None

    def topic(self) -> str | None:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int | None:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return b"x"

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_700_000_000_000

    def headers(self) -> list[tuple[str, bytes]] | None:
        if isinstance(self.named, Exception):
            raise self.named
        return self.named


class Consumer:
    """Hands out what the test has put into it."""

    def __init__(self, told: Sequence[Told]) -> None:
        self.told = list(told)
        self.closed = False

    def incremental_assign(self, places: object) -> None:
        pass

    def incremental_unassign(self, places: object) -> None:
        pass

    def list_topics(self, topic: str | None, timeout: float) -> None:
        pass

    def consume(self, most: int, timeout: float) -> list[Told]:
        taken, self.told = self.told[:most], self.told[most:]
        return taken

    def close(self) -> None:
        self.closed = True


def reads_of(monkeypatch: pytest.MonkeyPatch, *told: Told) -> tuple[DriverReads, Consumer]:
    consumer = Consumer(told)
    monkeypatch.setattr(driver_reads, "Consumer", lambda settings: consumer)
    monkeypatch.setattr(driver_reads, "PATIENCE_S", 0.05)
    return DriverReads("nowhere"), consumer


def read(reads: DriverReads, first: int, last: int) -> list[int] | None:
    found = reads.read({TOPIC: {"0": first}}, {TOPIC: {"0": last}}, most_bytes=2**20)
    return None if found is None else found["offset"].to_pylist()


@pytest.mark.parametrize("error", [KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._TRANSPORT])
def test_what_is_said_of_no_topic_is_passed_by(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    told = Told(None, error=error, topic=None)
    reads, _ = reads_of(monkeypatch, told, Told(0), told, Told(1))
    assert read(reads, 0, 2) == [0, 1]


def test_an_error_of_a_topic_leaves_the_range_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, consumer = reads_of(
        monkeypatch, Told(0), Told(None, error=KafkaError._AUTO_OFFSET_RESET), Told(1)
    )
    assert read(reads, 0, 2) is None
    assert consumer.closed


@pytest.mark.parametrize(
    "odd", [SystemError("not UTF-8"), UnicodeDecodeError("utf-8", b"", 0, 1, "")]
)
def test_headers_that_the_client_cannot_show_leave_the_range_to_spark(
    monkeypatch: pytest.MonkeyPatch, odd: Exception
) -> None:
    told = Told(1)
    told.named = odd
    reads, consumer = reads_of(monkeypatch, Told(0), told)
    assert read(reads, 0, 2) is None
    assert consumer.closed


def test_headers_are_those_that_the_client_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[list[tuple[str, bytes]] | None] = [
        [("a", b"x"), ("a", b"y"), ("n", cast(bytes, None)), ("", b"")],
        None,
        [],
        [("é", b"\xff")],
    ]
    told = [Told(offset) for offset in range(len(shown))]
    for each, named in zip(told, shown, strict=True):
        each.named = named
    found = reads_of(monkeypatch, *told)[0].read(
        {TOPIC: {"0": 0}}, {TOPIC: {"0": len(shown)}}, most_bytes=2**20
    )
    assert found is not None
    found.validate(full=True)
    assert found.schema == driver_reads.RECORDS
    pairs = [
        None if own is None else [(each["key"], each["value"]) for each in own]
        for own in found["headers"].to_pylist()
    ]
    assert pairs == shown


def test_headers_count_in_what_is_held() -> None:
    behind = Told(2)
    behind.named = [("h", b"x" * 1_000)]
    assert driver_reads._size(cast("Message", behind)) > 1_000 + 300


def test_the_end_of_a_partition_passes_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Told(3, error=KafkaError._PARTITION_EOF)
    reads, _ = reads_of(monkeypatch, Told(0), Told(1), end)
    assert read(reads, 0, 3) == [0, 1]
    assert read(reads, 3, 3) == []


def test_what_came_before_is_not_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, _ = reads_of(monkeypatch, Told(4), Told(5), Told(5), Told(6), Told(7))
    assert read(reads, 5, 7) == [5, 6]
    assert read(reads, 7, 8) == [7]
