"""Decoding of records that a real connector wrote (`captured_records.json`).

A table `public.item` with two rows and one without any; then an insert of two rows and an update
in one transaction, a changed key, a delete, a TRUNCATE, and heartbeats.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import fastavro
import pyarrow.compute as pc
import pytest

from cdc.decode import _BAD_TIMES, ChangeDecoder
from kernel.errors import NotFound, Unavailable
from kernel.positions import KafkaOffset
from pipeline.typed.installs import moments
from schemas.columns import decode_rows, key_columns
from schemas.records import (
    MESSAGES,
    Change,
    KafkaRecord,
    Operation,
    Rejected,
    SnapshotEnd,
    TransactionBegin,
    TransactionEnd,
)
from schemas.wire import schema_id_of

KEPT = json.loads((Path(__file__).parent / "captured_records.json").read_text())
ITEM = "sample.public.item"
NOW = datetime(2024, 1, 1, tzinfo=UTC)


class Schemas:
    """The schemas of the kept records."""

    def schema(self, schema_id: int) -> str:
        try:
            return json.dumps(KEPT["schemas"][str(schema_id)])
        except KeyError:
            raise NotFound(f"no schema {schema_id}") from None


class NoSchemas:
    """A registry that is away."""

    def schema(self, schema_id: int) -> str:
        raise Unavailable("the registry is away")


def bytes_of(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def records(topic: str) -> list[KafkaRecord]:
    return [
        KafkaRecord(
            topic=kept["topic"],
            partition=kept["partition"],
            offset=KafkaOffset(kept["offset"]),
            timestamp=NOW,
            key=bytes_of(kept["key"]),
            value=bytes_of(kept["value"]),
            headers={},
        )
        for kept in KEPT["records"]
        if kept["topic"] == topic
    ]


def decoder(**event_times: str) -> ChangeDecoder:
    times = {f"public.{table}": column for table, column in event_times.items()}
    return ChangeDecoder("sample", "", Schemas(), times)


def changes(decode: ChangeDecoder | None = None) -> list[Change]:
    decode = decode or decoder()
    found = [decode(record) for record in records(ITEM)]
    assert all(isinstance(change, Change) for change in found), found
    made = [change for change in found if isinstance(change, Change)]
    return sorted(made, key=lambda c: (not c.snapshot, c.commit_order, c.lsn, c.total_order))


def test_what_happened_in_its_order() -> None:
    assert "".join(change.operation.value for change in changes()) == "rrccudcdt"


def test_rows_of_the_snapshot_carry_its_lsn_and_no_transaction() -> None:
    first, second, *_ = changes()
    assert first.commit_order == second.commit_order == first.lsn == second.lsn
    assert (first.snapshot, first.transaction_id, first.total_order) == (True, None, 0)


def test_a_change_belongs_to_the_transaction_that_its_end_names() -> None:
    told = [fact for fact in map(decoder(), records("sample.transaction")) if fact is not None]
    ends = [fact for fact in told if isinstance(fact, TransactionEnd)]
    begins = [fact for fact in told if isinstance(fact, TransactionBegin)]
    assert [begin.transaction_id for begin in begins] == [end.transaction_id for end in ends]
    counted = {end.transaction_id: end.counts.get("public.item") for end in ends}
    streamed = [change for change in changes() if not change.snapshot]
    assert {t: sum(c.transaction_id == t for c in streamed) for t in counted} == counted
    assert list(counted.values()) == [3, 2, 1, 1]
    lsns = {e.transaction_id: e.commit_lsn for e in ends}
    assert all(change.commit_order < lsns[str(change.transaction_id)] for change in streamed)


def test_logical_messages_count_together_whatever_each_is_called() -> None:
    message = (
        "io.debezium.connector.postgresql.LogicalDecodingMessageMonitor"
        "$LogicalDecodingMessageId@3ea4d0e2"
    )
    end = next(r for r in records("sample.transaction") if isinstance(decoder()(r), TransactionEnd))
    assert end.value is not None
    parsed = fastavro.parse_schema(KEPT["schemas"][str(schema_id_of(end.value))])
    told = fastavro.schemaless_reader(io.BytesIO(end.value[5:]), parsed, None)
    assert isinstance(told, dict)
    counted = {c["data_collection"]: c["event_count"] for c in told["data_collections"]}
    for number in "12":
        entry = {"data_collection": message + number, "event_count": 1}
        told["data_collections"].append(entry)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, told)
    decoded = decoder()(replace(end, value=end.value[:5] + out.getvalue()))
    assert isinstance(decoded, TransactionEnd)
    assert decoded.counts == counted | {MESSAGES: 2}


def test_order_grows_strictly_in_a_partition() -> None:
    for partition in (0, 1):
        made = [decoder()(r) for r in records(ITEM) if r.partition == partition]
        order = [
            (change.commit_order, change.total_order)
            for change in made
            if isinstance(change, Change) and not change.snapshot
        ]
        assert order == sorted(set(order))


def test_bytes_and_schema_ids_are_the_record_s_own() -> None:
    record = records(ITEM)[0]
    change = decoder()(record)
    assert isinstance(change, Change)
    assert (change.key, change.value) == (record.key, record.value)
    assert change.key_schema_id is not None
    assert key_columns(Schemas().schema(change.key_schema_id)) == ("id",)
    rows = decode_rows([change.value], Schemas().schema(change.schema_id), "after")
    assert rows["name"].to_pylist() in (["one"], [None])


def test_a_truncate_has_no_key() -> None:
    truncate = changes()[-1]
    assert (truncate.operation, truncate.key, truncate.key_schema_id) == (
        Operation.TRUNCATE,
        None,
        None,
    )


def test_the_end_of_a_snapshot_counts_rows() -> None:
    told = map(decoder(), records("sample.notifications"))
    ends = {end.table: end.rows for end in told if isinstance(end, SnapshotEnd)}
    assert ends == {"public.item": 2, "public.empty": 0, None: 0}


def test_heartbeats_and_tombstones_carry_no_fact() -> None:
    assert [decoder()(record) for record in records("sample.message")] == [None, None]
    assert decoder()(replace(records(ITEM)[0], value=None)) is None


def test_event_time_is_the_declared_column_or_the_commit() -> None:
    plain, declared = changes(), changes(decoder(item="seen_at"))
    assert all(change.event_time == change.committed_at for change in plain)
    inserted = [change for change in declared if change.operation is Operation.INSERT]
    assert inserted[0].event_time == datetime(2024, 3, 3, 3, tzinfo=UTC)
    assert inserted[1].event_time == inserted[1].committed_at
    (deleted, _) = [change for change in declared if change.operation is Operation.DELETE]
    assert deleted.event_time == deleted.committed_at


@pytest.mark.parametrize(
    ("column", "reason"), [("price", "is declared as event time"), ("gone", "has no column gone")]
)
def test_a_column_that_is_no_time_leaves_the_row_the_time_of_its_commit(
    column: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    _BAD_TIMES.clear()
    found = changes(decoder(item=column))
    assert all(change.event_time == change.committed_at for change in found)
    (said,) = [record.getMessage() for record in caplog.records]  # Once, not once per row.
    assert reason in said


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("name", "noon"),
        ("name", ""),
        ("name", "infinity"),
        ("name", "2024-03-03 03:00:00.5"),
        ("name", "2024-03-03T05:00:00+02:00"),
        ("name", None),
        ("seen_at", "2024-03-03T03:00:00.000000Z"),
        ("price", "one"),
        ("id", "one"),
    ],
)
def test_a_row_has_the_event_time_that_a_copy_of_it_has(column: str, text: str | None) -> None:
    record = next(r for r in records(ITEM) if r.offset == 2 and r.partition == 0)
    assert record.value is not None
    schema = Schemas().schema(schema_id_of(record.value))
    parsed = fastavro.parse_schema(json.loads(schema))
    envelope = fastavro.schemaless_reader(io.BytesIO(record.value[5:]), parsed, None)
    assert isinstance(envelope, dict)
    envelope["after"]["seen_at" if column == "seen_at" else "name"] = text
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, envelope)
    change = decoder(item=column)(replace(record, value=record.value[:5] + out.getvalue()))
    assert isinstance(change, Change)
    rows = decode_rows([change.value], schema, "after")
    copied = pc.fill_null(moments(rows[column]), change.committed_at)
    assert copied.to_pylist() == [change.event_time]


Spoil = Callable[[KafkaRecord], KafkaRecord]


@pytest.mark.parametrize(
    ("spoil", "stage"),
    [
        (lambda r: replace(r, value=b"poison"), "decode"),
        (lambda r: replace(r, value=b""), "decode"),
        (lambda r: replace(r, value=r.value[:40]), "decode"),
        (lambda r: replace(r, value=b"\x00\x7f\xff\xff\xff" + r.value[5:]), "schema"),
        (lambda r: replace(r, value=r.key), "decode"),
        (lambda r: replace(r, topic="other.public.item"), "decode"),
    ],
)
def test_what_cannot_be_used_is_rejected_with_its_bytes(spoil: Spoil, stage: str) -> None:
    record = spoil(records(ITEM)[0])
    rejected = decoder()(record)
    assert isinstance(rejected, Rejected)
    assert (rejected.record, rejected.stage) == (record, stage)
    assert rejected.reason


def test_a_registry_that_is_away_says_nothing_about_the_record() -> None:
    with pytest.raises(Unavailable):
        ChangeDecoder("sample", "", NoSchemas(), {})(records(ITEM)[0])


def test_it_travels_to_workers() -> None:
    decode = pickle.loads(pickle.dumps(decoder(item="seen_at")))
    topics: Sequence[str] = (ITEM, "sample.transaction", "sample.notifications")
    assert [[decode(r) for r in records(t)] for t in topics] == [
        [decoder(item="seen_at")(r) for r in records(t)] for t in topics
    ]


def test_a_topic_prefix_is_not_part_of_the_source() -> None:
    prefixed = ChangeDecoder("sample", "p.", Schemas(), {})
    record = records(ITEM)[0]
    assert isinstance(prefixed(record), Rejected)
    change = prefixed(replace(record, topic=f"p.{ITEM}"))
    assert isinstance(change, Change)
    assert (change.source, change.table) == ("sample", "public.item")
