"""What a build begins with: nothing, or the rows that the projection had at an earlier epoch.

A build that begins with such rows copies them, and then takes in the epochs since as the live
runner does: it computes again what these touch. By P6 that is what a build from the beginning
gives, as long as the same meaning made the rows. So a base is refused where another one did, where
several did, and where nobody knows. What a base cannot tell is whether the rows were right: whoever
doubts them builds from the beginning, or computes the keys again whose rows he doubts: all other
rows are copied then, of the very epoch that is built.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import Conflict, InvalidRequest, NotFound
from kernel.positions import Epoch
from lake.datasets import missing_file
from lake.layout import Lake
from lake.savepoint_tables import KeptTable, kept_table
from lake.savepoints import SavepointBook
from projections.run.meanings import MIXED, meaning_of
from projections.run.notes import Noted, noted_by, noted_from_json
from projections.sql.plans.plan import Strategy
from replay.chosen_keys import refuse_condition
from replay.copies import refuse_base
from replay.starts import Start, epoch_of
from replay.subject import Site, Subject

PART_BYTES = 64 * 2**20
"""Files of a base that are copied in one slice; a larger file is a slice of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The rows that a build begins with: a projection's at `epoch`, in `bytes` of files.

    `savepoint` is the id of the one that keeps them under the name `named`, None where the table's
    version does. `asked`: from where the build was to begin. `where`: of which keys the rows are
    computed again, at that epoch; None where of none.
    """

    asked: str

    epoch: Epoch
    version: int
    rows: int
    bytes: int
    savepoint: str | None
    named: str | None
    ended_us: int | None
    where: str | None = None


def base_of(
    site: Site, subject: Subject, start: Start, *, up_to: Epoch, include_late: bool
) -> Base | None:
    """Return the base that a build may begin with; None from the beginning.

    It may be older than what was asked for: a projection has the epochs that it was brought up to.
    Raises `NotFound` where it is not kept, `Conflict` where a build from the beginning would give
    other rows, `InvalidRequest` where a projection has no use for it.
    """
    if start.is_beginning:
        return None
    refuse_base(site, start)
    name = subject.entry.name
    if subject.plan.strategy is Strategy.WHOLE:
        raise InvalidRequest(
            f"{name} is computed as a whole in each run: nothing of a base would stay",
            remedy=f"Build it from the beginning: penstock replay apply {name}",
        )
    if start.where is not None:
        refuse_condition(subject.plan, start.where)
    table, noted = _kept(site, subject, start, up_to)
    if noted is None:
        raise _refused(name, f"nothing tells what made the rows of {start.told}")
    if start.where is not None and noted.epoch != up_to:
        raise _refused(name, f"of its epochs up to {up_to} it is known how it was at {noted.epoch}")
    if noted.epoch > up_to:
        raise _refused(name, f"{start.told} is of epoch {noted.epoch}, the build of {up_to}")
    if noted.meaning == MIXED:
        raise _refused(name, f"the rows of epoch {noted.epoch} were made by several queries")
    late = include_late or subject.entry.include_late
    if noted.meaning != meaning_of(subject.plan, include_late=late):
        raise _refused(
            name, f"its query, columns or late rows mean something else since epoch {noted.epoch}"
        )
    if (lost := missing_file(table.rows(site.lake))) is not None:
        raise _gone(name, f"at epoch {noted.epoch}", str(lost))
    return Base(
        asked=start.told,
        epoch=noted.epoch,
        version=table.version,
        rows=pc.sum(table.files["num_records"]).as_py() or 0,
        bytes=sum(table.sizes.values()),
        savepoint=None if start.savepoint is None else _savepoint_id(site, start.savepoint),
        named=start.savepoint,
        ended_us=noted.ended_us,
        where=start.where,
    )


def parts_of(site: Site, name: str, base: Base) -> list[KeptTable]:
    """Return a base in parts that fit in memory, in the same order each time; at least one.

    Raises `NotFound` where it is not kept any more.
    """
    whole = _table(site, name, base)
    files = whole.files.sort_by("path")
    ends, held = [], 0
    for place, size in enumerate(files["size_bytes"].to_pylist()):
        if held and held + size > PART_BYTES:
            ends.append(place)
            held = 0
        held += size
    bounds = [0, *ends, files.num_rows]
    return [
        KeptTable(
            name=whole.name,
            version=whole.version,
            done=whole.done,
            columns=whole.columns,
            files=files.slice(first, last - first),
        )
        for first, last in itertools.pairwise(bounds)
    ]


def rows_of(lake: Lake, part: KeptTable) -> pa.Table:
    """Read a part of a base. Raises `NotFound` where a file of it is gone."""
    try:
        return part.rows(lake).to_table()
    except FileNotFoundError as error:
        name = part.name.removeprefix("projection/")
        raise _gone(name, f"in version {part.version}", str(error)) from error


def _kept(
    site: Site, subject: Subject, start: Start, up_to: Epoch
) -> tuple[KeptTable, Noted | None]:
    name = subject.entry.name
    if start.savepoint is not None:
        table = _in_savepoint(site, name, start.savepoint)
        return table, noted_from_json(table.noted) if table.noted else None
    # The live runner may have gone on since the epoch of the build was chosen.
    if start.where is None:
        up_to = min(epoch_of(site, start), up_to)
    published = site.deployed.published().get(name, [])
    noted = noted_by(site.lake, site.manifest, name, published=published, up_to=up_to)
    if noted is None:
        raise NotFound(
            f"{name} had not taken in anything by epoch {up_to}, or nothing tells of it any more",
            remedy=f"Build it from the beginning: penstock replay apply {name}",
        )
    return _at_version(site, name, noted.version, noted.epoch), noted


def _table(site: Site, name: str, base: Base) -> KeptTable:
    """Return the table of a base that was chosen before. Raises `NotFound`."""
    if base.savepoint is None:
        return _at_version(site, name, base.version, base.epoch)
    if _savepoint_id(site, base.named or "") != base.savepoint:
        raise NotFound(
            f"the savepoint {base.named} is another one than the build began with",
            remedy=_anew(name),
        )
    return _in_savepoint(site, name, base.named or "")


def _in_savepoint(site: Site, name: str, savepoint: str) -> KeptTable:
    book = SavepointBook(site.lake, site.tables)
    found = book.tables_of(book.named(savepoint), [f"projection/{name}"])
    if not found:
        raise NotFound(
            f"savepoint {savepoint} does not have projection/{name}",
            remedy="penstock savepoint list",
        )
    return found[0]


def _savepoint_id(site: Site, named: str) -> str:
    return SavepointBook(site.lake, site.tables).named(named).id


def _at_version(site: Site, name: str, version: int, epoch: Epoch) -> KeptTable:
    table = f"projection/{name}"
    try:
        return kept_table(DeltaTable(site.lake.path(table), version=version), table)
    except DeltaError as error:
        raise _gone(name, f"at epoch {epoch}", f"version {version}") from error


def _anew(name: str) -> str:
    return f"penstock replay cancel {name}, then penstock replay apply {name}"


def _refused(name: str, why: str) -> Conflict:
    return Conflict(
        f"{name} cannot be built from there: {why}",
        remedy=f"Build it from the beginning: penstock replay apply {name}",
    )


def _gone(name: str, when: str, what: str) -> NotFound:
    return NotFound(
        f"the rows that {name} had {when} are not kept any more ({what})",
        remedy="Begin with a savepoint (penstock savepoint list), or from the beginning: "
        f"penstock replay apply {name}. How long versions are kept is lake.retention_days.",
    )
