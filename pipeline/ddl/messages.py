"""The source's tables as its DDL told them, from the messages that the log keeps.

    log rows of `_schema` -> tell -> per table: Told (what changed, and what was known before)

Tables are followed by oid, so that one that is renamed, dropped or replaced by another is not
mistaken for itself.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import replace
from operator import itemgetter

import pyarrow as pa

from kernel.errors import SchemaViolation
from pipeline.ddl.evolution import Told, hold_of
from pipeline.ddl.steps import Order
from pipeline.order import NEEDED, places_of
from schemas.lake_columns import folded
from schemas.schema_change import SchemaChange, parse_schema_change

log = logging.getLogger(__name__)

_COLUMNS = ("epoch", "transaction_id", "counts", *NEEDED)


def tell(
    messages: pa.Table, fresh: Container[str], *, from_epoch: int = 0
) -> dict[str, list[Told]]:
    """Say what the messages of `fresh` transactions, logged since `from_epoch`, tell of each table.

    `messages` are all log rows with DDL up to and including them, in any order; the others are
    what was known before. One that is no message of ours tells nothing. One of a later version
    holds the table that it names, and no other: whoever may connect to the source may write it.
    """
    known = _Known()
    found: dict[str, list[Told]] = {}
    rows = zip(places_of(messages), messages.select(_COLUMNS).to_pylist(), strict=True)
    for order, row in sorted(rows, key=itemgetter(0)):
        new = row["epoch"] >= from_epoch and row["transaction_id"] in fresh
        told = known.take(order, row["counts"], warn=new)
        if new:
            for table, message in told:
                found.setdefault(table, []).append(message)
    return found


class _Known:
    """Every table by its oid, as the last message left it."""

    def __init__(self) -> None:
        self._by_oid: dict[int, SchemaChange] = {}
        self._named: dict[str, int] = {}
        self._columns: dict[int, frozenset[str]] = {}

    def take(self, order: Order, text: str, *, warn: bool) -> list[tuple[str, Told]]:
        """Take a message; return what it tells, by table: nothing where somebody else wrote it."""
        try:
            change = parse_schema_change(text)
        except SchemaViolation as error:
            if "later" in error.fields:
                return [self._later(order, error)]
            if warn:
                log.warning(
                    "a message of DDL that the event triggers did not write: %s", error.message
                )
            return []
        return self._taken(order, change)

    def _later(self, order: Order, error: SchemaViolation) -> tuple[str, Told]:
        """What it did to its table is not known: the next message is the first one."""
        table = str(error.fields["table"])
        oid = self._named.pop(table, 0)
        before = self._by_oid.pop(oid, None)
        change = SchemaChange(
            kind="alter", tag="", oid=oid, table=table, columns=before.columns if before else ()
        )
        reason = f"what changed was told in a later version's words: {error.message}"
        return table, _held(Told(order=order, change=change, before=before), reason)

    def _taken(self, order: Order, change: SchemaChange) -> list[tuple[str, Told]]:
        if change.kind == "drop":
            return self._dropped(order, change)
        if change.root is not None:
            return self._partition(change)
        told: list[tuple[str, Told]] = []
        before = self._by_oid.get(change.oid)
        named = self._columns.get(change.oid, frozenset())
        self._columns[change.oid] = named | {folded(c.name) for c in change.by_attnum().values()}
        message = Told(order=order, change=change, before=before, named=named)
        if before is not None and before.table != change.table:
            reason = f"it is called {change.table} now: later changes are not captured"
            told.append((before.table, _held(message, reason)))
            self._named.pop(before.table, None)
            message = replace(message, before=None)
        if self._named.get(change.table, change.oid) != change.oid:
            message = _held(message, "another table has its name now")
        told.append((change.table, message))
        self._by_oid[change.oid] = change
        self._named[change.table] = change.oid
        return told

    def _dropped(self, order: Order, change: SchemaChange) -> list[tuple[str, Told]]:
        before = self._by_oid.pop(change.oid, None)
        message = Told(order=order, change=change, before=before)
        told: list[tuple[str, Told]] = []
        for root in list(self._by_oid.values()):
            if change.oid in root.partitions:
                gone = _held(message, f"its partition {change.table} was dropped, with its rows")
                told.append((root.table, gone))
                rest = root.partitions - {change.oid}
                self._by_oid[root.oid] = replace(root, partitions=rest)
        if not told and self._named.get(change.table, change.oid) == change.oid:
            self._named.pop(change.table, None)
            told.append((change.table, _held(message, "it was dropped")))
        return told

    def _partition(self, change: SchemaChange) -> list[tuple[str, Told]]:
        """A partition's rows come as its root's; a fresh one has none yet."""
        root = self._by_oid.get(change.root or 0)
        if root is not None and change.kind == "create" and change.leaf:
            partitions = root.partitions | {change.oid}
            self._by_oid[root.oid] = replace(root, partitions=partitions)
        return []


def _held(message: Told, reason: str) -> Told:
    return replace(message, hold=hold_of(message, reason))
