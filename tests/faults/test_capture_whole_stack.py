"""Whatever dies while tables are captured: afterwards lake and source are equal, row for row.

A teller moves money all the time; each test breaks something on the whole stack, waits for
recovery, and asks for equality at one LSN (P4, P8), for money that is constant in the lake (P5),
and that the log has no row twice.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from kernel.errors import EXIT_UNHEALTHY
from kernel.positions import Epoch
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.read.kafka_topics import KafkaTopics
from stack.control import kill_part
from tests.support.services.waiting import until
from tests.support.services.whole_stack import ACCOUNTS, SOURCE, TABLES, Teller, WholeStack

pytestmark = pytest.mark.timeout(900)
BEAT = "SELECT pg_logical_emit_message(false, 'penstock.heartbeat', '')"
"""What the connector sends by itself every five seconds."""
MANY = 100_000
"""Rows of the transaction in whose middle Connect dies."""


@pytest.fixture
def bank(whole_bank: WholeStack) -> WholeStack:
    whole_bank.await_equal()
    until(lambda: whole_bank.health().get("gaps") == {}, "nothing is missing")
    return whole_bank


@contextmanager
def busy(bank: WholeStack, moves: int = 60) -> Iterator[Teller]:
    """Let the teller work before, while and after something happens."""
    teller = Teller(bank.dsn)
    teller.start()
    try:
        until(lambda: teller.done >= moves, "money moves", deadline_s=60)
        yield teller
        now = teller.done
        until(lambda: teller.done >= now + moves, "money goes on moving", deadline_s=120)
    finally:
        teller.finish()


def whole(bank: WholeStack) -> None:
    bank.await_equal()
    assert bank.accounts() == 100 * ACCOUNTS
    assert bank.doubled() == 0


def spoil_checkpoints(bank: WholeStack) -> None:
    """Write nonsense over the checkpoints of the running query: they are only scratch."""
    checkpoints = bank.workspace / ".penstock" / "checkpoints"
    damaged: list[Path] = []

    def found() -> bool:
        damaged[:] = [path for path in checkpoints.rglob("*") if path.is_file()]
        return bool(damaged)

    # Between two runs there is none.
    until(found, "a query runs, and has a checkpoint", deadline_s=60)
    for path in damaged:
        with suppress(FileNotFoundError):  # The query has come further since.
            path.write_bytes(b"\x00 not a checkpoint")


def poisoned(bank: WholeStack) -> set[bytes]:
    """Put a record that nobody can read into every partition of the source; return them."""
    bootstrap = bank.settings.required("kafka.bootstrap")
    topics = KafkaTopics(bootstrap).matching(rf"{SOURCE}\..+")
    assert len(topics) >= 3
    producer = Producer({"bootstrap.servers": bootstrap})
    sent = set()
    for topic, partitions in topics.items():
        for partition in partitions:
            value = f"poison {uuid.uuid4()}".encode()
            producer.produce(topic, value, key=b"\x00\x00\x00\xff\xffx", partition=partition)
            sent.add(value)
    assert producer.flush(30) == 0
    return sent


def kept(bank: WholeStack) -> set[bytes]:
    """Return the records in quarantine."""
    rows = Tables().read(bank.lake.quarantine, columns=["value"])
    return set() if rows is None else set(rows["value"].to_pylist())


def test_p4_p8_p11_whatever_dies_comes_back_and_nothing_is_lost(bank: WholeStack) -> None:
    """Every part dies once, two by two, the pipeline with its scratch spoilt, amid poison."""
    sent = poisoned(bank)
    with busy(bank) as teller:
        for parts in (("kafka", "registry"), ("postgres", "connect"), ("service", "pipeline")):
            if "pipeline" in parts:
                sent |= poisoned(bank)
                spoil_checkpoints(bank)
            bank.kill(*parts)
            now = teller.done
            until(lambda now=now: teller.done >= now + 50, "money moves", deadline_s=60)
    whole(bank)
    until(lambda: kept(bank) >= sent, "every poisoned record is kept", deadline_s=60)


@pytest.mark.matrix
def test_p8_a_quiet_pipeline_that_is_killed_makes_no_row_and_goes_on(bank: WholeStack) -> None:
    """Heartbeats alone come, before the kill and after it: none of them is worth a commit.

    The new process compares source and lake once, for which it leaves a mark in the source.
    """
    manifest = Manifest(bank.lake, Tables())
    before = _settled(bank)
    _beats_are_read(bank)
    assert _epoch(manifest) == before
    bank.kill("pipeline")
    after = _settled(bank)
    assert not [done for done in manifest.between(before, after) if done.counts.get("changes")]
    _beats_are_read(bank)
    assert _epoch(manifest) == after, "nothing happens, and nothing is written"
    with busy(bank, moves=5):
        pass
    whole(bank)
    assert _epoch(manifest) > after


@pytest.mark.matrix
@pytest.mark.parametrize("part", ["kafka", "postgres", "registry", "pipeline"])
def test_p4_a_part_that_is_killed_comes_back_and_nothing_is_lost(
    bank: WholeStack, part: str
) -> None:
    with busy(bank):
        bank.kill(part)
    whole(bank)


@pytest.mark.matrix
def test_p4_the_pipeline_dies_again_and_again(bank: WholeStack) -> None:
    with busy(bank) as teller:
        for _ in range(3):
            now = teller.done
            until(lambda now=now: teller.done >= now + 100, "money moves", deadline_s=60)
            bank.kill("pipeline")
    whole(bank)


@pytest.mark.matrix
def test_p5_connect_dies_amid_a_large_transaction(bank: WholeStack) -> None:
    topics = KafkaTopics(bank.settings.required("kafka.bootstrap"))
    places = {f"{SOURCE}.{TABLES[1]}": [0, 1]}
    insert = (
        f"INSERT INTO transfers (one, other, amount) SELECT 1, 1, 0"
        f" FROM generate_series(1, {MANY // 2})"
    )

    def arrived() -> int:
        return sum(topics.ends(places)[f"{SOURCE}.{TABLES[1]}"].values())

    with busy(bank):
        # Others commit while it is open; the connector reads them again when it goes on amid it.
        with psycopg.connect(bank.dsn) as connection:
            connection.execute(insert.encode())
            with busy(bank):
                pass
            connection.execute(insert.encode())
            before = arrived()
        until(lambda: arrived() > before + 500, "its first rows are in Kafka", deadline_s=120)
        bank.kill("connect")
    whole(bank)


@pytest.mark.matrix
def test_p9_records_that_expired_unread_are_a_named_state_with_a_way_back(
    bank: WholeStack,
) -> None:
    bootstrap = bank.settings.required("kafka.bootstrap")
    pid = bank.pid("pipeline")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        with busy(bank, moves=300):
            pass
        _await_captured(bank)
        # What retention does to who comes too late.
        names = KafkaTopics(bootstrap).matching(rf"{SOURCE}\.(public|transaction).*")
        ends = KafkaTopics(bootstrap).ends(names)
        places = [
            TopicPartition(topic, int(p), end) for topic, e in ends.items() for p, end in e.items()
        ]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for done in admin.delete_records(places).values():
            done.result(timeout=30)
    finally:
        killed = kill_part(bank.workspace, "pipeline")
    bank.revive("pipeline", besides=killed)
    gaps: dict[str, str] = {}

    def named() -> bool:
        gaps.update(bank.health().get("gaps", {}))
        return SOURCE in gaps

    until(named, "the gap has a name", deadline_s=180)
    said = gaps[SOURCE]
    assert "gone from Kafka before they were read" in said
    assert f"penstock source resnapshot {SOURCE} --yes" in said
    assert bank.command("source", "status", SOURCE, code=EXIT_UNHEALTHY)["gone"]

    with busy(bank):
        bank.command("source", "resnapshot", SOURCE, "--yes")
    until(lambda: bank.health().get("gaps") == {}, "the gap is closed", deadline_s=120)
    whole(bank)


def _epoch(manifest: Manifest) -> Epoch:
    """Return the newest epoch that the lake has, whatever the pipeline says."""
    found = manifest.last()
    assert found is not None
    return found.epoch


def _settled(bank: WholeStack) -> Epoch:
    """Wait until heartbeats pass without an epoch, for what starts has something to do at first."""
    seen: list[Epoch] = []

    def quiet() -> bool:
        _beats_are_read(bank)
        seen.append(_epoch(Manifest(bank.lake, Tables())))
        return seen[-3:] == [seen[-1]] * 3

    until(quiet, "epochs come to rest", deadline_s=180)
    return seen[-1]


def _beats_are_read(bank: WholeStack) -> None:
    """Let a heartbeat go all the way, until nothing of the source lies in Kafka unread."""
    with psycopg.connect(bank.dsn, autocommit=True) as connection:
        connection.execute(BEAT)
    _await_captured(bank)
    there_since = time.monotonic()

    def read() -> bool:
        if time.monotonic() < there_since + 2:
            return False  # The lag is looked at once a second: it may be of before the beat.
        lag = bank.health().get("sources", {}).get(SOURCE, {})
        return bool(lag) and lag["unknown"] is None and lag["records"] == 0

    until(read, "the pipeline has read all", deadline_s=120)


def _await_captured(bank: WholeStack) -> None:
    """Wait until Connect has everything that is committed now."""
    with psycopg.connect(bank.dsn, autocommit=True) as connection:

        def confirmed() -> bool:
            row = connection.execute(
                "SELECT confirmed_flush_lsn >= %s FROM pg_replication_slots"
                " WHERE slot_name LIKE %s",
                (target, f"penstock%{SOURCE}"),
            ).fetchone()
            return row is not None and bool(row[0])

        found = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
        assert found is not None
        (target,) = found
        until(confirmed, f"the slot confirms {target}", deadline_s=60)
