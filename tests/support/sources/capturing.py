"""Captured changes as a test sees them: read from Kafka, decoded, folded to tables."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from apps.capture import capture_site
from apps.settings import Settings
from cdc import capture, sources
from cdc.capture import SourceAccess
from cdc.connect import ConnectClient
from cdc.decode import ChangeDecoder
from cdc.options import TableOptions
from cdc.upkeep.lifecycle import allow_records
from kernel.positions import KafkaOffset
from pipeline.read.kafka_topics import KafkaTopics
from schemas.columns import PRESENT, UNCHANGED_COLUMNS, decode_rows, key_columns
from schemas.pg_exact import EXACT, carried_exact
from schemas.records import (
    Change,
    KafkaRecord,
    Operation,
    Rejected,
    SnapshotEnd,
    TransactionBegin,
    TransactionEnd,
)
from schemas.registry import ConfluentRegistry
from tests.support.services.waiting import until
from tests.support.sources.databases import leave
from tests.support.sources.source_database import SourceDatabase

SALT = "saltofthistest0123456789"


@dataclass(slots=True)
class Reader:
    """Reads all topics that begin with a prefix, from their beginning, each record once."""

    bootstrap: str
    prefix: str
    _consumer: Consumer | None = None
    _topics: KafkaTopics | None = None
    _parts: set[tuple[str, int]] = field(default_factory=set)
    _seen: dict[tuple[str, int], int] = field(default_factory=dict)

    def poll(self) -> Iterator[KafkaRecord]:
        """Yield what has come since the last call, up to the ends that the topics have now."""
        consumer = self._open()
        ends = self._ends()
        self._assign(consumer, ends.keys() - self._parts)
        pending = {part for part, end in ends.items() if self._seen.get(part, 0) < end}
        # A producer that was killed keeps its transaction open until its successor has started.
        deadline = time.monotonic() + 120
        while pending:
            assert time.monotonic() < deadline, f"no end of {sorted(pending)}"
            message = consumer.poll(1.0)
            if message is None:
                continue
            part = (message.topic(), message.partition())
            if message.error() is None:
                # Where somebody goes on writing, the end of the partition may never be reached.
                self._seen[part] = message.offset() + 1
                if self._seen[part] >= ends.get(part, 0):
                    pending.discard(part)
                yield _record(message)
            elif message.error().name() == "_PARTITION_EOF":
                # Markers of transactions take offsets: behind the last record only this is said.
                self._seen[part] = message.offset()
                if message.offset() >= ends.get(part, 0):
                    pending.discard(part)
            else:
                raise AssertionError(str(message.error()))

    def any_records(self) -> bool:
        """Return whether a row's topic has records by now, without reading them."""
        return any(
            end > 0 for (topic, _), end in self._ends().items() if topic.endswith(".accounts")
        )

    def close(self) -> None:
        """Leave the broker."""
        if self._consumer is not None:
            self._consumer.close()

    def _open(self) -> Consumer:
        if self._consumer is None:
            self._consumer = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": f"test-{uuid.uuid4().hex}",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": 20,
                }
            )
        return self._consumer

    def _ends(self) -> dict[tuple[str, int], int]:
        # Asked on a connection of its own: behind a fetch, the broker answers when that has waited.
        if self._topics is None:
            self._topics = KafkaTopics(self.bootstrap)
        found = self._topics.ends(self._topics.matching(re.escape(self.prefix) + ".*"))
        return {(t, int(p)): end for t, ends in found.items() for p, end in ends.items()}

    def _assign(self, consumer: Consumer, fresh: Set[tuple[str, int]]) -> None:
        if fresh:
            places = [TopicPartition(*part, OFFSET_BEGINNING) for part in sorted(fresh)]
            consumer.incremental_assign(places)
            self._parts |= fresh


def _record(message: Message) -> KafkaRecord:
    return KafkaRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=KafkaOffset(message.offset()),
        timestamp=datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC),
        key=message.key(),
        value=message.value(),
        headers={name: value or b"" for name, value in message.headers() or ()},
    )


@dataclass
class Captured(SourceDatabase):
    """A captured source under test, with every fact that has come from it."""

    settings: Settings
    source: sources.Source
    dsn: str
    connect: ConnectClient
    reader: Reader
    registry: ConfluentRegistry
    decoder: ChangeDecoder
    changes: list[tuple[KafkaRecord, Change]] = field(default_factory=list)
    transactions: list[TransactionEnd] = field(default_factory=list)
    snapshots: list[SnapshotEnd] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    @property
    def connector(self) -> str:
        """Name of the connector."""
        return f"{self.settings.name}-{self.source.name}"

    @property
    def access(self) -> SourceAccess:
        """What a start needs beside the declaration."""
        return SourceAccess(dsn=self.dsn, salt=SALT if self.source.hashes else "")

    def start(self) -> None:
        """Start it, or look whether it runs."""
        allow_records(capture_site(self.settings), self.source.name)
        capture.ensure(
            self.source, self.access, capture_site(self.settings).placement, self.connect
        )

    def tables(self) -> list[str]:
        """Return the tables that its connector reads."""
        config = self.connect.config(self.connector) or {}
        return config["table.include.list"].replace("\\", "").split(",")

    def remove(self) -> None:
        """Leave nothing behind in Connect and the database."""
        leave(self.settings, self.settings.name, self.source.name, self.dsn)
        self.reader.close()
        self.connect.close()
        self.registry.close()

    def read(self) -> None:
        """Take in what has come."""
        for record in self.reader.poll():
            match self.decoder(record):
                case Change() as change:
                    self.changes.append((record, change))
                case TransactionEnd() as end:
                    self.transactions.append(end)
                case SnapshotEnd() as end:
                    self.snapshots.append(end)
                case Rejected() as rejected:
                    self.rejected.append(rejected)
                case TransactionBegin() | None:
                    pass

    def await_snapshot(self) -> None:
        """Wait until the snapshot and all its rows are here."""

        def whole() -> bool:
            self.read()
            ends = {end.table: end.rows for end in self.snapshots}
            return None in ends and all(
                len(self.of(table, Operation.READ)) >= rows
                for table, rows in ends.items()
                if table is not None
            )

        until(whole, "the snapshot is whole", deadline_s=60)

    def await_stream(self) -> None:
        """Wait until everything committed before this call is here.

        A transaction of its own ends behind all others; the slot says so only seconds later.
        """
        mark = self.mark()

        def ended() -> bool:
            self.read()
            return any(end.commit_lsn > mark for end in self.transactions)

        until(ended, f"a transaction behind {mark} ends", deadline_s=60)
        # Rows are sent before the END of their transaction, but to other topics.
        self.read()

    def of(self, table: str, *operations: Operation) -> list[Change]:
        """Return the changes of a table, in the source's order."""
        found = [
            change
            for _, change in self.changes
            if change.table == table and (not operations or change.operation in operations)
        ]
        return sorted(found, key=lambda c: (not c.snapshot, c.commit_order, c.lsn, c.total_order))

    def current(self, table: str) -> pa.Table:
        """Fold the table's changes: one row per key, as the source has it."""
        rows: dict[tuple[object, ...], pa.Table] = {}
        for change in self.of(table):
            if change.operation is Operation.TRUNCATE:
                rows.clear()
                continue
            key = self._key(change)
            if change.operation is Operation.DELETE:
                rows.pop(key, None)
                continue
            rows[key] = _filled(self.row(change), rows.get(key))
        tables = list(rows.values())
        return pa.concat_tables(tables, promote_options="permissive") if tables else pa.table({})

    def row(self, change: Change) -> pa.Table:
        """Decode the after-image of a change."""
        schema = self.registry.schema(change.schema_id)
        return decode_rows([change.value], schema, "after").drop_columns([PRESENT])

    def differing(self, table: str) -> list[str]:
        """Return the columns in which the fold and the source's own SELECT differ."""
        return self.differences(table, self.current(table))

    def _key(self, change: Change) -> tuple[object, ...]:
        assert change.key_schema_id is not None
        schema = self.registry.schema(change.key_schema_id)
        row = decode_rows([change.key], schema, "self").to_pylist()[0]
        return tuple(row[name] for name in key_columns(schema))


def _filled(row: pa.Table, before: pa.Table | None) -> pa.Table:
    if UNCHANGED_COLUMNS not in row.column_names:
        return row
    (names,) = row[UNCHANGED_COLUMNS].to_pylist()
    assert before is not None, f"columns {names} were left alone, but nothing came before"
    for name in names:
        earlier = before[name] if name in before.column_names else pa.nulls(1, pa.string())
        if name == EXACT:
            (own,), (old,) = row[EXACT].to_pylist(), earlier.to_pylist()
            earlier = pa.array([carried_exact(own, old, names)], pa.string())
        row = row.set_column(row.schema.get_field_index(name), name, earlier)
    return row.drop_columns([UNCHANGED_COLUMNS])


def prepare(
    settings: Settings,
    dsn: str,
    tables: Sequence[str],
    keys: dict[str, tuple[str, ...]],
    options: dict[str, TableOptions] | None = None,
) -> Captured:
    """Declare a source with a name of its own."""
    source, _ = sources.declare(
        f"s{uuid.uuid4().hex[:10]}",
        dsn=dsn,
        tables=tuple(tables),
        keys=keys,
        options=options,
        snapshot=sources.CONNECTOR,
    )
    registry = ConfluentRegistry(settings.required("registry.url"))
    return Captured(
        settings=settings,
        source=source,
        dsn=dsn,
        connect=ConnectClient(settings.required("connect.url")),
        reader=Reader(settings.required("kafka.bootstrap"), f"{source.name}."),
        registry=registry,
        decoder=ChangeDecoder(source.name, "", registry, {}),
    )
