"""Builds into another lake: a table of its own there, which no pipeline keeps.

    slices -> `_gen/N` of the other lake's `projection/NAME` -> one commit: they are the table

The other lake has the book of such builds, the lake that is read none of them. Readers there see
the table as it was until the next build is whole. It says itself what it is: its description names
the lake that it comes from, each of its commits the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import Conflict, InvalidRequest, NotFound, Unavailable
from kernel.positions import CLOSED, Epoch
from lake import storage
from lake.layout import Lake
from lake.table_settings import make_table
from pipeline.typed.columns import EPOCH
from projections.run.targets import Target
from replay.book import Replay, ReplayBook, State
from replay.generation_names import derived_name, stable_name
from replay.generations import Cursor, generation_path, live_app, publish
from replay.starts import Start
from replay.subject import Site

EPOCH_KEY = "penstock.epoch"
"""Name in a commit's own metadata of the epoch that its rows are of."""
_WORKSPACE = ("epochs", "catalog", "leases", "log")
"""What a lake has that a pipeline writes."""
_BEING_BUILT = (State.BUILDING, State.PAUSED)
_ANOTHER = "Name another folder or prefix: --lake PLACE"


def refuse_place(lake: Lake, into: Lake) -> None:
    """Raise `Conflict` for a place that is no lake for builds of this one.

    A lake that a pipeline writes, or wrote and may write again, keeps its own tables.
    """
    if into.root == lake.root or f"{into.root}/".startswith(f"{lake.root}/"):
        raise Conflict(
            f"{into.root} is the lake that is read, or lies in it",
            remedy=f"{_ANOTHER}; leave it out to build beside the live generation.",
        )
    if any(storage.exists(into.path(name)) for name in _WORKSPACE):
        raise Conflict(f"{into.root} is the lake of another workspace", remedy=_ANOTHER)
    if storage.exists(f"{into.root}/_delta_log"):
        raise Conflict(f"{into.root} is a table itself", remedy=_ANOTHER)


def refuse_base(site: Site, start: Start) -> None:
    """Raise `InvalidRequest` for chosen keys: they are computed to mend the live table's rows."""
    if site.into is not None and start.where is not None:
        raise InvalidRequest(
            "--where and --lake exclude each other: what is mended is the live table",
            remedy="Leave out one of them.",
        )


def claim_place(site: Site, name: str) -> None:
    """Make the table that a build into another lake is to become, empty, or find it there.

    Raises `Conflict` where something else is there, `Unavailable` where nothing can be written.
    """
    if site.into is None:
        return
    path = _path(site, name)
    what = name if derived_name(name) else f"projection {name}"
    told = f"Made by penstock replay apply --lake: {what} of {site.lake.root}"
    try:
        table = site.tables.open(path)
        if table is None and not _has_files(path):
            table = make_table(path, pa.schema([(EPOCH, pa.int64())]), description=told)
        found = "files of no table"
        if table is not None:
            found = table.metadata().description or "another table"
    except (DeltaError, OSError) as error:
        raise Unavailable(
            f"{path} cannot be written: {error}", remedy="Look whether the place is there."
        ) from error
    if found != told:
        raise Conflict(f"{path} holds something else: {found}", remedy=_ANOTHER)


def _has_files(path: str) -> bool:
    """Say whether files lie at a place of no table, other than what a log begins with: another
    process may make it now, or have died before its first commit.
    """
    log = f"{storage.place_of(path)[1]}/_delta_log/"
    return any(not each.path.startswith(log) for each in storage.files_below(path))


def read_elsewhere(site: Site, target: Target) -> Mapping[str, int]:
    """Return the versions of other projections that a build into another lake reads.

    Such a build is not computed once more at its end, as the one beside the live table is.
    """
    if site.into is None:
        return {}
    return {n: v for n, v in target.versions.items() if n.startswith("projection/")}


def put_in_place(site: Site, replay: Replay, epoch: Epoch) -> None:
    """Make a build whose slices are all there the table, in one commit, unless it is already.

    Raises `LeaseLost` where another process did something else at the same moment, and what
    `ReplayBook.record` raises for a build that was cancelled, or that moved on.
    """
    claim_place(site, replay.name)  # Whoever went on with the build may find something else there.
    name, generation = replay.name, replay.generation
    stable, app = DeltaTable(_path(site, name)), live_app(name, generation)
    if stable.transaction_version(app) is not None:
        return
    ReplayBook(site.place, site.tables).refuse_moved(replay, after=_BEING_BUILT)
    before = next((n for n in range(generation - 1, 0, -1) if _shows(stable, name, n)), 0)
    publish(
        stable,
        DeltaTable(generation_path(site.place, name, generation)),
        folder=f"_gen/{generation}",
        old=live_app(name, before),
        new=Cursor(app_id=app, epoch=epoch),
        generation=generation,
        told={EPOCH_KEY: str(epoch)},
    )
    site.tables.forget(_path(site, name))


def table_of(site: Site, replay: Replay) -> DeltaTable:
    """Return the table of a build. Raises `NotFound` where a later one took its place."""
    table = DeltaTable(_path(site, replay.name))
    if not _shows(table, replay.name, replay.generation):
        raise NotFound(
            f"generation {replay.generation} of {replay.name} is not the table any more",
            remedy=f"penstock replay verify {replay.name}",
        )
    return table


def is_in_place(site: Site, replay: Replay) -> bool:
    """Say whether a build is the table of another lake: its files are that one's then."""
    if site.into is None:
        return False
    table = site.tables.open(_path(site, replay.name))
    return table is not None and _shows(table, replay.name, replay.generation)


def remove_older(site: Site, begun: Replay) -> None:
    """Remove the files of builds that are not the table any more, once another one has begun.

    Until then who reads the version before finds them.
    """
    if site.into is None:
        return
    root = _path(site, begun.name)
    table = DeltaTable(root)
    numbers = [int(each) for each in storage.folders_in(f"{root}/_gen") if each.isdigit()]
    for number in numbers:
        if number < begun.generation and not _shows(table, begun.name, number):
            storage.remove(f"{root}/_gen/{number}")


def _shows(table: DeltaTable, name: str, generation: int) -> bool:
    """Say whether a table is what a build made."""
    return table.transaction_version(live_app(name, generation)) not in (None, CLOSED)


def _path(site: Site, name: str) -> str:
    return site.place.path(stable_name(name))
