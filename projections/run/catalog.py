"""`lake/catalog`: what is deployed. Append only; the newest row of a kind and name counts.

Kinds: `capture` (a captured source: its tables), `slot` (the slot that a captured source reads
from, and whether it is lost), `source` (a CREATE SOURCE statement), `projection` (a CREATE
PROJECTION statement and its live generation), `retry` (somebody asked for a held table to be tried
again now), `claim` (another generation is about to take a projection's place: it holds still until
the time that the text is). Kinds that a later version brings are passed over. The command line
appends, the pipeline reads: neither needs the other to be up. Arrow, and what reads SQL, are loaded
where they are needed: who only lists, changes a status, or asks for a retry, pays nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from arro3.core import DataType, Field, Schema

from kernel.errors import Conflict, NotFound, PenstockError
from lake.layout import Lake
from lake.ledger import Handles, Ledger
from projections.run.captured_tables import CapturedTable, parse_tables
from schemas.incarnations import Incarnation, parse_incarnation
from schemas.lake_columns import captured_columns

if TYPE_CHECKING:
    from projections.sql.statements.declarations import ProjectionDecl, SourceDecl
    from schemas.topic_records import TopicShape

SCHEMA = Schema(
    [
        Field("entry", DataType.int64()),
        Field("kind", DataType.utf8()),
        Field("name", DataType.utf8()),
        Field("generation", DataType.int32()),
        Field("status", DataType.utf8()),
        Field("text", DataType.utf8()),
        Field("include_late", DataType.bool()),
        Field("at", DataType.timestamp("us", tz="UTC")),
    ]
)

CAPTURE, SLOT, SOURCE, PROJECTION = "capture", "slot", "source", "projection"
RETRY, CLAIM = "retry", "claim"
LIVE, PAUSED, DROPPED, LOST = "live", "paused", "dropped", "lost"
CLAIMED_FOR = timedelta(minutes=1)
"""A claim ends after that: whoever made it may have died."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One deployed thing. `text` is its SQL; of a capture or a slot JSON.

    `include_late`: this generation takes rows that came later than their lateness allows.
    `since` numbers the entry that made the text what it is, whatever it had been before; `number`
    is the entry's own.
    """

    kind: str
    name: str
    generation: int
    status: str
    text: str
    include_late: bool = False
    since: int = field(default=0, compare=False)
    number: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Everything that is deployed at one version of the catalog.

    `claims` end by themselves; `changed` numbers the newest entry of another kind. `unread` are
    sources and projections whose text is refused by now, by kind and name, with what it says.
    """

    version: int
    captures: dict[str, dict[str, CapturedTable]]
    slots: dict[str, Incarnation]
    sources: dict[str, SourceDecl]
    since: dict[str, int] = field(default_factory=dict)
    projections: dict[str, tuple[Entry, ProjectionDecl]]
    unread: dict[tuple[str, str], tuple[Entry, PenstockError]] = field(default_factory=dict)
    claims: dict[str, datetime] = field(default_factory=dict)
    changed: int = 0

    @property
    def declared(self) -> dict[str, ProjectionDecl]:
        """The projections' statements, by name."""
        return {name: decl for name, (_, decl) in self.projections.items()}

    def keys(self) -> dict[str, tuple[str, ...]]:
        """Return the primary key of every captured table in the lake, by `<source>.<table>`."""
        return {
            f"{source}.{table}": captured_columns(captured.keys)
            for source, tables in self.captures.items()
            for table, captured in tables.items()
        }

    @property
    def held(self) -> dict[str, tuple[Entry, PenstockError]]:
        """The projections that stand still because their text is refused, by name."""
        return {name: of for (kind, name), of in self.unread.items() if kind == PROJECTION}

    @property
    def generations(self) -> dict[str, int]:
        """The live generation of each projection, also where its text is refused."""
        known = [*self.projections.items(), *self.held.items()]
        return {name: entry.generation for name, (entry, _) in known}

    def claimed(self, name: str) -> bool:
        """Say whether a projection holds still: another generation is about to take its place."""
        until = self.claims.get(name)
        left = timedelta(0) if until is None else until - datetime.now(UTC)
        # Not for ever, whatever clock the claim was made by.
        return timedelta(0) < left <= 2 * CLAIMED_FOR

    @property
    def topics(self) -> dict[str, TopicShape]:
        """The declared sources that read an external topic, by name, and what they say of it."""
        from projections.sql.statements.topics import shape_of

        return {
            name: replace(shape, declared=self.since.get(name, 0))
            for name, source in self.sources.items()
            if (shape := shape_of(source)) is not None
        }

    def captured(self, source: str, table: str) -> CapturedTable | None:
        """Return what is declared for a captured table; None when it is not captured (any more)."""
        return self.captures.get(source, {}).get(table)

    def keeps_deleted(self, source: str, table: str) -> bool:
        """Say whether a captured table keeps its deleted rows, marked."""
        captured = self.captured(source, table)
        return captured is not None and captured.soft_deletes

    def histories(self) -> list[str]:
        """Return the captured tables whose history was asked for, as `<source>.<table>`."""
        return [
            f"{source}.{table}"
            for source, tables in self.captures.items()
            for table, captured in tables.items()
            if captured.history and captured.keys
        ]

    def lateness(self, name: str, default: timedelta) -> timedelta:
        """Return how late rows of an input (`events.flight`, `shop.public.orders`) may be.

        Results that ended before that are final.
        """
        for source in self.sources.values():
            if _is_of(source, name) and source.lateness is not None:
                return source.lateness
        return default

    def closed_after(self, name: str, default: timedelta) -> timedelta:
        """Return how late rows of an input may be and still correct results by themselves."""
        for source in self.sources.values():
            if _is_of(source, name) and source.closed_after is not None:
                return max(source.closed_after, self.lateness(name, default))
        return self.lateness(name, default)

    def idle_timeout(self, name: str) -> timedelta | None:
        """Return how long a silent input is waited for; None for ever."""
        for source in self.sources.values():
            if _is_of(source, name) and source.idle_timeout is not None:
                return source.idle_timeout
        return None

    @property
    def idle_timeouts(self) -> list[timedelta]:
        """Return for how long silent inputs are waited for, of all sources that say so."""
        declared = (source.idle_timeout for source in self.sources.values())
        return [timeout for timeout in declared if timeout is not None]

    def event_times(self, capture: str) -> dict[str, str]:
        """Return, for tables of a captured source, the columns that hold their event time."""
        found: dict[str, str] = {}
        for source in self.sources.values():
            on, _, table = (source.on or "").partition(".")
            if on == capture and source.event_time:
                found[table] = source.event_time
        return found


class CatalogTables(Handles, Protocol):
    """Opens the catalog's table: `lake.tables.Tables`, or the light `lake.rows.SmallTables`."""

    def rows(self, path: str) -> list[dict[str, Any]]:
        """Return all rows of a table, in no order; none where there is no table."""
        ...

    def version(self, path: str) -> int:
        """Return a table's version; -1 where there is no table. Cheap."""
        ...


class DeployedCatalog:
    """Reads and appends the catalog of one lake."""

    def __init__(
        self, lake: Lake, tables: CatalogTables, coming: Mapping[str, Entry] | None = None
    ) -> None:
        """`coming`: projections that are seen as if these entries were deployed already."""
        self._lake = lake
        self._tables = tables
        self._coming = coming or {}
        self._ledger = Ledger(lake.catalog, tables, SCHEMA, "catalog")
        self._known: Deployment | None = None

    def entries(self) -> list[Entry]:
        """Return the newest entry of each kind and name, in the order of their first deployment."""
        newest: dict[tuple[str, str], Entry] = {}
        for row in self._rows():
            before = newest.get((row["kind"], row["name"]))
            same = before is not None and before.status != DROPPED and before.text == row["text"]
            newest[row["kind"], row["name"]] = Entry(
                kind=row["kind"],
                name=row["name"],
                generation=row["generation"],
                status=row["status"],
                text=row["text"],
                include_late=bool(row["include_late"]),
                since=before.since if before is not None and same else int(row["entry"]),
                number=int(row["entry"]),
            )
        return list((newest | {(PROJECTION, n): e for n, e in self._coming.items()}).values())

    def published(self) -> dict[str, list[int]]:
        """Return the generations that readers were given of each projection, the newest first.

        None that was taken back since: a rollback deploys a lower number than the one before it.
        """
        found: dict[str, list[int]] = {}
        for row in self._rows():
            if row["kind"] == PROJECTION:
                own = found.setdefault(row["name"], [])
                while own and own[0] >= row["generation"]:
                    own.pop(0)
                own.insert(0, row["generation"])
        for name, entry in self._coming.items():
            found[name] = [entry.generation, *found.get(name, [])]
        return found

    def text_of(self, name: str, generation: int) -> str | None:
        """Return the newest SQL that a generation of a projection was deployed with, if any."""
        texts = [
            str(row["text"])
            for row in self._rows()
            if (row["kind"], row["name"], row["generation"]) == (PROJECTION, name, generation)
        ]
        return texts[-1] if texts else None

    def _rows(self) -> list[dict[str, Any]]:
        return sorted(self._tables.rows(self._lake.catalog), key=lambda r: int(r["entry"]))

    def put(self, entries: Sequence[Entry]) -> None:
        """Deploy several things in one commit, after whatever others deploy at the same moment.

        Raises `LeaseLost` when others were faster every time.
        """
        self.decide(lambda: entries)

    def decide(self, decided: Callable[[], Sequence[Entry]]) -> None:
        """Deploy what `decided` returns, which may read the catalog and raise.

        It is called anew when others deploy meanwhile: what it has read is true when its entries
        are there. Raises `LeaseLost` when others were faster every time.
        """
        now = datetime.now(UTC)
        self._ledger.put(
            lambda number: [
                {
                    "entry": number * 1000 + i,
                    "kind": entry.kind,
                    "name": entry.name,
                    "generation": entry.generation,
                    "status": entry.status,
                    "text": entry.text,
                    "include_late": entry.include_late,
                    "at": now,
                }
                for i, entry in enumerate(decided())
            ]
        )

    def live(self, kind: str) -> list[Entry]:
        """Return what of a kind is neither paused nor dropped, nor lost."""
        return [each for each in self.entries() if (each.kind, each.status) == (kind, LIVE)]

    def try_again(self, table: str) -> None:
        """Have the pipeline try a held table again now. Raises `LeaseLost`."""
        self.put([Entry(kind=RETRY, name=table, generation=1, status=LIVE, text="")])

    def set_status(self, name: str, status: str) -> Entry:
        """Pause, resume or drop a projection that is deployed. Its table stays.

        Raises `Conflict` where others read what is to be dropped.
        """
        changed: list[Entry] = []

        def decided() -> list[Entry]:
            # The entry as it is at the commit: a swap may deploy another generation meanwhile.
            before = self._known_as(PROJECTION, name)
            readers = self._readers_of(name) if status == DROPPED else []
            if readers:
                raise Conflict(
                    f"{', '.join(readers)} read the projection {name}",
                    remedy=f"Drop what reads it first: penstock projection drop {readers[0]} --yes",
                )
            changed[:] = [replace(before, status=status)]
            return changed if before.status != status else []

        self.decide(decided)
        return changed[0]

    def drop_source(self, name: str) -> None:
        """Take a declared source out. What was read stays.

        Raises `NotFound`, and `Conflict` where projections read it.
        """
        from projections.sql.statements.lineage import readers_of_source

        def decided() -> list[Entry]:
            deployment = self.deployment()
            if name not in deployment.sources and (SOURCE, name) not in deployment.unread:
                raise NotFound(f"no source {name} is declared", remedy="penstock source list")
            readers = readers_of_source(name, deployment.declared.values())
            if readers:
                raise Conflict(
                    f"{', '.join(readers)} read the source {name}",
                    remedy=f"Drop what reads it first: penstock projection drop {readers[0]} --yes",
                )
            return [replace(self._known_as(SOURCE, name), status=DROPPED)]

        self.decide(decided)

    def _known_as(self, kind: str, name: str) -> Entry:
        return next(e for e in self.entries() if (e.kind, e.name) == (kind, name))

    def _readers_of(self, name: str) -> list[str]:
        from projections.sql.statements.lineage import readers_of

        return readers_of(name, self.deployment().declared.values())

    def version(self) -> int:
        """Return the catalog's table version; -1 before anything was deployed. Cheap."""
        return self._tables.version(self._lake.catalog)

    def deployment(self) -> Deployment:
        """Return everything that is deployed and not dropped.

        A text that is refused by now, as of an older version, keeps nothing else back.
        """
        from projections.sql.statements.parse import parse_script

        version = self.version()
        if self._known is not None and self._known.version == version:
            return self._known
        known = self.entries()
        live = [entry for entry in known if entry.status != DROPPED]
        sources: dict[str, SourceDecl] = {}
        since: dict[str, int] = {}
        projections: dict[str, tuple[Entry, ProjectionDecl]] = {}
        unread: dict[tuple[str, str], tuple[Entry, PenstockError]] = {}
        for entry in live:
            if entry.kind not in (SOURCE, PROJECTION):
                continue
            try:
                script = parse_script(entry.text, origin=f"{entry.kind} {entry.name}")
            except PenstockError as error:
                unread[entry.kind, entry.name] = entry, error
                continue
            sources |= {source.name: source for source in script.sources}
            since |= {source.name: entry.since for source in script.sources}
            projections |= {decl.name: (entry, decl) for decl in script.projections}
        captures = {e.name: parse_tables(e.text) for e in live if e.kind == CAPTURE}
        slots = {e.name: parse_incarnation(e.text) for e in live if e.kind == SLOT}
        self._known = Deployment(
            version=version,
            captures=captures,
            slots=slots,
            sources=sources,
            since=since,
            projections=projections,
            unread=unread,
            claims={e.name: datetime.fromisoformat(e.text) for e in live if e.kind == CLAIM},
            changed=max((e.number for e in known if e.kind != CLAIM), default=0),
        )
        return self._known


def _is_of(source: SourceDecl, name: str) -> bool:
    """Say whether a statement is about an input, by its name or by that of its log."""
    from projections.sql.statements.topics import log_of

    return name in (source.on, log_of(source))
