"""A source made by hand, its stream and its bulk reads, and an ingest that takes both in.

The table is that of `folding`. LSNs count in tens; the stream's rows and ENDs are delivered apart,
each in its order, as by two topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa

from lake.executor_tasks import Tasks, TasksHere
from lake.layers import read_whole
from lake.layout import Lake, current_name
from lake.table_columns import DECODED, MESSAGE, MESSAGES_TABLE
from lake.tables import Tables
from pipeline.commit.folds_beside import BESIDE_ROW_BYTES, FoldsBeside
from pipeline.commit.ingest import REST, Ingest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.tables import CurrentTables
from pipeline.installs.install_book import ALL, Install, InstallBook, hold
from pipeline.installs.staging import Staging
from schemas.key_ranges import Bound as KeyBound
from schemas.key_ranges import KeyRange
from schemas.pg_types import SourceColumn
from schemas.records import MESSAGES
from tests.support.lake.beside import folds_beside
from tests.support.lake.folding import (
    AT,
    SOURCE,
    TABLE,
    Done,
    State,
    apply,
    changes,
    registry,
    state_of,
)
from tests.support.lake.ingested import IngestedLake

COLUMNS = (
    SourceColumn(name="id", type="int8", not_null=True),
    SourceColumn(name="part", type="text", not_null=True),
    SourceColumn(name="name", type="text"),
    SourceColumn(name="size", type="int4"),
)
KEYS = ("id", "part")
NAME = current_name(SOURCE, TABLE)
ROWS, ENDS = f"{SOURCE}.{TABLE}", f"{SOURCE}.transaction"


@dataclass
class HandSource:
    """Commits transactions; remembers what it held after each."""

    lsn: int = 100
    state: State = field(default_factory=dict)
    rows: list[dict[str, object]] = field(default_factory=list)
    ends: list[dict[str, object]] = field(default_factory=list)
    at: dict[int, State] = field(default_factory=lambda: {0: {}})
    _last_end: int = 0

    def commit(self, *done: Done) -> int:
        """Commit one transaction; return its END."""
        logged = changes(done, first=1).to_pylist()
        end = self.lsn + 10 * (len(done) + 1)
        for number, row in enumerate(logged, start=1):
            place = {
                "kind": "change",
                "source": SOURCE,
                "recorded_at": AT,
                "transaction_id": str(end),
                "lsn": self.lsn + 10 * number,
                "commit_order": self._last_end or self.lsn + 10,
                "total_order": number,
                "offset": len(self.rows),
            }
            self.rows.append({k: v for k, v in row.items() if k in DECODED.names} | place)
        self.ends.append(
            {
                "kind": "end",
                "topic": ENDS,
                "partition": 0,
                "offset": len(self.ends),
                "source": SOURCE,
                "transaction_id": str(end),
                "lsn": end,
                "counts": f'{{"{TABLE}": {len(done)}}}' if done else "{}",
                "recorded_at": AT,
            }
        )
        self.lsn = self._last_end = end
        self.state = apply(self.state, done)
        self.at[end] = self.state
        return end

    def signal(self) -> None:
        """Commit a transaction with one logical message, and nothing else."""
        place = {"topic": ROWS, "partition": 0, "offset": len(self.rows), "source": SOURCE}
        before = {"lsn": self.lsn + 10, "commit_order": self._last_end, "total_order": 1}
        self.commit()
        end = self.ends[-1]
        end["counts"] = f'{{"{MESSAGES}": 1}}'
        name = {"kind": MESSAGE, "table": MESSAGES_TABLE, "transaction_id": end["transaction_id"]}
        self.rows.append({**place, **before, **name, "recorded_at": AT, "event_time": AT})

    def read(self, low: KeyBound | None = None, high: KeyBound | None = None) -> pa.Table:
        """Read the rows of a range as PostgreSQL's text, as of now."""
        first = int(low[0]) if low else -(2**62)
        last = int(high[0]) if high else 2**62
        rows = [
            {"id": str(i), "part": part, "name": name, "size": None if n is None else str(n)}
            for i, part, name, n in self.state.values()
            if first <= i < last
        ]
        return pa.Table.from_pylist(rows, pa.schema([(c.name, pa.string()) for c in COLUMNS]))


@dataclass
class HandLake(IngestedLake):
    """Runs epochs over a hand-made source, and installs what was read from it.

    With `beside`, what has more rows than that, or than `row_bytes`, is folded beside its epochs.
    """

    lake: Lake
    source: HandSource = field(default_factory=HandSource)
    policy: FoldPolicy | None = None
    soft: bool = False
    rest: timedelta = REST
    beside: int | None = None
    row_bytes: int = BESIDE_ROW_BYTES
    folds: FoldsBeside | None = None
    tasks: Tasks = field(default_factory=TasksHere)

    def __post_init__(self) -> None:
        self._rows = self._ends = 0
        self._made = 0
        self.restart()

    def restart(self) -> None:
        if self.folds is not None:
            self.folds.close()
        super().restart()

    def made_ingest(self) -> Ingest:
        self.book = InstallBook(self.lake, self.tables)
        known = registry()
        self.current = CurrentTables(
            self.lake,
            self.tables,
            known,
            policy=self.policy,
            soft_deletes=lambda source, table: self.soft,
        )
        if self.beside is not None:
            bounds = {"most_rows": self.beside, "most_row_bytes": self.row_bytes}
            self.folds = folds_beside(self.lake, known, self.current, tasks=self.tasks, **bounds)
        return Ingest(
            self.lake,
            self.tables,
            self.manifest,
            known,
            lateness=lambda _: timedelta(0),
            broker=self,
            current=self.current,
            rest=self.rest,
            beside=self.folds,
        )

    def publish(self, offsets: object) -> None:
        """Offsets are of no interest."""

    def ends(self, source: str) -> dict[str, dict[str, int]]:
        """Return where the topics end: with what has been delivered."""
        return {ROWS: {"0": self._rows}, ENDS: {"0": self._ends}}

    def epoch(self, rows: int | None = None, ends: int | None = None) -> Committed:
        """Deliver some records of each topic, all by default, as one epoch."""
        start = {ROWS: {"0": self._rows}, ENDS: {"0": self._ends}}
        self._rows = _upto(self._rows, rows, len(self.source.rows))
        self._ends = _upto(self._ends, ends, len(self.source.ends))
        return self.between(start, {ROWS: {"0": self._rows}, ENDS: {"0": self._ends}})

    def decoded(self, bound: Bound) -> pa.Table:
        batch = [
            *self.source.rows[bound.start[ROWS]["0"] : bound.end[ROWS]["0"]],
            *self.source.ends[bound.start[ENDS]["0"] : bound.end[ENDS]["0"]],
        ]
        return pa.Table.from_pylist(batch, schema=DECODED)

    def stage(
        self,
        *,
        table: str = TABLE,
        kind: str = ALL,
        low: KeyBound | None = None,
        high: KeyBound | None = None,
        releases: bool = False,
        slots: int = 0,
        since: int = 0,
    ) -> Install:
        """Read the source now, in two chunks, and stage it; nothing is announced.

        Another table than `TABLE` has its rows as of now, and no changes.
        """
        self._made += 1
        id_ = f"i{self._made}"
        staging = Staging(
            self.lake,
            id=id_,
            source=SOURCE,
            table=table,
            columns=COLUMNS,
            soft_deletes=self.soft,
        )
        rows, lsn = self.source.read(low, high), self.source.lsn
        half = rows.num_rows // 2
        staging.stage(0, lsn, [rows.slice(0, half)])
        staging.stage(1, lsn, [rows.slice(half)])
        return Install(
            id=id_,
            source=SOURCE,
            table=table,
            kind=kind,
            low=low,
            high=high,
            lsn=lsn,
            columns=COLUMNS,
            keys=KEYS,
            rows=rows.num_rows,
            read_at=AT,
            lsns=(lsn, lsn),
            releases=releases,
            slots=slots,
            since=since,
        )

    def stage_chunk(self, id_: str, chunk: int, range_: KeyRange) -> int:
        """Read one range of the source now, as a chunk; return its LSN."""
        staging = Staging(
            self.lake,
            id=id_,
            source=SOURCE,
            table=TABLE,
            columns=COLUMNS,
            soft_deletes=self.soft,
        )
        staging.stage(chunk, self.source.lsn, [self.source.read(range_.low, range_.high)])
        return self.source.lsn

    def install(self, id_: str, lsns: tuple[int, ...]) -> Install:
        """Describe staged chunks of the whole table."""
        return Install(
            id=id_,
            source=SOURCE,
            table=TABLE,
            kind=ALL,
            low=None,
            high=None,
            lsn=max(lsns),
            columns=COLUMNS,
            keys=KEYS,
            rows=0,
            read_at=AT,
            lsns=lsns,
        )

    def copy(self, *done: Done) -> None:
        """Let the source do this, and the first copy of its table wait for the next epoch."""
        hold(self.lake, self.tables, SOURCE)
        self.source.commit(*done)
        self.announce(self.stage(releases=True))

    def announce(self, *installs: Install) -> tuple[int, ...]:
        """Announce in one commit."""
        return self.book.put([install.entry() for install in installs])

    def state(self) -> State:
        """Read the table by its name, as of the newest epoch."""
        last = self.manifest.last()
        assert last is not None
        return state_of(read_whole(self.lake, Tables(), NAME, at=last.tables))

    def cut(self) -> int:
        """Return the cut of the newest epoch."""
        last = self.manifest.last()
        return 0 if last is None else last.cuts.get(SOURCE, 0)

    def break_row(self, key: tuple[int, str]) -> None:
        """Change a row behind everybody's back."""
        table = self.tables.open(self.lake.path(NAME))
        assert table is not None
        table.update({"name": "'broken'"}, predicate=f"id = {key[0]} AND part = '{key[1]}'")


def _upto(done: int, more: int | None, most: int) -> int:
    return most if more is None else min(done + more, most)


def some(*ids: int, name: str = "n", op: str = "c") -> Sequence[Done]:
    """Make changes of several keys."""
    return [Done(op, i, name=name, size=i) for i in ids]
