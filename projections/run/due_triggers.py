"""Which projections wait for their own trigger, `emit = 'every d'` or `'on count n'`.

A trigger bounds how often a table is written. What waits for it neither fails nor stands still, and
delays nobody else: but who reads its table is written with it, so that both fit at every epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc
from deltalake import DeltaTable

from kernel.clock import UNIX_EPOCH
from kernel.positions import Epoch
from lake.datasets import dataset_of
from lake.layout import Lake
from lake.tables import Tables
from pipeline.typed.columns import EPOCH
from projections.run.input_rows import input_tables
from projections.run.relations import LakeCatalog
from projections.sql.plans.plan import Plan
from projections.sql.statements.lineage import in_order
from projections.sql.words.triggers import Trigger

_Counted = tuple[Epoch, Epoch, tuple[int, ...]]
"""What rows were counted of: the epochs after one and up to another, and the tables' versions."""


class Triggering:
    """Remembers when tables were written, and counts the rows that came since. For one thread."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._tables = tables
        self._written: dict[str, datetime] = {}
        self._counted: dict[str, tuple[_Counted, int]] = {}

    def written(self, name: str) -> None:
        """Take note that a projection's table was written just now."""
        self._written[name] = datetime.now(UTC)

    def forget(self, name: str) -> None:
        """Forget a projection that is not deployed any more."""
        self._written.pop(name, None)
        self._counted.pop(name, None)

    def waiting(
        self,
        plans: Mapping[str, Plan],
        reads: Mapping[str, Collection[str]],
        triggers: Mapping[str, Trigger],
        cursors: Mapping[str, Epoch],
        catalog: LakeCatalog,
        up_to: Epoch,
    ) -> dict[str, str]:
        """Say of each projection that waits by design what for.

        `cursors` are the epochs that projections with a trigger have; one without has not run yet,
        which it does at once.
        """
        waits: dict[str, str] = {}
        for name in in_order(reads):
            after = cursors.get(name)
            if name in triggers and after is not None and after < up_to:
                reason = self._reason(name, plans[name], triggers[name], catalog, after, up_to)
                if reason is not None:
                    waits[name] = f"waits for its trigger, {triggers[name].words}: {reason}"
                    continue
            held = next((other for other in reads[name] if other in waits), None)
            if held is not None:
                waits[name] = f"is written with {held}, which {waits[held]}"
        return waits

    def _reason(
        self,
        name: str,
        plan: Plan,
        trigger: Trigger,
        catalog: LakeCatalog,
        after: Epoch,
        up_to: Epoch,
    ) -> str | None:
        if trigger.every is not None:
            due = self._last(name) + trigger.every
            return None if datetime.now(UTC) >= due else f"due at {due.isoformat('T', 'seconds')}"
        opened = [self._tables.open(self._lake.path(n)) for n in input_tables(plan, catalog)]
        tables = [table for table in opened if table is not None]
        # A projection that is read gets its rows of an epoch after that was first asked for.
        asked = after, up_to, tuple(table.version() for table in tables)
        known, rows = self._counted.get(name, (None, 0))
        if known != asked:
            where = (pc.field(EPOCH) > after) & (pc.field(EPOCH) <= up_to)
            rows = sum(dataset_of(table).count_rows(filter=where) for table in tables)
            self._counted[name] = asked, rows
        return None if rows >= (trigger.count or 0) else f"{rows} rows came"

    def _last(self, name: str) -> datetime:
        """Return when a table was written last, by this process or by one before it."""
        if name not in self._written:
            table = self._tables.open(self._lake.path(f"projection/{name}"))
            self._written[name] = _committed_at(table)
        return self._written[name]


def _committed_at(table: DeltaTable | None) -> datetime:
    if table is None:
        return UNIX_EPOCH
    (newest, *_) = table.history(1)
    return UNIX_EPOCH + timedelta(milliseconds=int(newest["timestamp"]))
