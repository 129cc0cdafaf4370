"""Typed and current tables made anew of the raw log of a captured table, each in a process alone.

Changes are Debezium's envelopes in Avro, with all that these say of source and transaction, six
columns, no image of before (as by a primary key), one hundred in a transaction; each key comes five
times. The driver's form alone: one process without Spark.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.bounds.source import AT, SOURCE, logged
from benchmarks.replay.usage import usage
from kernel.positions import Epoch
from lake.datasets import dataset_of
from lake.layout import Lake, changes_log, current_name
from lake.table_columns import TRANSACTIONS_TABLE, UTC_MICROS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.current.tables import CurrentTables
from pipeline.log.large_folds import split
from pipeline.typed.columns import Visible
from pipeline.typed.tables import TypedTables
from schemas.registry import MemoryRegistry

KINDS = ("typed", "current")
TABLE = "public.orders"
PER_KEY, PER_TRANSACTION, LSN = 5, 100, 1_000_000
_FILE_ROWS = 50_000
_KEY_ID, _VALUE_ID = 1, 2
_COLUMN = "__debezium.source.column"


def _column(name: str, kind: str, source: str, length: int, scale: int = 0) -> dict[str, Any]:
    told = {"type": source, "length": str(length), "scale": str(scale), "name": name}
    parameters = {f"{_COLUMN}.{each}": value for each, value in told.items()}
    typed: dict[str, Any] = {"type": kind, "connect.parameters": parameters}
    if source == "TIMESTAMPTZ":
        typed |= {"connect.version": 1, "connect.name": "io.debezium.time.ZonedTimestamp"}
    if name == "id":
        return {"name": name, "type": typed}
    return {"name": name, "type": ["null", typed], "default": None}


def _optional(**fields: str) -> list[dict[str, Any]]:
    return [{"name": n, "type": ["null", kind], "default": None} for n, kind in fields.items()]


_ID = _column("id", "long", "INT8", 19)
_ROW = [
    _ID,
    _column("customer", "string", "TEXT", 2147483647),
    _column("amount", "string", "NUMERIC", 12, 2),
    _column("placed_at", "string", "TIMESTAMPTZ", 35, 6),
    _column("state", "string", "TEXT", 2147483647),
    _column("pieces", "int", "INT4", 10),
]
KEY = {"type": "record", "name": "Key", "fields": [_ID]}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "fields": [
        {
            "name": "before",
            "type": ["null", {"type": "record", "name": "Value", "fields": _ROW}],
            "default": None,
        },
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [
                    *({"name": n, "type": "string"} for n in ("version", "connector", "name")),
                    {"name": "ts_ms", "type": "long"},
                    *({"name": n, "type": "string"} for n in ("snapshot", "db")),
                    *_optional(sequence="string", ts_us="long", ts_ns="long"),
                    *({"name": n, "type": "string"} for n in ("schema", "table")),
                    *_optional(txId="long", lsn="long", xmin="long"),
                ],
            },
        },
        {
            "name": "transaction",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "block",
                    "fields": [
                        {"name": "id", "type": "string"},
                        {"name": "total_order", "type": "long"},
                        {"name": "data_collection_order", "type": "long"},
                    ],
                },
            ],
            "default": None,
        },
        {"name": "op", "type": "string"},
        *_optional(ts_ms="long", ts_us="long", ts_ns="long"),
    ],
}


def measure(folder: Path, rows: int, kind: str) -> Mapping[str, float]:
    """Make the log that is not there yet, derive a table in a process, return what that took."""
    lake = folder / f"log-{rows}"
    if not lake.exists():
        _fill(Lake.at(lake), rows)
    shutil.rmtree(lake / kind, ignore_errors=True)
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.replay.deriving", str(lake), str(rows), kind],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def registry() -> MemoryRegistry:
    """Return a registry that knows the two schemas."""
    made = MemoryRegistry()
    assert made.register("key", json.dumps(KEY)) == _KEY_ID
    assert made.register("value", json.dumps(ENVELOPE)) == _VALUE_ID
    return made


def _fill(lake: Lake, rows: int) -> None:
    writer, path = ArrowWriter(Tables()), lake.path(changes_log(SOURCE))
    schemas = tuple(fastavro.parse_schema(schema) for schema in (KEY, ENVELOPE))
    for number, first in enumerate(range(0, rows, _FILE_ROWS), start=1):
        numbers = np.arange(first, min(rows, first + _FILE_ROWS))
        changes = pa.concat_tables([_changes(numbers, rows, schemas), _ends(numbers)])
        writer.append(path, changes, Guard("load", Epoch(number)))


def _changes(numbers: np.ndarray, rows: int, schemas: tuple[Any, ...]) -> pa.Table:
    keys = max(1, rows // PER_KEY)
    values = [_envelope(number, keys) for number in numbers.tolist()]
    places = LSN + 10 * numbers
    transactions = numbers // PER_TRANSACTION
    count = len(numbers)
    return logged(
        {
            "table": pa.repeat(TABLE, count),
            "operation": pa.array([value["op"] for value in values]),
            "transaction_id": pa.array(transactions).cast(pa.string()),
            "lsn": pa.array(places),
            "commit_order": pa.array(LSN + 10 * PER_TRANSACTION * transactions),
            "total_order": pa.array(numbers % PER_TRANSACTION + 1),
            "snapshot": pa.array(np.zeros(count, bool)),
            "event_time": pa.repeat(pa.scalar(AT, UTC_MICROS), count),
            "schema_id": pa.array(np.full(count, _VALUE_ID, np.int32)),
            "key_schema_id": pa.array(np.full(count, _KEY_ID, np.int32)),
            "key": pa.array(
                [_framed(_KEY_ID, schemas[0], {"id": value["after"]["id"]}) for value in values],
                pa.binary(),
            ),
            "value": pa.array(
                [_framed(_VALUE_ID, schemas[1], value) for value in values], pa.binary()
            ),
            "topic": pa.repeat(f"{SOURCE}.{TABLE}", count),
            "partition": pa.array(np.zeros(count, np.int32)),
            "offset": pa.array(numbers),
        },
        1,
    )


def _ends(numbers: np.ndarray) -> pa.Table:
    """Return the ENDs of the transactions that end among these changes."""
    last = numbers[(numbers + 1) % PER_TRANSACTION == 0]
    count = len(last)
    columns = {
        "table": pa.repeat(TRANSACTIONS_TABLE, count),
        "transaction_id": pa.array(last // PER_TRANSACTION).cast(pa.string()),
        "lsn": pa.array(LSN + 10 * last + 5),
        "snapshot": pa.array(np.zeros(count, bool)),
        "event_time": pa.repeat(pa.scalar(AT, UTC_MICROS), count),
        "topic": pa.repeat(f"{SOURCE}.transaction", count),
        "partition": pa.array(np.zeros(count, np.int32)),
        "offset": pa.array(last),
    }
    return logged(columns, 1)


def _envelope(number: int, keys: int) -> dict[str, Any]:
    key, place, moment = number * 7919 % keys, LSN + 10 * number, 1_356_998_400_000 + number
    transaction = number // PER_TRANSACTION
    return {
        "before": None,
        "after": {
            "id": key,
            "customer": f"customer {key % 9973}",
            "amount": f"{number % 100_000}.{number % 100:02}",
            "placed_at": f"2013-01-01T{number % 24:02}:{number % 60:02}:00.{number % 10**6:06}Z",
            "state": ("open", "paid", "sent")[number % 3],
            "pieces": number % 1000,
        },
        "source": {
            "version": "3.7.0.Final",
            "connector": "postgresql",
            "name": SOURCE,
            "ts_ms": moment,
            "snapshot": "false",
            "db": "shop",
            "sequence": f'["{place - 10}","{place}"]',
            "ts_us": moment * 1000,
            "ts_ns": moment * 1_000_000,
            "schema": "public",
            "table": "orders",
            "txId": transaction,
            "lsn": place,
            "xmin": None,
        },
        "transaction": {
            "id": f"{transaction}:{place}",
            "total_order": number % PER_TRANSACTION + 1,
            "data_collection_order": number % PER_TRANSACTION + 1,
        },
        "op": "c" if number < keys else "u",
        "ts_ms": moment,
        "ts_us": moment * 1000,
        "ts_ns": moment * 1_000_000,
    }


def _framed(schema_id: int, schema: Any, value: object) -> bytes:
    body = io.BytesIO()
    body.write(b"\0" + schema_id.to_bytes(4, "big"))
    fastavro.schemaless_writer(body, schema, value)
    return body.getvalue()


def _typed(lake: Lake, rows: int) -> str:
    """Append all of the log's changes to their typed table."""
    visible = Visible(LSN - 10, [(Epoch(1), LSN + 10 * rows)])
    done = TypedTables(lake, Tables(), registry()).add_changes(
        SOURCE, visible, Epoch(1), pending_from=1, snapshot_lsn=0, current={}
    )
    assert not done.failed, done.failed
    return f"typed/{SOURCE}.{TABLE}"


def _current(lake: Lake, rows: int) -> str:
    """Fold all of the log's changes into their current table, which is not there yet."""
    tables = Tables()
    log = tables.open(lake.path(changes_log(SOURCE)))
    assert log is not None
    where, current = pc.field("table") == TABLE, CurrentTables(lake, tables, registry())
    large = split(log, where, since=0)[1]
    if TABLE in large:
        current.fold_large(SOURCE, TABLE, large[TABLE], Epoch(1))
    else:
        current.fold(SOURCE, TABLE, dataset_of(log).to_table(filter=where), Epoch(1))
    current.tails.settle(current_name(SOURCE, TABLE))
    current.close()
    return current_name(SOURCE, TABLE)


def main(lake: str, rows: int, kind: str) -> None:
    """Derive one table and print what that took; to load the code is not in it."""
    place = Lake.at(Path(lake))
    before, began = usage()["all_cpu_s"], time.perf_counter()
    name = {"typed": _typed, "current": _current}[kind](place, rows)
    seconds, used = time.perf_counter() - began, usage()
    made = Tables().open(place.path(name))
    assert made is not None
    assert made.count() == (rows if kind == "typed" else min(rows, max(1, rows // PER_KEY)))
    cpu = used["all_cpu_s"] - before
    figures = {
        "s": seconds,
        "cpu_s": cpu,
        "rows_per_s": rows / seconds,
        "rows_per_cpu_s": rows / cpu,
        "peak_bytes": used["all_peak_bytes"],
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
