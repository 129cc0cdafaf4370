"""The columns of every table that ingest writes, as Arrow schemas.

`DECODED` is what comes out of the decoders, one row per Kafka record, all kinds in one frame;
the log tables are selections of it plus what ingest adds. Times are UTC microseconds.
"""

from __future__ import annotations

import pyarrow as pa

UTC_MICROS = pa.timestamp("us", tz="UTC")

EVENT = "event"
CHANGE = "change"
MESSAGE = "message"
TRANSACTION_BEGIN = "begin"
TRANSACTION_END = "end"
SNAPSHOT_END = "snapshot"
RECORD = "record"
REJECTED = "rejected"
IGNORED = "ignored"

TRANSACTIONS_TABLE = "_transactions"
"""Value of `table` for a transaction's END row in a changes log."""
SCHEMA_TABLE = "_schema"
"""Value of `table` for a DDL message in a changes log; `counts` has its JSON."""
MESSAGES_TABLE = "_messages"
"""Value of `table` for any other logical message: a signal of ours, which the log does not keep."""
SNAPSHOTS_TABLE = "_snapshots"
"""Value of `table` for the row that ends a snapshot in a changes log."""
OF_NO_TABLE = (TRANSACTIONS_TABLE, SCHEMA_TABLE, MESSAGES_TABLE, SNAPSHOTS_TABLE)
"""Such values. A captured table's has its schema in front, which may begin with `_` as well."""

DECODED = pa.schema(
    [
        ("kind", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("kafka_time", UTC_MICROS),
        ("source", pa.string()),
        ("table", pa.string()),
        ("operation", pa.string()),
        ("position", pa.int64()),
        ("event_id", pa.string()),
        ("stream", pa.string()),
        ("version", pa.int64()),
        ("type", pa.string()),
        ("data_format", pa.int32()),
        ("subject", pa.string()),
        ("key_id", pa.string()),
        ("metadata", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("event_time", UTC_MICROS),
        ("recorded_at", UTC_MICROS),
        ("transaction_id", pa.string()),
        ("lsn", pa.int64()),
        ("commit_order", pa.int64()),
        ("total_order", pa.int64()),
        ("snapshot", pa.bool_()),
        ("own_time", pa.bool_()),
        ("counts", pa.string()),
        ("schema_id", pa.int32()),
        ("key_schema_id", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("stage", pa.string()),
        ("reason", pa.string()),
    ]
)

_ARRIVAL = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("ingested_at", UTC_MICROS),
    ("watermark", UTC_MICROS),
    ("closed_late", pa.bool_()),
]

EVENTS = pa.schema(
    [
        ("epoch", pa.int64()),
        ("position", pa.int64()),
        ("category", pa.string()),
        ("type", pa.string()),
        ("stream", pa.string()),
        ("version", pa.int64()),
        ("event_id", pa.string()),
        ("occurred_at", UTC_MICROS),
        ("recorded_at", UTC_MICROS),
        ("schema_id", pa.int32()),
        ("data_format", pa.int32()),
        ("data", pa.binary()),
        ("subject", pa.string()),
        ("key_id", pa.string()),
        ("metadata", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("store_id", pa.string()),
        *_ARRIVAL,
    ]
)
"""`log/events/<store>`, partitioned by category. One row per event; key (store_id, position)."""

CHANGES = pa.schema(
    [
        ("epoch", pa.int64()),
        ("table", pa.string()),
        ("operation", pa.string()),
        ("transaction_id", pa.string()),
        ("lsn", pa.int64()),
        ("commit_order", pa.int64()),
        ("total_order", pa.int64()),
        ("snapshot", pa.bool_()),
        ("committed_at", UTC_MICROS),
        ("event_time", UTC_MICROS),
        ("counts", pa.string()),
        ("schema_id", pa.int32()),
        ("key_schema_id", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        *_ARRIVAL,
    ]
)
"""`log/changes/<source>`, partitioned by table. Rows in no order; `commit_order, lsn, total_order`
is the source's order (`pipeline/order.py`). END rows have table `_transactions`, ends of
snapshots `_snapshots`, DDL of the source `_schema` (operation `m`)."""

TOPICS = pa.schema(
    [
        ("epoch", pa.int64()),
        ("topic_id", pa.string()),
        ("kafka_time", UTC_MICROS),
        ("event_time", UTC_MICROS),
        ("own_time", pa.bool_()),
        ("schema_id", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.string()),
        *_ARRIVAL,
    ]
)
"""`log/topics/<source>`: the records of the external topic of a declared source, as they are.

One row for each (`topic_id`, `partition`, `offset`): a topic that is deleted and made again has
another id. `headers` is a JSON object of hexadecimal values, with a member for each header: a name
may occur twice, and a value be null. `own_time` is false where `event_time` is the Kafka timestamp,
because the record's own column has no time."""

QUARANTINE = pa.schema(
    [
        ("epoch", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("stage", pa.string()),
        ("reason", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.string()),
        ("kafka_time", UTC_MICROS),
        ("ingested_at", UTC_MICROS),
        ("source", pa.string()),
        ("table", pa.string()),
    ]
)
"""`quarantine/records`. `headers` is as in `TOPICS`. `source` and `table` are those of
`schemas.records.Rejected`: rows of before they were noted have none."""

LOGGED = {
    "log/events": EVENTS,
    "log/changes": CHANGES,
    "log/topics": TOPICS,
    "quarantine": QUARANTINE,
}
"""Columns of the tables of the log, by the folder that they lie in."""

OUTCOMES = pa.schema(
    [
        ("epoch", pa.int64()),
        ("decision", pa.int64()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("source", pa.string()),
        ("table", pa.string()),
        ("outcome", pa.string()),
        ("reason", pa.string()),
        ("by", pa.string()),
        ("decided_at", UTC_MICROS),
    ]
)
"""`quarantine/outcomes`: what became of records in quarantine, one row each.

`decision` numbers the command that asked (`pipeline.installs.install_book`), `by` names who gave
it. A copy of a table ends all its records that came before `decided_at`: one row, no place."""

AVRO_SCHEMAS = pa.schema(
    [("epoch", pa.int64()), ("schema_id", pa.int32()), ("schema", pa.string())]
)
"""`log/_schemas`: the Avro schemas that the log's bytes were written with."""
