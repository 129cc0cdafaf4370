"""What connectors are configured with: typed here, rendered to the JSON that Connect takes.

Choices that keep data whole, each tried against the real connector:
- numerics as text: as decimals, NaN and infinities become null without an error;
- intervals as text: as durations, a month becomes 30.4 days;
- values that cannot be converted stop the connector: by default they become null;
- unknown types are included as their text: by default the column is missing;
- TRUNCATE is captured: by default it is dropped;
- types that it alters or leaves out come as PostgreSQL's own text (`PostgresText`);
- nulls are kept: by default the converter writes the column's default instead (`KeepNulls`);
- rows are read as the table was when they were written: by default, as it is (`RelationsOfWal`);
- columns keep their names: by default what Avro cannot write is replaced, so that values become
  null and two columns may become one (`ColumnNames`). It also names records as Avro can: of a table
  `-dash` or `1st` the registry would take a schema that it does not give back;
- a slot that stands after what was read stops the connector: by default it goes on behind the gap;
- its own snapshot reads a table's own rows (`OwnRows`): by default, those of heirs (INHERITS) too;
- a row-level policy that hides rows from it stops its snapshot: by default the table is smaller;
- after a restart it begins with a transaction's first row (`WholeTransactions`): by default it goes
  on amid one, and may number the rest anew;
- logical messages of others do not travel: ours tell of DDL, and count in their transaction's END;
- the source's types travel in the schema, so that text columns know what they were.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.options import MASK, TableOptions
from kernel.errors import InvalidRequest
from schemas.debezium import PLACEHOLDER
from schemas.lake_columns import TWIN

_HASH = "column.mask.hash.v2.SHA-256.with.salt."
"""What follows is the salt: a secret, too."""
EVENT_HEADERS = (
    *("store_id", "type", "stream", "category", "version", "position", "schema_id"),
    *("data_format", "subject", "key_id", "metadata", "tags", "occurred_at", "recorded_at"),
)
"""Columns of an event that travel as headers; `id` is added by the router itself."""

MAX_RECORD_BYTES = 32 * 1024**2
"""The default of `kafka.max_record_bytes`."""
_QUEUE_BYTES = 64 * 1024**2
"""How much a connector keeps in memory on the way to Kafka, beside one record."""
_IDENTIFIER_BYTES = 63
_HEARTBEATS = r"__debezium-heartbeat\..*"
_HEARTBEAT = "SELECT pg_logical_emit_message(false, 'penstock.heartbeat', '')"
"""Without it the slot keeps the WAL of all other tables while the captured ones rest. The
connector may not confirm by itself what it has not seen (`lsn.flush.mode`): after a restart it
then refuses its own offset."""
_TEXT_OPTIONS = "-c IntervalStyle=iso_8601 -c bytea_output=hex -c extra_float_digits=3"
"""Those of `cdc.columns.TEXT_SETTINGS` that the driver leaves as a role or a database has them
where it reads a slot: with `extra_float_digits = 0` floats would lose digits."""
_WHOLE_TABLES = "-c row_security=off"
_UNHURRIED = (
    "-c statement_timeout=0 -c lock_timeout=0 -c idle_session_timeout=0"
    " -c idle_in_transaction_session_timeout=0"
)
"""A role or a database may have them for its applications: a snapshot takes as long as it takes,
and what asks the catalog rests between one DDL and the next, amid a transaction."""
_WHOLE_TRANSACTIONS = 170000
"""Older servers refuse a session that sets `transaction_timeout`; they have none."""
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_CONVERTER = "io.apicurio.registry.utils.converter.AvroConverter"


def replication_name(workspace: str, source: str) -> str:
    """Name the slot and the publication of a source: `penstock_<workspace>_<source>`.

    Raises `InvalidRequest` when PostgreSQL would cut the name.
    """
    name = re.sub(r"[^a-z0-9_]", "_", f"penstock_{workspace}_{source}".lower())
    if len(name) > _IDENTIFIER_BYTES:
        raise InvalidRequest(
            f"slot name {name} is longer than the {_IDENTIFIER_BYTES} bytes of PostgreSQL",
            remedy="Choose a shorter source name, or a shorter workspace.name.",
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDatabase:
    """Where a connector reads, as seen from the Connect worker.

    `version` is the server's, as 170004; 0 where it was not asked.
    """

    host: str
    port: int
    name: str
    user: str
    password: str = field(repr=False)
    sslmode: str = "prefer"
    version: int = 0

    @property
    def unhurried(self) -> str:
        """Options of a session that nothing ends: neither a rest, nor a large transaction."""
        newer = self.version >= _WHOLE_TRANSACTIONS
        return _UNHURRIED + (" -c transaction_timeout=0" if newer else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What connectors of one workspace share: its name, where topics and schemas go, and how large
    a record may be."""

    workspace: str
    topic_prefix: str
    partitions: int
    registry_url: str
    max_record_bytes: int = MAX_RECORD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureConnector:
    """Captures tables as Avro change envelopes to `<prefix><source>.<schema>.<table>`.

    `keys` declares key columns for tables without a primary key, `options` what is left out or
    veiled. `snapshot`: whether the connector itself reads the rows that are there already.
    `columns` describes types that it does not see (`cdc.columns.described`).
    """

    source: str
    database: ConnectorDatabase
    tables: tuple[str, ...]
    placement: Placement
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, TableOptions] = field(default_factory=dict)
    salt: str = field(default="", repr=False)
    snapshot: bool = True
    columns: str = ""

    @property
    def name(self) -> str:
        """Name of the connector in Connect."""
        return f"{self.placement.workspace}-{self.source}"

    @property
    def slot(self) -> str:
        """Name of the replication slot and of the publication."""
        return replication_name(self.placement.workspace, self.source)

    @property
    def topics(self) -> str:
        """Prefix of its topics, without the last dot."""
        return f"{self.placement.topic_prefix}{self.source}"

    def render(self) -> dict[str, str]:
        """Return the configuration as Connect takes it."""
        single = rf"{re.escape(self.topics)}\.(transaction|notifications|message)|{_HEARTBEATS}"
        config = {
            **_reader(self.database, self.slot, self.tables),
            **_topics(self.placement, single=single),
            **_avro("key", self.placement.registry_url),
            **_avro("value", self.placement.registry_url),
            "topic.prefix": self.topics,
            "snapshot.mode": "initial" if self.snapshot else "no_data",
            "snapshot.fetch.size": "10240",
            "provide.transaction.metadata": "true",
            "message.prefix.include.list": r"penstock\..*",
            "skipped.operations": "none",
            "tombstones.on.delete": "false",
            "notification.enabled.channels": "sink",
            "notification.sink.topic.name": f"{self.topics}.notifications",
            "decimal.handling.mode": "string",
            "interval.handling.mode": "string",
            "binary.handling.mode": "bytes",
            "time.precision.mode": "adaptive",
            "include.unknown.datatypes": "true",
            "column.propagate.source.type": ".*",
            "event.converting.failure.handling.mode": "fail",
            "unavailable.value.placeholder": PLACEHOLDER,
            "converters": "text",
            "text.type": "penstock.connect.PostgresText",
            "text.placeholder": PLACEHOLDER,
            "text.columns": self.columns,
            "driver.options": f"{_TEXT_OPTIONS} {_WHOLE_TABLES} {self.database.unhurried}",
            "transforms": "nulls,names",
            "transforms.nulls.type": "penstock.connect.KeepNulls",
            "transforms.names.type": "penstock.connect.ColumnNames",
        }
        if self.snapshot:
            config |= {
                "snapshot.query.mode": "custom",
                "snapshot.query.mode.custom.name": "penstock",
            }
        if self.keys:
            config["message.key.columns"] = ";".join(
                f"{re.escape(table)}:{','.join(map(re.escape, columns))}"
                for table, columns in sorted(self.keys.items())
            )
        return config | self._veils()

    def _veils(self) -> dict[str, str]:
        """Name what is excluded, masked and hashed. The salt is part of a property's name."""
        found: dict[str, list[str]] = {}
        for table, options in sorted(self.options.items()):
            for name, columns in (
                ("column.exclude.list", options.exclude),
                (f"column.mask.with.{len(MASK)}.chars", options.mask),
                (f"{_HASH}{self.salt}", options.hash),
            ):
                each = [_column(table, column) for column in columns]
                found.setdefault(name, []).extend(each)
        rendered = {name: ",".join(columns) for name, columns in found.items() if columns}
        hashed = found.get(f"{_HASH}{self.salt}")
        if hashed:
            # Of several rules for a column the connector follows one, and this one before a hash:
            # without the exception, hashed columns would come as they are.
            exception = rf"(?!(?:.*\.)?(?:{'|'.join(hashed)})$).*"
            rendered["column.propagate.source.type"] = exception
        return rendered


def _column(table: str, column: str) -> str:
    """Write the pattern of a column, with the number that it gets beside one of another case."""
    return rf"{re.escape(table)}\.{re.escape(column)}(?:\u{ord(TWIN):04X}\d+)?"


def veils(config: Mapping[str, str], table: str, column: str) -> bool:
    """Say whether a connector that is configured like this leaves a column out, or veils it."""
    name = f",{_column(table, column)},"
    return any(
        name in f",{value},"
        for key, value in config.items()
        if key.startswith(("column.exclude.list", "column.mask."))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxConnector:
    """Sends rows of `es.events` to `<prefix>events.<category>`, bytes unchanged.

    Events that are there before the slot is made are sent first, in order of position.
    """

    database: ConnectorDatabase
    placement: Placement
    table: str = "es.events"

    @property
    def name(self) -> str:
        """Name of the connector in Connect."""
        return f"{self.placement.workspace}-outbox"

    @property
    def slot(self) -> str:
        """Name of the replication slot and of the publication."""
        return replication_name(self.placement.workspace, "outbox")

    def render(self) -> dict[str, str]:
        """Return the configuration as Connect takes it."""
        router = "transforms.outbox"
        prefix = f"{self.placement.topic_prefix}{self.name}"
        return {
            **_reader(self.database, self.slot, (self.table,)),
            **_topics(self.placement, single=rf"{re.escape(prefix)}\.message|{_HEARTBEATS}"),
            "topic.prefix": prefix,
            "snapshot.mode": "initial",
            "snapshot.select.statement.overrides": self.table,
            f"snapshot.select.statement.overrides.{self.table}": (
                f"SELECT * FROM {self.table} ORDER BY position"
            ),
            "tombstones.on.delete": "false",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "io.debezium.converters.BinaryDataConverter",
            "value.converter.delegate.converter.type": _JSON,
            "value.converter.delegate.converter.type.schemas.enable": "false",
            # Heartbeats are messages in the stream, not rows: they pass the router by.
            "predicates": "events",
            "predicates.events.type": (
                "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"
            ),
            "predicates.events.pattern": rf".*\.{re.escape(self.table)}",
            "transforms": "outbox",
            f"{router}.predicate": "events",
            f"{router}.type": "io.debezium.transforms.outbox.EventRouter",
            f"{router}.table.field.event.id": "id",
            f"{router}.table.field.event.key": "stream",
            f"{router}.table.field.event.payload": "data",
            f"{router}.table.op.invalid.behavior": "fatal",
            f"{router}.route.by.field": "category",
            f"{router}.route.topic.replacement": (
                f"{self.placement.topic_prefix}events.${{routedByValue}}"
            ),
            f"{router}.table.fields.additional.placement": ",".join(
                f"{column}:header" for column in EVENT_HEADERS
            ),
        }


Connector = CaptureConnector | OutboxConnector


def _reader(database: ConnectorDatabase, slot: str, tables: tuple[str, ...]) -> dict[str, str]:
    return {
        "connector.class": "penstock.connect.WholeTransactions",
        "tasks.max": "1",
        "database.hostname": database.host,
        "database.port": str(database.port),
        "database.user": database.user,
        "database.password": database.password,
        "database.dbname": database.name,
        "database.sslmode": database.sslmode,
        "driver.options": database.unhurried,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": slot,
        "publication.autocreate.mode": "disabled",
        "offset.mismatch.strategy": "trust_offset",
        "table.include.list": ",".join(re.escape(table) for table in tables),
        "extended.headers.enabled": "false",
        "heartbeat.interval.ms": "5000",
        "heartbeat.action.query": _HEARTBEAT,
        "poll.interval.ms": "50",
        "max.batch.size": "4096",
        "max.queue.size": "16384",
        "max.queue.size.in.bytes": str(_QUEUE_BYTES),
        "exactly.once.support": "required",
        "transaction.boundary": "poll",
    }


def _topics(placement: Placement, *, single: str) -> dict[str, str]:
    # Replication factor -1 takes the broker's default. BEGIN and END of a transaction keep their
    # order only in one partition. Consumers take a record of any size that a topic holds.
    largest = placement.max_record_bytes
    return {
        "topic.creation.default.replication.factor": "-1",
        "topic.creation.default.partitions": str(placement.partitions),
        "topic.creation.default.max.message.bytes": str(largest),
        "topic.creation.groups": "single",
        "topic.creation.single.include": single,
        "topic.creation.single.partitions": "1",
        "topic.creation.single.replication.factor": "-1",
        "topic.creation.single.max.message.bytes": str(largest),
        "producer.override.max.request.size": str(largest),
        "producer.override.buffer.memory": str(max(_QUEUE_BYTES, 2 * largest)),
    }


def _avro(side: str, registry_url: str) -> dict[str, str]:
    registry = f"{side}.converter.apicurio.registry"
    return {
        f"{side}.converter": _CONVERTER,
        f"{registry}.url": f"{registry_url.rstrip('/')}/apis/registry/v2",
        f"{registry}.auto-register": "true",
        f"{registry}.find-latest": "false",
        f"{registry}.as-confluent": "true",
        f"{registry}.use-id": "contentId",
        f"{registry}.headers.enabled": "false",
    }
