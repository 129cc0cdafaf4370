"""A change that cannot be read holds its table alone, all the way from PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from apps.pipeline.routing import TopicRouter
from apps.settings import Settings
from cdc.decode import ChangeDecoder
from kernel.errors import NotFound
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.quarantine import open_records
from pipeline.decode.records import Decoder
from pipeline.executor import Executor
from pipeline.installs.install_book import DECODE, WAIVE, InstallBook, InstallEntry
from projections.serve.quarantined_records import places_of
from schemas.registry import ConfluentRegistry, SchemaLookup
from tests.support.sources.mirroring import Mirror, mirrored

TABLES = ("public.account", "public.entry")
BANK = """
CREATE TABLE account (id bigint PRIMARY KEY, balance bigint);
CREATE TABLE entry (id bigint PRIMARY KEY, account bigint, amount bigint);
INSERT INTO account VALUES (1, 100), (2, 100);
"""
_MOVE = (
    "UPDATE account SET balance = balance + 5 WHERE id = 1",
    "INSERT INTO entry SELECT coalesce(max(id), 0) + 1, 1, 5 FROM entry",
)


@dataclass(frozen=True)
class Forgetful:
    """A registry that has lost every schema of which the text says something."""

    registry: SchemaLookup
    lost: list[str]

    def schema(self, schema_id: int) -> str:
        found = self.registry.schema(schema_id)
        if any(text in found for text in self.lost):
            raise NotFound(f"the registry has no schema {schema_id}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetfulRouter(TopicRouter):
    """Decodes with a registry that forgets."""

    lost: list[str] = field(default_factory=list)

    def decoder(self, topic: str) -> Decoder | None:
        found = TopicRouter.decoder(self, topic)
        assert isinstance(found, ChangeDecoder)
        return ChangeDecoder(
            source=found.source,
            topic_prefix=found.topic_prefix,
            schemas=Forgetful(ConfluentRegistry(self.registry_url), self.lost),
        )


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def bank(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    new_source: Callable[[str], str],
    lost: list[str],
) -> Iterator[Mirror]:
    with mirrored(stack, spark, lake, prefix, new_source(BANK), TABLES) as mirror:
        known = mirror.epochs.router
        mirror.epochs.router = ForgetfulRouter(
            prefix=known.prefix,
            registry_url=known.registry_url,
            captures=known.captures,
            lost=lost,
        )
        # What it has lost is known in this process alone.
        mirror.epochs.executor = Executor.DRIVER
        mirror.epochs.restart()
        mirror.catch_up()
        yield mirror


def decide(bank: Mirror, kind: str) -> None:
    """Decide about every record that waits."""
    waiting = open_records(bank.lake, Tables(), [])
    assert waiting is not None, "there are records"
    topics = sorted(set(waiting["topic"].to_pylist()))
    for topic in topics:
        own = waiting.filter([name == topic for name in waiting["topic"].to_pylist()])
        detail = {"places": places_of(own.to_pylist()), "by": "a test", "reason": "tried"}
        entry = InstallEntry(kind=kind, id=topic, source=bank.name, detail=detail)
        InstallBook(bank.lake, Tables()).put([entry])


@pytest.mark.parametrize("kind", [DECODE, pytest.param(WAIVE, marks=pytest.mark.matrix)])
def test_p5_p8_a_change_of_a_lost_schema_holds_its_table_alone(
    bank: Mirror, lost: list[str], kind: str
) -> None:
    lost.append('"note"')
    bank.execute("ALTER TABLE account ADD COLUMN note text")
    for _ in range(3):
        bank.execute(*_MOVE)
    bank.catch_up()
    assert set(bank.held()) == {"public.account"}
    assert bank.rows("public.account")["balance"].to_pylist() == [100, 100]
    assert bank.differing("public.entry") == []
    assert bank.rows("public.entry").num_rows == 3

    if kind == DECODE:
        decide(bank, DECODE)
        bank.run_until(lambda: not _undecided(bank), "it was tried")
        assert set(bank.held()) == {"public.account"}
    lost.clear()
    bank.execute(*_MOVE)
    bank.catch_up()
    decide(bank, kind)
    bank.run_until(lambda: not bank.held(), "the table goes on")
    assert bank.differing("public.entry") == []
    if kind == DECODE:
        bank.assert_equal()
    else:
        # The last change tells the whole row: what the waived ones said is in it.
        assert open_records(bank.lake, Tables(), []) is None
    bank.execute(*_MOVE)
    bank.catch_up()
    assert bank.differing("public.entry") == []


def _undecided(bank: Mirror) -> bool:
    return bank.epochs.ingest.undecided()


@pytest.mark.matrix
def test_p8_a_strangers_record_stops_nothing(bank: Mirror, stack: Settings) -> None:
    producer = Producer({"bootstrap.servers": stack.required("kafka.bootstrap")})
    prefix = f"{bank.placement.topic_prefix}{bank.name}"
    for topic in ("public.account", "transaction", "message"):
        producer.produce(f"{prefix}.{topic}", b"not Avro", partition=0)
    assert producer.flush(30) == 0
    for _ in range(2):
        bank.execute(*_MOVE)
    bank.catch_up()
    bank.assert_equal()
    assert bank.held() == {}
    waiting = open_records(bank.lake, Tables(), ["reason"])
    assert waiting is not None
    assert sorted(waiting["table"].to_pylist()) == ["_messages", "_transactions", "public.account"]
