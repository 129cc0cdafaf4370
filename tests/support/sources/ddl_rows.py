"""A source made by hand: rows and DDL as its log has them, and what the source then holds."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch
from lake.layout import Lake, changes_log, current_name
from lake.table_columns import CHANGES, SCHEMA_TABLE, TRANSACTIONS_TABLE
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.tables import CurrentTables
from pipeline.ddl.held_tables import Hold
from pipeline.ddl.table_plans import SchemaFollower
from schemas.pg_types import SourceColumn
from schemas.registry import MemoryRegistry
from schemas.wire import frame

SOURCE, TABLE = "shop", "public.item"
START = datetime(2020, 1, 1, tzinfo=UTC)
AVRO = {"int4": "int", "int8": "long", "text": "string", "mood": "string", "bool": "boolean"}
TYPES: dict[str, tuple[SourceColumn, object]] = {}
"""Further types by what DDL calls them: as the event trigger tells of them, and their Avro."""


@dataclass
class Column:
    """A column of the source, with the labels of its enum."""

    attnum: int
    name: str
    type: str
    missing: str | None = None
    labels: dict[str, str] = field(default_factory=dict)

    def told(self) -> dict[str, object]:
        """Return what the event trigger tells of it."""
        plain = SourceColumn(name="", type=self.type, kind="e" if self.type == "mood" else "b")
        source, _ = TYPES.get(self.type, (plain, None))
        return {
            "attnum": self.attnum,
            "name": self.name,
            "declared": self.type,
            "type": source.type,
            "kind": source.kind,
            "modifier": source.modifier,
            "is_array": source.is_array,
            "dimensions": source.dimensions,
            "not_null": False,
            "generated": "",
            "default": self.missing is not None,
            "missing": self.missing,
            "labels": self.labels or None,
        }


@dataclass
class Item:
    """The source's table and the log of everything that happened to it, one transaction each.

    `untold`: its replica identity does not have its key.
    """

    registry: MemoryRegistry = field(default_factory=MemoryRegistry)
    columns: list[Column] = field(default_factory=lambda: [Column(1, "id", "int4")])
    rows: dict[float, dict[int, object]] = field(default_factory=dict)
    log: list[dict[str, object]] = field(default_factory=list)
    attnum: int = 1
    table: str = TABLE
    untold: bool = False

    def write(self, operation: str, key: float, values: dict[int, object] | None = None) -> None:
        """Insert, update or delete a row; `values` by attnum."""
        row = {1: key, **(values or {})}
        if operation == "d":
            self.rows.pop(key)
        else:
            self.rows[key] = row
        image = {c.name: row.get(c.attnum) for c in self.columns}
        envelope = {"before": None, "after": None if operation == "d" else image, "op": operation}
        value_id, value = self._encoded(self._envelope(), envelope)
        of_key = self._field(self.columns[0])
        of_key |= {} if self.untold else {"type": of_key["type"][1]}
        key_schema = {"type": "record", "name": "Key", "fields": [of_key]}
        key_id, key_bytes = self._encoded(key_schema, {self.columns[0].name: key})
        self._add(
            table=self.table,
            operation=operation,
            schema_id=value_id,
            key_schema_id=key_id,
            key=key_bytes,
            value=value,
        )

    def tell(self, kind: str = "alter", **more: object) -> None:
        """Write the message that a DDL command leaves behind."""
        schema, _, name = self.table.partition(".")
        told = {
            "version": 1,
            "kind": kind,
            "tag": "ALTER TABLE",
            "oid": 7,
            "schema": schema,
            "table": name,
            "key": [self.columns[0].name],
            "columns": [column.told() for column in self.columns],
            **more,
        }
        self.hear(json.dumps(told))

    def hear(self, text: str) -> None:
        """Write a message of any text, as whoever may connect can."""
        self._add(table=SCHEMA_TABLE, operation="m", counts=text)

    def add(self, name: str, kind: str, missing: str | None = None) -> Column:
        """ALTER TABLE … ADD, its default in every row that is there."""
        self.attnum += 1
        column = Column(self.attnum, name, kind, missing)
        self.columns.append(column)
        for row in self.rows.values():
            row[column.attnum] = None if missing is None else read(kind, missing)
        self.tell()
        return column

    def drop(self, column: Column) -> None:
        """ALTER TABLE … DROP."""
        self.columns.remove(column)
        for row in self.rows.values():
            row.pop(column.attnum, None)
        self.tell()

    def expected(self) -> list[dict[str, object]]:
        """Return what the source's own SELECT gives, by key."""
        return [
            {column.name: self.rows[key].get(column.attnum) for column in self.columns}
            for key in sorted(self.rows)
        ]

    def _add(self, **values: object) -> None:
        number = len(self.log) + 1
        self.log.append(
            {
                "transaction_id": str(number),
                "lsn": number * 10,
                "commit_order": number * 10,
                "total_order": 1,
                "snapshot": False,
                "committed_at": START,
                "event_time": START,
                **values,
            }
        )

    def _envelope(self) -> dict[str, object]:
        value = {
            "type": "record",
            "name": "Value",
            "fields": [self._field(c) for c in self.columns],
        }
        return {
            "type": "record",
            "name": "Envelope",
            "fields": [
                {"name": "before", "type": ["null", value]},
                {"name": "after", "type": ["null", "Value"]},
                {"name": "op", "type": "string"},
            ],
        }

    @staticmethod
    def _field(column: Column) -> dict[str, Any]:
        _, avro = TYPES.get(column.type, (None, AVRO.get(column.type)))
        return {"name": column.name, "type": ["null", avro]}

    def _encoded(self, schema: dict[str, object], value: object) -> tuple[int, bytes]:
        number = self.registry.register(json.dumps(schema), json.dumps(schema))
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
        return number, frame(number, out.getvalue())


class Folding:
    """Logs and folds rows epoch by epoch, as ingest does."""

    def __init__(self, lake: Lake, item: Item, policy: FoldPolicy | None = None) -> None:
        self.lake, self.item, self.policy = lake, item, policy
        self.restart()
        self.at: dict[str, TableAt] = {}
        self.held: dict[str, Hold] = {}
        self.epoch = 0

    def restart(self) -> None:
        """Begin as a new process would, with handles of its own."""
        self.tables = Tables()
        self.current = CurrentTables(self.lake, self.tables, self.item.registry, policy=self.policy)
        self.follower = SchemaFollower(self.lake, self.tables, self.item.registry)

    def run(self, entries: Sequence[dict[str, object]]) -> None:
        """Make the next epoch of these log entries."""
        self.append(entries)
        self.fold(entries)

    def append(self, entries: Sequence[dict[str, object]]) -> None:
        """Log the entries of the next epoch."""
        self.epoch += 1
        rows = [{**entry, "epoch": self.epoch} for entry in entries]
        log = changes_log(SOURCE)
        table = pa.Table.from_pylist(rows, CHANGES)
        ArrowWriter(self.tables).append(
            self.lake.path(log), table, Guard(log, Epoch(self.epoch)), partition_by=["table"]
        )

    def fold(self, entries: Sequence[dict[str, object]]) -> None:
        """Fold the newest epoch; a repetition after a crash changes nothing."""
        rows = self.tables.read(
            self.lake.path(changes_log(SOURCE)),
            where=(pc.field("epoch") == self.epoch) & (pc.field("table") != TRANSACTIONS_TABLE),
        )
        assert rows is not None
        names = pc.unique(rows["table"]).to_pylist()
        plans = self.follower.plans(
            SOURCE,
            {name: rows.filter(pc.equal(rows["table"], name)) for name in names},
            {str(entry["transaction_id"]) for entry in entries},
            partial(self._columns),
            from_epoch=self.epoch,
        )
        made: dict[str, TableAt] = {}
        for table, (own, planned) in plans.items():
            if table in self.held:
                continue
            if planned.hold is not None:
                self.held[table] = planned.hold.at(self.epoch)
            elif own.num_rows or planned.evolution:
                made |= self.current.fold(SOURCE, table, own, Epoch(self.epoch), planned.evolution)
        self.at |= made

    def rows(self, names: Sequence[str] | None = None) -> list[dict[str, object]]:
        """Return the folded table by key."""
        found = Tables().read(self.lake.path(current_name(SOURCE, TABLE)))
        if found is None:
            return []
        found = found if names is None else found.select(list(names))
        key = self.item.columns[0].name
        return sorted(found.to_pylist(), key=lambda row: int(str(row[key])))

    def _columns(self, table: str) -> pa.Schema | None:
        name = current_name(SOURCE, table)
        at = self.at.get(name)
        return None if at is None else self.tables.columns(self.lake.path(name), at.version)


def read(kind: str, text: str) -> object:
    """Read PostgreSQL's text of a value as the lake holds it."""
    return int(text) if kind.startswith("int") else text == "t" if kind == "bool" else text
