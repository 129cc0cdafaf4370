"""Debezium's records to `Change`, `SourceMessage`, `TransactionEnd` and `SnapshotEnd`.

    WAL -> (Debezium) -> KafkaRecord -> ChangeDecoder -> Change | SourceMessage | TransactionEnd …

Pure apart from schema lookups; picklable, so that it runs inside Spark's Python workers.

Order. An LSN alone is not an order: rows of one COPY share it, and interleaved transactions write
theirs in another order than they commit. Debezium's `sequence[0]` is the end of the commit before
the row's transaction, so (`sequence[0]`, `lsn`, `total_order`) grows strictly along the stream. The
first transaction after the slot was made has no commit before it; its rows take their own LSN,
which is below its commit and so below every later transaction.

A connector that died amid a transaction sends all of it once more, with the same numbers.
Debezium's own class goes on amid it and may count anew: then `total_order` starts from 1 again and
the END counts only what came since. A second BEGIN tells of both.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from cdc.change_vectors import read_changes
from kernel.clock import UNIX_EPOCH
from kernel.errors import NotFound, PenstockError, Unavailable
from kernel.positions import Lsn
from schemas.columns import decode_value, envelope_shape
from schemas.debezium import is_unchanged
from schemas.records import (
    MESSAGES,
    Change,
    KafkaRecord,
    Operation,
    Rejected,
    SnapshotEnd,
    SourceMessage,
    TransactionBegin,
    TransactionEnd,
)
from schemas.registry import SchemaLookup
from schemas.wire import schema_id_of

SNAPSHOT = "Initial Snapshot"
_MESSAGE_ID = "LogicalDecodingMessageId@"
"""Part of what Debezium calls a logical message among the tables of a transaction's END."""
_OWN_TOPICS = {
    "transaction": "_transactions",
    "notifications": "_snapshots",
    "message": MESSAGES,
}
"""What is in the topics of a source that belong to no table."""
log = logging.getLogger("penstock.capture")
_BAD_TIMES: set[tuple[str, str]] = set()
"""Sources and tables of which this process has said that an event time is none."""


Fact = Change | SourceMessage | TransactionBegin | TransactionEnd | SnapshotEnd


class _Unusable(Exception):
    """Why a record cannot be used; becomes `Rejected`."""


@dataclass(frozen=True, slots=True)
class ChangeDecoder:
    """Decodes every topic of one captured source. Call it with a record.

    Gives None for a record that carries no fact: a tombstone, a notification of progress, a
    logical message outside transactions. Gives `Rejected` for one that cannot be used.
    Raises `Unavailable` when the registry does not answer: that says nothing about the record.
    `event_times` names, per `schema.table`, the column that holds the row's event time, as the lake
    calls it.
    """

    source: str
    topic_prefix: str
    schemas: SchemaLookup
    event_times: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, record: KafkaRecord) -> Fact | Rejected | None:
        """Decode one record."""
        if record.value is None:
            return None
        try:
            decode = self._decoder_of(record.topic)
            return None if decode is None else decode(record, record.value)
        except Unavailable:
            raise
        except _Unusable as reason:
            return self._rejected(record, "decode", str(reason))
        except NotFound as error:
            return self._rejected(record, "schema", error.message)
        except PenstockError as error:
            return self._rejected(record, "decode", error.message)
        except Exception as error:
            return self._rejected(record, "decode", f"{type(error).__name__}: {error}"[:2000])

    def _rejected(self, record: KafkaRecord, stage: str, reason: str) -> Rejected:
        part = record.topic.removeprefix(f"{self.topic_prefix}{self.source}.")
        return Rejected(
            record=record,
            stage=stage,
            reason=reason,
            source=self.source,
            table=_OWN_TOPICS.get(part, part),
        )

    def many(self, topic: str, records: pa.RecordBatch) -> pa.Table | None:
        """Decode many ordinary changes of one topic and schema at once; see `change_vectors`.

        None where that is not possible: then each record is to be decoded for itself.
        """
        prefix = f"{self.topic_prefix}{self.source}."
        table = topic.removeprefix(prefix)
        if table == topic or "." not in table:
            return None
        values = records.column("value")
        try:
            schema = self.schemas.schema(schema_id_of(values[0].as_py()))
        except NotFound:
            return None
        tables = frozenset(self.event_times)
        return read_changes(values, schema, source=self.source, event_times=tables)

    def _decoder_of(self, topic: str) -> Callable[[KafkaRecord, bytes], Fact | None] | None:
        prefix = f"{self.topic_prefix}{self.source}."
        if not topic.startswith(prefix):
            raise _Unusable(f"topic {topic} does not belong to source {self.source}")
        match topic.removeprefix(prefix):
            case "transaction":
                return self._transaction
            case "notifications":
                return self._notification
            case "message":
                return self._message
            case _:
                return self._change

    def _read(self, value: bytes) -> tuple[Any, str]:
        schema = self.schemas.schema(schema_id_of(value))
        return decode_value(value, schema), schema

    def _change(self, record: KafkaRecord, value: bytes) -> Change | None:
        envelope, schema = self._read(value)
        if not isinstance(envelope, dict) or "op" not in envelope or "source" not in envelope:
            raise _Unusable("not a change envelope")
        origin, operation = envelope["source"], _operation(envelope["op"])
        table = f"{origin['schema']}.{origin['table']}"
        snapshot = operation is Operation.READ
        committed_at = _micros(origin["ts_us"])
        lsn = Lsn(_number(origin["lsn"], "lsn"))
        transaction = envelope["transaction"]
        if transaction is None and not snapshot:
            raise _Unusable("a streamed change without transaction metadata")
        return Change(
            source=self.source,
            table=table,
            operation=operation,
            transaction_id=None if snapshot else _txid(transaction["id"]),
            lsn=lsn,
            commit_order=lsn if snapshot else _previous_commit(origin["sequence"], lsn),
            total_order=0 if snapshot else int(transaction["total_order"]),
            snapshot=snapshot,
            committed_at=committed_at,
            event_time=self._event_time(table, envelope, schema, committed_at),
            schema_id=schema_id_of(value),
            key_schema_id=None if record.key is None else schema_id_of(record.key),
            key=record.key,
            value=value,
        )

    def _event_time(
        self, table: str, envelope: Mapping[str, Any], schema: str, default: datetime
    ) -> datetime:
        column = self.event_times.get(table)
        if column is None or envelope["op"] in ("d", "t"):
            # A delete's image holds its key only, unless the table has full identity.
            return default
        try:
            found = _declared_time(table, column, envelope["after"], schema)
        except (_Unusable, OverflowError) as bad:
            # The row is as good as any other: only its time is taken from elsewhere.
            if (self.source, table) not in _BAD_TIMES:
                _BAD_TIMES.add((self.source, table))
                log.warning("%s: %s; rows like it have the time of their commit", table, bad)
            return default
        return default if found is None else found

    def _message(self, record: KafkaRecord, value: bytes) -> SourceMessage | None:
        told, _ = self._read(value)
        origin, transaction = told["source"], told["transaction"]
        if transaction is None or origin["txId"] is None:
            # A heartbeat: it belongs to no transaction and no END counts it.
            return None
        lsn = Lsn(_number(origin["lsn"], "lsn"))
        message = told["message"]
        return SourceMessage(
            source=self.source,
            prefix=message["prefix"],
            content=(message["content"] or b"").decode(errors="replace"),
            transaction_id=_txid(transaction["id"]),
            lsn=lsn,
            commit_order=_previous_commit(origin["sequence"], lsn),
            total_order=int(transaction["total_order"]),
            committed_at=_micros(origin["ts_us"]),
            schema_id=schema_id_of(value),
            value=value,
        )

    def _transaction(
        self, record: KafkaRecord, value: bytes
    ) -> TransactionBegin | TransactionEnd | None:
        end, _ = self._read(value)
        txid, _, lsn = str(end["id"]).partition(":")
        if end["status"] == "BEGIN":
            return TransactionBegin(source=self.source, transaction_id=txid)
        if end["status"] != "END":
            return None
        if not lsn.isdigit():
            raise _Unusable(f"transaction id {end['id']!r} is not txid:lsn")
        counts: Counter[str] = Counter()
        for entry in end["data_collections"] or ():
            # Every logical message counts as a collection with a name of its own.
            name = entry["data_collection"]
            counts[MESSAGES if _MESSAGE_ID in name else name] += int(entry["event_count"])
        return TransactionEnd(
            source=self.source,
            transaction_id=txid,
            commit_lsn=Lsn(int(lsn)),
            counts=counts,
            committed_at=_micros(int(end["ts_ms"]) * 1000),
        )

    def _notification(self, record: KafkaRecord, value: bytes) -> SnapshotEnd | None:
        told, _ = self._read(value)
        if told["aggregate_type"] != SNAPSHOT:
            return None
        details = told["additional_data"] or {}
        finished_at = _micros(int(told["timestamp"]) * 1000)
        match told["type"], details.get("status"):
            case "TABLE_SCAN_COMPLETED", "SUCCEEDED" | "EMPTY":
                return SnapshotEnd(
                    source=self.source,
                    table=details["scanned_collection"],
                    rows=int(details["total_rows_scanned"]),
                    finished_at=finished_at,
                )
            case "COMPLETED", _:
                return SnapshotEnd(source=self.source, table=None, rows=0, finished_at=finished_at)
            case _:
                return None


def _declared_time(table: str, column: str, row: Mapping[str, Any], schema: str) -> datetime | None:
    """Return the event time that a row's own column says, None where it says none."""
    shape = envelope_shape(schema)
    if column not in shape.schema.names:
        raise _Unusable(f"{table} has no column {column}, which is declared as its event time")
    place = shape.schema.names.index(column)
    value = row[shape.fields[place]]
    if value is None or is_unchanged(value):
        return None
    kind = shape.types[place]
    return _moment(kind.array([value])[0].as_py(), f"{table}.{column}")


def _operation(op: str) -> Operation:
    try:
        return Operation(op)
    except ValueError:
        raise _Unusable(f"unknown operation {op!r}") from None


def _txid(transaction_id: str) -> str:
    # `txid:LSN`, where the LSN is the row's own: only the first part is common to a transaction.
    return transaction_id.partition(":")[0]


def _previous_commit(sequence: str | None, lsn: int) -> int:
    if sequence is None:
        raise _Unusable("a streamed change without source.sequence")
    previous = json.loads(sequence)[0]
    return lsn if previous is None else int(previous)


def _number(value: int | None, name: str) -> int:
    if value is None:
        raise _Unusable(f"a change without source.{name}")
    return value


def _micros(value: int | None) -> datetime:
    return UNIX_EPOCH + timedelta(microseconds=_number(value, "ts_us"))


def _moment(value: object, column: str) -> datetime:
    match value:
        case datetime():
            return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        case date():
            return datetime(value.year, value.month, value.day, tzinfo=UTC)
        case str():
            try:
                parsed = datetime.fromisoformat(value)
            except ValueError:
                raise _Unusable(f"{column} is declared as event time, found {value!r}") from None
            return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
        case _:
            raise _Unusable(f"{column} is declared as event time, found {value!r}")
