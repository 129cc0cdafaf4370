"""Plans what DDL among a source's rows does to its tables in the lake.

Upstream: log rows that became foldable. Downstream: `CurrentTables.fold` and what is held; typed
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc

from lake.attempts import Attempts
from lake.layout import Lake, changes_log
from lake.table_columns import MESSAGES_TABLE, SCHEMA_TABLE, TRANSACTIONS_TABLE
from lake.tables import Tables
from pipeline.ddl.evolution import Planned, Told, plan
from pipeline.ddl.fact_columns import plan_facts, plan_told
from pipeline.ddl.held_tables import Hold
from pipeline.ddl.messages import tell
from pipeline.ddl.steps import Evolution, Order
from schemas.registry import SchemaLookup

Columns = Callable[[str], pa.Schema | None]
"""Returns the columns that a captured table has in the lake, None for one that is not there yet.

The answer must be the same when an epoch is repeated: as of the epoch before."""

Evolving = Callable[[pa.Schema], Evolution]
"""Returns what brings rows of these columns to those that facts have."""


def planned(evolution: Evolution, _stored: pa.Schema) -> Evolution:
    """Return an evolution that was planned for the columns that are stored."""
    return evolution


class SchemaFollower:
    """Reads what DDL told from the log of a source; keeps nothing."""

    def __init__(self, lake: Lake, tables: Tables, schemas: SchemaLookup) -> None:
        self._lake = lake
        self._tables = tables
        self._schemas = schemas

    def plans(
        self,
        source: str,
        rows: Mapping[str, pa.Table],
        fresh: Container[str],
        columns: Columns,
        *,
        from_epoch: int,
        attempts: Attempts | None = None,
    ) -> dict[str, tuple[pa.Table, Planned]]:
        """Return, per table that has rows or DDL, the rows to fold and how.

        `rows` are the log rows to fold per table, with those of table `_schema`, all of the
        transactions `fresh`, logged since `from_epoch`. Where there are `attempts`, they take the
        errors of single tables. Raises `SchemaViolation` for a message that cannot be read.
        """
        plans: dict[str, tuple[pa.Table, Planned]] = {}
        for table, told, own in self._each(source, rows, fresh, from_epoch):
            with _of(attempts, table):
                stored = columns(table)
                # Without rows and without columns here it is a table that nobody captures.
                if table in rows or stored is not None:
                    plans[table] = own, plan(told, own, stored, self._schemas)
        return plans

    def facts(
        self,
        source: str,
        rows: Mapping[str, pa.Table],
        fresh: Container[str],
        columns: Columns,
        from_epoch: int,
        copied: Mapping[str, tuple[Order, pa.Schema]] = MappingProxyType({}),
        attempts: Attempts | None = None,
    ) -> dict[str, tuple[pa.Table, Evolution]]:
        """Return, per table, the rows that typed tables take in and how; as `plans`.

        Tables that are not there yet may begin with rows that were `copied`, at a place and with
        columns.
        """
        facts: dict[str, tuple[pa.Table, Evolution]] = {}
        for table, told, own in self._each(source, rows, fresh, from_epoch):
            with _of(attempts, table):
                stored = columns(table)
                if table in rows or stored is not None or table in copied:
                    begun = copied.get(table)
                    facts[table] = own, plan_facts(told, own, stored, self._schemas, begun)
        return facts

    def _each(
        self,
        source: str,
        rows: Mapping[str, pa.Table],
        fresh: Container[str],
        from_epoch: int,
    ) -> Iterator[tuple[str, list[Told], pa.Table]]:
        told = self._told(source, rows.get(SCHEMA_TABLE), fresh, from_epoch)
        for table in sorted({*rows, *told} - {SCHEMA_TABLE, MESSAGES_TABLE}):
            own = rows[table] if table in rows else rows[SCHEMA_TABLE].schema.empty_table()
            yield table, told.get(table, []), own

    def since(
        self, source: str, table: str, hold: Hold, up_to: int, stored: pa.Schema
    ) -> Evolution:
        """Return how rows of a table that is held get the columns that its facts have by now.

        `stored` are its columns since it stands still, `up_to` is the last END that is visible.
        """
        from_epoch = 0 if any(hold.order) else hold.from_epoch
        behind = (hold.order, from_epoch)
        return evolved_since(self._lake, self._tables, source, table, behind, up_to, stored)

    def _told(
        self, source: str, own: pa.Table | None, fresh: Container[str], from_epoch: int
    ) -> dict[str, list[Told]]:
        if own is None:
            return {}
        messages = _messages(self._lake, self._tables, source)
        assert messages is not None, "the log has the rows that were just read from it"
        # What comes behind the range to fold is not known yet.
        known = pc.less_equal(messages["commit_order"], pc.max(own["commit_order"]))
        return tell(messages.filter(known), fresh, from_epoch=from_epoch)


def evolved_since(
    lake: Lake,
    tables: Tables,
    source: str,
    table: str,
    behind: tuple[Order, int],
    up_to: int,
    stored: pa.Schema,
) -> Evolution:
    """Return what DDL made of columns that were `stored`, up to an END.

    It counts from a place and an epoch on (`behind`).
    """
    return plan_told(told_since(lake, tables, source, table, behind, up_to), stored)


def told_since(
    lake: Lake,
    tables: Tables,
    source: str,
    table: str,
    behind: tuple[Order, int],
    up_to: int,
) -> list[Told]:
    """Return what messages up to an END say of a table, from a place and an epoch on."""
    order, from_epoch = behind
    messages = _messages(lake, tables, source)
    if messages is None:
        return []
    ended = tables.read(
        lake.path(changes_log(source)),
        where=(pc.field("table") == TRANSACTIONS_TABLE)
        & pc.field("transaction_id").isin(pc.unique(messages["transaction_id"]))
        & (pc.field("lsn") <= up_to),
        columns=["transaction_id"],
    )
    fresh = frozenset(() if ended is None else ended["transaction_id"].to_pylist())
    told = tell(messages, fresh, from_epoch=from_epoch).get(table, [])
    return [message for message in told if message.order >= order]


def _messages(lake: Lake, tables: Tables, source: str) -> pa.Table | None:
    """Read every DDL message of a source from its log."""
    return tables.read(lake.path(changes_log(source)), where=pc.field("table") == SCHEMA_TABLE)


def _of(attempts: Attempts | None, table: str) -> AbstractContextManager[None]:
    return nullcontext() if attempts is None else attempts.of(table)
