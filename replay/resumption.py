"""What a build that is unfinished goes on with: what it was begun with, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from kernel.errors import (
    Conflict,
    ContractViolation,
    NotFound,
    PenstockError,
    StorageFull,
    Unavailable,
    first_line,
)
from pipeline.ddl.held_tables import retry_command
from projections.run.catalog import Entry
from projections.run.derived_holds import why_it_waits
from replay.book import UNFINISHED, Replay, ReplayBook, State
from replay.cancel import ABANDONED_AFTER, is_alive
from replay.slices import SlicedBuild, build_of
from replay.starts import BEGINNING, Start
from replay.subject import Site, Subject, holds_of

_BY_SETTING = re.compile(r' If necessary set "spark\.[\w.]+" to "\w+" to bypass this error\.')


def refuse_other(
    begun: Replay,
    entry: Entry,
    text: str | None,
    *,
    include_late: bool,
    start: Start,
    slices: int | None,
) -> None:
    """Raise `Conflict` unless `apply` was asked for what an unfinished build is.

    Without a text that is the deployed query: what a build of another one gives is not it.
    """
    asked = text or entry.text, include_late or entry.include_late
    build = build_of(begun.detail)
    base = BEGINNING.told if build is None or build.base is None else build.base.asked
    same = asked == (begun.text, begun.include_late) and start.told == base
    if same and begun.state is not State.PAUSED and not _cut_otherwise(build, slices):
        return
    raise Conflict(
        f"generation {begun.generation} of {begun.name} is unfinished"
        + (" and paused" if begun.state is State.PAUSED else ", by another query or other options"),
        remedy=f"Go on with it: penstock replay resume {begun.name}; or give it up: "
        f"penstock replay cancel {begun.name}",
    )


def refuse_held(site: Site, which: str, subject: Subject) -> None:
    """Raise `Conflict` where a table that is read stands still, for which `which` waits."""
    for name, hold in holds_of(site, subject).items():
        raise Conflict(f"{which} {why_it_waits(name, hold)}", remedy=retry_command(name, hold))


def being_built(replay: Replay) -> Conflict:
    """Return what whoever wants a build is told while its process lives, or died just now."""
    heard = datetime.now(UTC) - (replay.at or datetime.now(UTC))
    return Conflict(
        f"generation {replay.generation} of {replay.name} is being built, its process was heard of "
        f"{heard.total_seconds():.0f} s ago",
        remedy=f"Wait for it, or stop it: penstock replay cancel {replay.name}. Where its process "
        f"died, the same command goes on {ABANDONED_AFTER.total_seconds():.0f} s after that",
    )


def stale(replay: Replay, why: str) -> Conflict:
    """Return what whoever wants to go on with a build is told that nobody can go on with."""
    return Conflict(
        f"generation {replay.generation} of {replay.name} cannot be gone on with: {why}",
        remedy=f"penstock replay cancel {replay.name}, then penstock replay apply {replay.name}",
    )


@contextmanager
def needing(replay: Replay) -> Iterator[None]:
    """Find what a build goes on with. Raises `Conflict` where some of it is not kept any more.

    The same command again would meet the same.
    """
    try:
        yield
    except NotFound as gone:
        raise stale(replay, gone.message) from gone


def slice_failed(replay: Replay, number: int, key: str | None, error: Exception) -> PenstockError:
    """Return what a build says that stopped at a slice: the row that cannot be computed, if known.

    A number beyond the last slice is what comes after them all.
    """
    # What Spark proposes besides is refused as a setting: what tables hold depends on it.
    said = _BY_SETTING.sub("", first_line(error))
    build = build_of(replay.detail)
    over = build is not None and number >= build.slicing.slices
    which = "what came since the base" if over else f"slice {number + 1}"
    which += f" of generation {replay.generation} of {replay.name}"
    if key is None:
        return Unavailable(
            f"{which} failed: {said}", remedy=f"penstock replay resume {replay.name}"
        )
    return ContractViolation(
        f"{which} cannot be computed: the row of {key}: {said}",
        remedy="Write the query so that it gives NULL there, as by try_divide or TRY_CAST, and go "
        f"on: penstock replay resume {replay.name} --sql FILE. With any other query: penstock "
        f"replay cancel {replay.name}, then penstock replay apply {replay.name} --sql FILE. Where "
        f"the row was not the cause: penstock replay resume {replay.name}",
    )


def no_room(replay: Replay, error: BaseException) -> StorageFull:
    """Return what a build says that stopped because a disk is full."""
    return StorageFull(
        f"generation {replay.generation} of {replay.name} stopped, no room is left: "
        f"{first_line(error)}",
        remedy=f"Make room there, then go on: penstock replay resume {replay.name}; or give it up: "
        f"penstock replay cancel {replay.name}",
    )


def _cut_otherwise(build: SlicedBuild | None, slices: int | None) -> bool:
    """Say whether a build has other slices than were asked for, where it has any choice."""
    if build is None or slices is None:
        return False
    chosen = build.slicing.columns or build.base is not None
    return bool(chosen) and slices != build.slicing.slices


def unfinished(book: ReplayBook, name: str, abandoned_after: timedelta) -> Replay | None:
    """Return a build that waits to be gone on with. Raises `Conflict` for one that runs."""
    for known in book.of(name):
        if known.state in UNFINISHED:
            if is_alive(known, abandoned_after):
                raise being_built(known)
            return known
    return None
