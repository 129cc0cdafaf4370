"""A source made by hand, with DDL and copies, through real ingest to typed and history tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from pyspark.sql import SparkSession

from lake.layers import read_whole
from lake.layout import Lake, current_name
from lake.table_columns import SCHEMA_TABLE
from lake.tables import Tables
from pipeline.commit.folds_beside import BESIDE_BYTES
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest_rows import Committed
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.tables import CurrentTables
from pipeline.history.shape import HistoryOf
from pipeline.history.tables import HistoryTables
from pipeline.installs.install_book import Install, InstallBook
from pipeline.typed.columns import truncates_name
from pipeline.typed.tables import TypedTables
from projections.run.derived_tables import Brought, DerivedTables
from schemas.lake_columns import captured_column
from schemas.registry import MemoryRegistry
from tests.support.lake.beside import folds_beside
from tests.support.lake.handmade import NoSpark
from tests.support.lake.ingested import BatchedLake, SilentBroker
from tests.support.sources.ddl_copies import TYPED, ended
from tests.support.sources.ddl_rows import SOURCE, START, TABLE, Item

NAME = current_name(SOURCE, TABLE)
ROWS, ENDS, NOTES = f"{SOURCE}.{TABLE}", f"{SOURCE}.transaction", f"{SOURCE}.notifications"
HISTORY = HistoryOf(
    name=f"history/{SOURCE}.{TABLE}",
    typed=TYPED,
    key=("id",),
    identity=("id",),
    by_row=False,
    truncates=truncates_name(SOURCE),
    table=TABLE,
)


@dataclass
class FollowedItem(BatchedLake):
    """Delivers the log of a table, one epoch at a time.

    With `beside`, what takes more rows than that is done beside the epochs, or larger files than
    `beside_bytes` are brought to new columns.
    """

    lake: Lake
    item: Item = field(default_factory=Item)
    histories: Sequence[HistoryOf] = ()
    soft: bool = False
    policy: FoldPolicy | None = None
    beside: int | None = None
    beside_bytes: int = BESIDE_BYTES
    logged: int = 0
    batch: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.registry: MemoryRegistry = self.item.registry
        self.restart()
        begun = {"kind": "snapshot", "counts": '{"rows": 0}', "lsn": 0, "source": SOURCE}
        self.batch = [{**begun, "topic": NOTES, "partition": 0, "offset": 0, "recorded_at": START}]
        self.between({}, {NOTES: {"0": 1}})

    def made_ingest(self) -> Ingest:
        current = CurrentTables(
            self.lake,
            self.tables,
            self.registry,
            soft_deletes=lambda *_: self.soft,
            policy=self.policy,
        )
        most, most_bytes = self.beside, self.beside_bytes
        return Ingest(
            self.lake,
            self.tables,
            self.manifest,
            self.registry,
            lateness=lambda _: timedelta(0),
            broker=SilentBroker(),
            current=current,
            beside=None
            if most is None
            else folds_beside(self.lake, self.registry, current, most, most_bytes=most_bytes),
        )

    def restart(self) -> None:
        """Begin as a new process would: from the manifest."""
        super().restart()
        self.derived = DerivedTables(
            self.lake,
            self.tables,
            self.manifest,
            TypedTables(self.lake, self.tables, self.registry),
            HistoryTables(cast(SparkSession, NoSpark()), self.lake, self.tables),
        )

    def epoch(self) -> Committed:
        """Deliver what came since the last epoch."""
        start, own = self.logged, self.item.log[self.logged :]
        self.logged = len(self.item.log)
        self.batch = [self._row(e, start + n) for n, e in enumerate(own)]
        self.batch += [self._end(e, start + n) for n, e in enumerate(own)]
        first, last = ({t: {"0": n} for t in (ROWS, ENDS)} for n in (start, self.logged))
        return self.between({NOTES: {"0": 1}, **first}, {NOTES: {"0": 1}, **last})

    def announce(self, install: Install) -> None:
        """Let a copy wait for the next epoch."""
        InstallBook(self.lake, self.tables).put([install.entry()])

    def bring(self) -> Brought:
        """Bring derived tables up to the last epoch."""
        last = self.manifest.last()
        assert last is not None
        return self.derived.bring(self.derived.at(), last, self.histories)

    def current(self) -> list[dict[str, object]]:
        """Return the table's rows, under the source's columns."""
        last = self.manifest.last()
        assert last is not None
        rows = read_whole(self.lake, Tables(), NAME, at=last.tables)
        assert rows is not None
        key = self.item.columns[0].name
        found = rows.select([c.name for c in self.item.columns]).to_pylist()
        return sorted(found, key=lambda row: int(str(row[key])))

    def facts(self, *names: str) -> list[tuple[object, ...]]:
        """Return the values of the facts, in the source's order and that of their keys."""
        rows = Tables().read(self.lake.path(TYPED))
        assert rows is not None
        key = captured_column(self.item.columns[0].name)
        rows = rows.sort_by([(name, "ascending") for name in ("_seq_hi", "_seq_lo", key)])
        return [tuple(row[name] for name in names) for row in rows.to_pylist()]

    @staticmethod
    def _row(entry: dict[str, object], offset: int) -> dict[str, object]:
        kind = "message" if entry["table"] == SCHEMA_TABLE else "change"
        place = {"topic": ROWS, "partition": 0, "offset": offset, "source": SOURCE}
        return {"kind": kind, "recorded_at": START, **place, **entry}

    @staticmethod
    def _end(entry: dict[str, object], offset: int) -> dict[str, object]:
        place = {"topic": ENDS, "partition": 0, "offset": offset, "source": SOURCE}
        told = {n: v for n, v in ended(entry).items() if n not in ("table", "committed_at")}
        return {"kind": "end", "recorded_at": START, **place, **told}
