"""The tables of one flow: the target, what is remembered beneath it, what was refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kernel.clock import micros
from kernel.errors import Conflict, Incompatible, LeaseLost
from kernel.positions import DeltaVersion, Epoch
from lake.collecting import FEW_ROWS, FLOW_CHANGES, collected
from lake.layout import Lake
from lake.spark_writer import SparkWriter
from lake.tables import Tables
from lake.upkeep.compaction import compact
from lake.views import DeltaFrames
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from projections.auto_cdc.arguments import Shape
from projections.auto_cdc.names import DELETED, EPOCH, FACTS, ID, QUARANTINE, TAKEN_US
from schemas.identifiers import datafusion_name

BOUNDED_ROWS = 20_000
"""Changes up to this many are committed from this process, more from the executors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a flow's target lies, and the app id of its commits."""

    name: str
    path: str

    @property
    def facts(self) -> str:
        """Path of the facts that are remembered."""
        return f"{self.path}/{FACTS}"

    @property
    def quarantine(self) -> str:
        """Path of the changes that were refused, with the reason."""
        return f"{self.path}/{QUARANTINE}"

    @property
    def app_id(self) -> str:
        """App id of all commits to the three tables: two writers at once conflict."""
        return f"auto_cdc/{self.name}"


class FlowTables:
    """Reads and commits a flow's tables. Every commit is guarded by the flow's own epoch."""

    def __init__(self, place: Place, tables: Tables) -> None:
        self.place = place
        self._tables = tables
        self._arrow = ArrowWriter(tables)

    def epoch(self, path: str) -> int:
        """Return the last epoch that a table has; 0 where there is none."""
        table = self._tables.open(path)
        return (table.transaction_version(self.place.app_id) or 0) if table is not None else 0

    def done(self, once: str) -> bool:
        """Say whether a flow that runs once has run."""
        table = self._tables.open(self.place.path)
        return table is not None and table.transaction_version(once) is not None

    def mark(self, once: str, session: SparkSession) -> None:
        """Note that a flow that runs once has run."""
        rows = self.read(session, self.place.path)
        if rows is not None:
            none = collected(rows.limit(0), FEW_ROWS)
            self._arrow.append(self.place.path, none, Guard(once, Epoch(1)))

    def read(self, session: SparkSession, path: str) -> DataFrame | None:
        """Return a table's rows; None where there is none."""
        return DeltaFrames(session, self._tables).frame(path)

    def agree(self, shape: Shape) -> None:
        """Hold the flow to what its target was made with.

        Raises `Conflict` for a table that is no flow's, `Incompatible` for another key, type of
        sequence or SCD type than before.
        """
        facts, target = (self._tables.open(p) for p in (self.place.facts, self.place.path))
        if facts is None and target is not None:
            raise Conflict(
                f"{self.place.name} is a table already, and no target of AUTO CDC",
                remedy="Choose another target; a flow makes its table itself.",
            )
        if facts is None:
            return
        said = json.loads(facts.metadata().description or "{}")
        now = _description(shape)
        different = [name for name in now if name in said and said[name] != now[name]]
        if different:
            raise Incompatible(
                f"{self.place.name} was made with other {', '.join(different)}: "
                + "; ".join(f"{name} was {said[name]}, is {now[name]}" for name in different),
                remedy="Choose another target, or remove the table and run over all changes again.",
            )

    def describe(self, shape: Shape) -> None:
        """Note what the target is made with, once."""
        facts = self._tables.open(self.place.facts)
        if facts is not None and not facts.metadata().description:
            facts.alter.set_table_description(json.dumps(_description(shape)))

    def merge(
        self, path: str, rows: DataFrame, epoch: Epoch, *, keys: tuple[str, ...], small: bool
    ) -> DeltaVersion:
        """Upsert and delete rows as their `__op` says.

        Raises `LeaseLost` when another run of the flow committed this epoch.
        """
        return self._merge(path, rows, Guard(self.place.app_id, epoch), keys, small=small)

    def refuse(self, rows: DataFrame, *, small: bool) -> None:
        """Put changes into quarantine; those that are there already stay as they are.

        Counted by itself: after a crash another batch may take the same epoch, and what that one
        refuses must not pass for written.
        """
        path = self.place.quarantine
        guard = Guard(self.place.app_id, Epoch(self.epoch(path) + 1))
        self._merge(path, rows, guard, ("id",), small=small)

    def _merge(
        self, path: str, rows: DataFrame, guard: Guard, keys: tuple[str, ...], *, small: bool
    ) -> DeltaVersion:
        # deltalake's MERGE compares no structs.
        plain = not any(isinstance(rows.schema[key].dataType, StructType) for key in keys)
        if small and plain:
            table = collected(rows, FLOW_CHANGES)
            version = self._arrow.merge(path, table, guard, keys=keys)
            if path == self.place.facts:
                self.own(guard.epoch, table.filter(pc.equal(table[OP], UPSERT)))
            return version
        return SparkWriter(rows.sparkSession, self._tables).merge(path, rows, guard, keys=keys)

    def own(self, epoch: Epoch, ids: pa.Table) -> None:
        """See that the facts of an epoch are the ones that this run committed.

        Of two runs at one moment the later one's commit is skipped as one that was made before.
        """
        found = self._tables.read(
            self.place.facts, where=pc.field(EPOCH) == int(epoch), columns=[ID]
        )
        there = set(found[ID].to_pylist()) if found is not None else set()
        if not set(ids[ID].to_pylist()) <= there:
            raise LeaseLost(f"another run of {self.place.app_id} committed epoch {epoch}")

    def tend(self, *, forget_before: datetime | None) -> None:
        """Put small files together, and forget deletes that were taken in before a moment."""
        root, _, last = self.place.path.rpartition("/")
        compact(Lake(root), self._tables, [last])
        compact(Lake(self.place.path), self._tables, [FACTS, QUARANTINE])
        facts = self._tables.open(self.place.facts)
        if facts is not None and forget_before is not None:
            taken = f"{datafusion_name(TAKEN_US)} < {micros(forget_before)}"
            facts.delete(f"{datafusion_name(DELETED)} AND {taken}")
            self._tables.forget(self.place.facts)

    def overwrite(self, path: str, rows: DataFrame, epoch: Epoch) -> DeltaVersion:
        """Replace all rows."""
        guard = Guard(self.place.app_id, epoch)
        return SparkWriter(rows.sparkSession, self._tables).overwrite(path, rows, guard)


def _description(shape: Shape) -> dict[str, object]:
    return {
        "keys": sorted(shape.keys),
        "sequence": shape.sequence.simpleString(),
        "stored_as_scd_type": shape.scd_type,
        "apply_as_truncates": shape.truncates,
    }
