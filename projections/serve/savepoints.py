"""Takes savepoints of all tables as of one epoch, and tells what they cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import Conflict, InvalidRequest, NotFound
from kernel.positions import DeltaVersion, Epoch
from lake.layers import FOLDER
from lake.layout import Lake
from lake.savepoint_states import Savepoint, SavepointState, refuse_name
from lake.savepoint_tables import KeptTable, kept_table
from lake.savepoints import SavepointBook, is_due
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from projections.run.catalog import DROPPED, PROJECTION, DeployedCatalog
from projections.run.notes import noted_by
from projections.serve.pinned_epochs import versions_at
from projections.serve.versions import UNVERSIONED, EpochVersions, not_kept

_ALIKE = timedelta(minutes=5)
"""The same command given again asks for the same span, but for how long it took to come here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """A savepoint and what it takes.

    `bytes`: of all its files. `held_bytes`: of those that are in no table's newest version and in
    no other savepoint; what is younger than the retention would be there without it, too.
    """

    savepoint: Savepoint
    tables: tuple[str, ...]
    bytes: int
    held_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSavepoint:
    """A savepoint, and whether this call took it: it may have been there already."""

    savepoint: Savepoint
    tables: tuple[str, ...]
    made: bool


def create(
    lake: Lake,
    name: str,
    *,
    epoch: Epoch | None = None,
    at: datetime | None = None,
    without: Collection[str] = (),
    expires_at: datetime | None = None,
) -> TakenSavepoint:
    """Keep all tables as of one epoch: the given one, or the greatest that all of them have.

    `without`: tables that are left out, as one that is behind. Called again with the name of a
    savepoint that is there it returns that one, unless it was asked for another epoch, other tables
    or another time to keep it; one that has expired makes room for the new one. Raises
    `InvalidRequest` for a name, `NotFound` naming the table that does not have the epoch,
    `Conflict`.
    """
    refuse_name(name)
    if epoch is not None and at is not None:
        raise InvalidRequest("--epoch and --at exclude each other", remedy="Give one of them.")
    book = SavepointBook(lake, Tables())
    known = next((s for s in book.all() if s.name == name and s.state is SavepointState.KEPT), None)
    if known is not None and not is_due(known, datetime.now(UTC)):
        if not _is_kept_as_long(known, expires_at):
            raise _taken(known)
        return _known(lake, book, known, epoch=epoch, at=at, without=without)
    chosen, tables = _tables_at(lake, epoch, at, without)
    if known is not None:
        # It has expired: upkeep would drop it within the hour, whatever was told of it here.
        book.drop(known)
    heads = Manifest(lake, Tables()).at(chosen).heads
    kept = book.take(name, chosen, tables, expires_at=expires_at, heads=heads)
    return TakenSavepoint(savepoint=kept, tables=tuple(table.name for table in tables), made=True)


def costs(lake: Lake) -> list[Cost]:
    """Return what is kept, oldest first, with its cost."""
    book = SavepointBook(lake, Tables())
    kept = {s.id: (s, book.tables_of(s)) for s in book.all() if s.state is SavepointState.KEPT}
    newest: dict[str, frozenset[str]] = {}
    for _, tables in kept.values():
        for table in tables:
            if table.name not in newest:
                newest[table.name] = _paths_now(lake, table.name)
    found = []
    for id_, (savepoint, tables) in kept.items():
        others = [t for other, (_, ts) in kept.items() if other != id_ for t in ts]
        held = sum(_held_bytes(table, newest[table.name], others) for table in tables)
        found.append(
            Cost(
                savepoint=savepoint,
                tables=tuple(table.name for table in tables),
                bytes=sum(sum(table.sizes.values()) for table in tables),
                held_bytes=held,
            )
        )
    return found


def drop(lake: Lake, name: str) -> tuple[Savepoint, int]:
    """Drop a savepoint; return it and the files that went with it at once. Raises `NotFound`.

    Its other files go as those of any old version do.
    """
    book = SavepointBook(lake, Tables())
    savepoint = book.named(name)
    return savepoint, book.drop(savepoint)


def _known(
    lake: Lake,
    book: SavepointBook,
    known: Savepoint,
    *,
    epoch: Epoch | None,
    at: datetime | None,
    without: Collection[str],
) -> TakenSavepoint:
    tables = tuple(table.name for table in book.tables_of(known))
    asked = epoch
    if at is not None:
        places = EpochVersions(lake, Tables())
        newest = places.newest(at=at)
        assert newest is not None, "a time has an epoch, or is refused"
        # As when it was taken: a table that is behind draws the epoch back.
        with suppress(NotFound):
            asked = places.common([n for n in tables if not n.startswith(FOLDER)], up_to=newest)
    if ((epoch is None and at is None) or asked == known.epoch) and not {*without} & {*tables}:
        return TakenSavepoint(savepoint=known, tables=tables, made=False)
    raise _taken(known)


def _is_kept_as_long(known: Savepoint, expires_at: datetime | None) -> bool:
    """Say whether a savepoint is kept for as long as it is asked for, from when it was taken."""
    if expires_at is None or known.expires_at is None:
        return expires_at is known.expires_at
    asked, kept = expires_at - datetime.now(UTC), known.expires_at - known.at
    return abs(asked - kept) < _ALIKE


def _taken(known: Savepoint) -> Conflict:
    ends = "" if known.expires_at is None else f", kept until {known.expires_at.isoformat()}"
    return Conflict(
        f"there is a savepoint {known.name} already, of epoch {known.epoch}{ends}",
        remedy=f"Take another name, or: penstock savepoint drop {known.name}",
    )


def _tables_at(
    lake: Lake, epoch: Epoch | None, at: datetime | None, without: Collection[str]
) -> tuple[Epoch, list[KeptTable]]:
    """Choose the epoch and describe every table at it, tails and generations included."""
    places = EpochVersions(lake, Tables())
    newest = places.newest(at=at) if epoch is None else epoch
    names = [] if newest is None else _names(lake, newest)
    unknown = sorted({*without} - {*names})
    if unknown:
        raise NotFound(f"no table {unknown[0]} could be kept", remedy="penstock table list")
    if newest is None or not names:
        raise NotFound("the lake has no tables yet", remedy="penstock wait --caught-up")
    with _told_how_to_leave_out():
        kept = [name for name in names if name not in without]
        chosen = epoch or places.common(kept, up_to=newest)
        # What ingest made since has no rows as of that epoch.
        kept = [name for name in _names(lake, chosen) if name not in without]
        _, versions, tails = versions_at(lake, kept, chosen, None)
    tables, published = [], DeployedCatalog(lake, Tables()).published()
    manifest = Manifest(lake, Tables())
    for name, version in (versions | tails).items():
        noted = _noted(lake, manifest, published, name, version, chosen)
        try:
            table = DeltaTable(lake.path(name), version=version)
            tables.append(kept_table(table, name, noted=noted))
        except DeltaError as error:
            raise not_kept(name, version) from error
    return chosen, tables


@contextmanager
def _told_how_to_leave_out() -> Iterator[None]:
    """Tell of tables that lack the epoch how a savepoint does without them."""
    try:
        yield
    except NotFound as error:
        first = error.fields.get("table")
        lacking = error.fields.get("tables", [] if first is None else [first])
        assert isinstance(lacking, list), "names of tables"
        if not lacking:
            raise
        options = " ".join(f"--without {name}" for name in lacking)
        raise NotFound(
            error.message, remedy=f"{error.remedy} To do without: {options}", **error.fields
        ) from error


def _noted(
    lake: Lake,
    manifest: Manifest,
    published: Mapping[str, Sequence[int]],
    name: str,
    version: DeltaVersion | None,
    epoch: Epoch,
) -> str | None:
    """Return what the manifest says of a projection's table at a version; None of other tables."""
    kind, _, projection = name.partition("/")
    if kind != "projection" or projection not in published:
        return None
    found = noted_by(lake, manifest, projection, published=published[projection], up_to=epoch)
    return found.to_json() if found is not None and found.version == version else None


def _names(lake: Lake, epoch: Epoch) -> list[str]:
    """Name the tables of an epoch: of ingest, and those derived from them."""
    tables = Tables()
    manifest = Manifest(lake, tables)
    done = manifest.at(epoch)
    entries = DeployedCatalog(lake, tables).entries()
    there = (e for e in entries if e.kind == PROJECTION and e.status != DROPPED)
    deployed = {f"projection/{each.name}" for each in there}
    derived = {name for run in manifest.projected().values() for name in run.tables}
    # Generations that are built beside their tables are not what readers see. What was dropped
    # takes no epoch in any more, and would draw all others back to its last one.
    derived = {name for name in derived if not name.startswith("projection/") or name in deployed}
    found = {*done.tables, *(n for n in derived if DeltaTable.is_deltatable(lake.path(n)))}
    return sorted(n for n in found if not n.startswith((*UNVERSIONED, FOLDER)))


def _paths_now(lake: Lake, name: str) -> frozenset[str]:
    try:
        return frozenset(kept_table(DeltaTable(lake.path(name)), name).sizes)
    except DeltaError:
        return frozenset()


def _held_bytes(table: KeptTable, newest: frozenset[str], others: Sequence[KeptTable]) -> int:
    elsewhere = newest.union(*(other.sizes for other in others if other.name == table.name))
    return sum(size for path, size in table.sizes.items() if path not in elsewhere)
