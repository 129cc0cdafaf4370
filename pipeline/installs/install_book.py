"""Bulk data: "the rows of table T in a range of keys, as of LSN L", announced and installed.

    COPY -> Staging (text to the log, values to a generation below the table) -> announce
         -> ingest binds it to an epoch -> Installer: later changes folded in, swapped in, typed

`log/snapshots/_installs` is the book of it: append only, every row with a number of its own.
Ingest takes rows in by number, bound to an epoch like offsets, so that a crash repeats exactly
them. Kinds of row:

    want     somebody asks for tables to be copied again; the pipeline's copier picks it up
    hold     a source begins with a copy: its cut stands still until the install of all its tables
    run      a copy has begun, with its plan: after a crash it goes on from there
    done     a run has ended without an install
    install  rows are staged; ingest installs them in the first epoch whose cut has reached L
    join     tables are about to come back into the stream; a `want` follows
    skip     reading goes on behind records that Kafka lost; a copy has what they said
    decode   records in quarantine are to be decoded again
    waive    records in quarantine are given up: their transactions are complete without them
    strand   tables are not folded any more, and nobody copies them: ingest holds them
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from arro3.core import DataType, Schema
from arro3.core import Field as Column

from lake.layout import Lake
from lake.ledger import Handles, Ledger

if TYPE_CHECKING:
    from lake.tables import Tables
    from schemas.key_ranges import Bound
    from schemas.pg_types import SourceColumn

INSTALLS = "log/snapshots/_installs"
WANT, HOLD, RUN, DONE = "want", "hold", "run", "done"
INSTALL, JOIN, SKIP = "install", "join", "skip"
DECODE, WAIVE = "decode", "waive"
STRAND = "strand"
DECISIONS = (DECODE, WAIVE)
"""About records in quarantine. `id` is their topic; `detail` has their offsets by partition in
`places`, who decided in `by`, and why they are given up in `reason`."""
ALL, HEAL = "all", "heal"

_SCHEMA = Schema(
    [
        Column("number", DataType.int64()),
        Column("kind", DataType.utf8()),
        Column("id", DataType.utf8()),
        Column("source", DataType.utf8()),
        Column("detail", DataType.utf8()),
        Column("at", DataType.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallEntry:
    """A row of the book. `number` is 0 before it is written; `detail` depends on the kind."""

    kind: str
    id: str
    source: str
    detail: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Rows of `table` with keys in [`low`, `high`), as of `lsn`, staged under `id`.

    `kind`: `all` replaces the table, `heal` a range. `read_at` is a moment before any was read.
    `keys` are lake names. `lsns` gives, per chunk, the LSN at which it was read. `releases`: the
    source's cut was held for this. `slots` numbers the source's slot, which began at `since`.
    `version` is the generation's as announced, before anything was folded into it.
    """

    id: str
    source: str
    table: str
    kind: str
    low: Bound | None
    high: Bound | None
    lsn: int
    columns: tuple[SourceColumn, ...]
    keys: tuple[str, ...]
    rows: int
    read_at: datetime
    lsns: tuple[int, ...]
    run: str = ""
    slots: int = 0
    version: int = 0
    releases: bool = False
    since: int = 0
    number: int = 0

    def entry(self) -> InstallEntry:
        """Return its row for the book."""
        detail = asdict(self)
        detail["read_at"] = self.read_at.isoformat()
        del detail["id"], detail["source"], detail["number"]
        return InstallEntry(kind=INSTALL, id=self.id, source=self.source, detail=detail)


def install_of(entry: InstallEntry) -> Install:
    """Read an install back from its row."""
    found = dict(entry.detail)
    columns = tuple(column_of(column) for column in found.pop("columns"))
    low, high = (_bound(found.pop(side)) for side in ("low", "high"))
    return Install(
        id=entry.id,
        source=entry.source,
        number=entry.number,
        columns=columns,
        low=low,
        high=high,
        keys=tuple(found.pop("keys")),
        lsns=tuple(found.pop("lsns")),
        read_at=datetime.fromisoformat(found.pop("read_at")),
        **found,
    )


def column_of(kept: Mapping[str, Any]) -> SourceColumn:
    """Read a column back; what another version wrote besides is passed over."""
    # Who only writes a decision does not pay for types of columns, which take Arrow to load.
    from schemas.pg_types import SourceColumn

    known = {item.name for item in fields(SourceColumn)}
    return SourceColumn(**{name: value for name, value in kept.items() if name in known})


class InstallBook:
    """Reads and appends the book of one lake. Rows are few: they are kept in memory."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._path = lake.path(INSTALLS)
        self._tables = tables
        self._version = -1
        self._entries: list[InstallEntry] = []

    def entries(self) -> list[InstallEntry]:
        """Return all rows in the order of their numbers."""
        table = self._tables.open(self._path)
        if table is None:
            return []
        if table.version() != self._version:
            rows = self._tables.read(self._path)
            assert rows is not None, "a table that was opened can be read"
            found = sorted(rows.to_pylist(), key=lambda row: int(row["number"]))
            self._entries = [_entry(row) for row in found]
            self._version = table.version()
        return list(self._entries)

    def installs(self) -> list[Install]:
        """Return everything that was announced, in its order."""
        return [install_of(entry) for entry in self.entries() if entry.kind == INSTALL]

    def put(self, entries: Sequence[InstallEntry]) -> tuple[int, ...]:
        """Write rows; see `announce`."""
        return announce(self._lake, self._tables, entries)


def announce(lake: Lake, tables: Handles, entries: Sequence[InstallEntry]) -> tuple[int, ...]:
    """Write rows in one commit, after those that others write now; return their numbers.

    Raises `LeaseLost` when others were faster every time.
    """
    if not entries:
        return ()
    now = datetime.now(UTC)
    first = Ledger(lake.path(INSTALLS), tables, _SCHEMA, INSTALLS).put(
        lambda first: [
            {
                "number": number,
                "kind": entry.kind,
                "id": entry.id,
                "source": entry.source,
                "detail": json.dumps(entry.detail, separators=(",", ":")),
                "at": now,
            }
            for number, entry in enumerate(entries, start=first)
        ],
        numbers=len(entries),
    )
    return tuple(range(first, first + len(entries)))


def hold(lake: Lake, tables: Tables, source: str, *, slots: int = 0) -> int:
    """Make a source's cut stand still until its tables were copied.

    Call it before the source's connector starts for the first time, or with a new slot. Rows go to
    the log meanwhile; `current` shows what it showed before. `slots` numbers the slot that it
    starts with: what was read behind an earlier one is taken in no more. Returns the number in the
    book.
    """
    entry = InstallEntry(kind=HOLD, id=source, source=source, detail={"slots": slots})
    return InstallBook(lake, tables).put([entry])[0]


def request(lake: Lake, tables: Tables, source: str, names: Sequence[str], *, reason: str) -> int:
    """Ask for tables to be copied again while they are streamed. Returns the number in the book."""
    detail = {"tables": sorted(names), "reason": reason}
    return InstallBook(lake, tables).put(
        [InstallEntry(kind=WANT, id=source, source=source, detail=detail)]
    )[0]


def _entry(row: dict[str, Any]) -> InstallEntry:
    return InstallEntry(
        kind=row["kind"],
        id=row["id"],
        source=row["source"],
        detail=json.loads(row["detail"]),
        number=int(row["number"]),
        at=row["at"],
    )


def _bound(found: Sequence[str] | None) -> Bound | None:
    return None if found is None else tuple(found)
