"""Ends generations that are not the table: the live one is never touched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kernel.errors import Conflict, NotFound
from lake import storage
from replay.book import (
    CLAIM,
    CLAIMED,
    READY,
    UNFINISHED,
    Replay,
    ReplayBook,
    State,
    command_of,
)
from replay.copies import is_in_place
from replay.generation_names import stable_name
from replay.generations import generation_path, live_app
from replay.subject import Site, entry_of
from replay.swap_place import is_taken_back

ABANDONED_AFTER = timedelta(seconds=30)
"""A build that reported nothing for so long has died: it reports every five seconds."""


def is_alive(replay: Replay, abandoned_after: timedelta = ABANDONED_AFTER) -> bool:
    """Say whether a generation is being built by a process that was heard of lately."""
    if replay.state is not State.BUILDING or replay.at is None:
        return False
    return datetime.now(UTC) - replay.at < abandoned_after


def cancel(site: Site, name: str, *, generation: int | None = None) -> Replay:
    """Cancel the newest generation (or the one named) that is not swapped; return its last row.

    Of one whose rollback died before its commit the rollback is given up: it stays the table.
    A build under way notices within seconds and removes its own files; of one that died before it
    did, whoever cancels or builds next removes them. Raises `NotFound` where there is nothing to
    cancel or remove, and `Conflict` for one whose swap is under way or was interrupted.
    """
    book = ReplayBook(site.place, site.tables)
    states = (*UNFINISHED, *READY, *CLAIMED)
    removed = remove_abandoned(site, name)
    try:
        replay = book.newest(name, *states, generation=generation)
    except NotFound:
        of_it = [each for each in removed if generation in (None, each.generation)]
        if not of_it:
            raise
        return of_it[-1]
    if replay.state in CLAIMED and replay.together:
        raise Conflict(
            f"generation {replay.generation} of {name} is {replay.state} together with "
            f"{', '.join(sorted({*replay.together} - {name}))}, or that was interrupted",
            remedy=f"Finish it: {command_of(replay)}; to go back: penstock replay rollback "
            f"{' '.join(sorted(replay.together))}",
        )
    if replay.state is State.ROLLING_BACK:
        if site.deployed.deployment().claimed(name):
            raise Conflict(
                f"generation {replay.generation} of {name} is being rolled back",
                remedy="Where that was interrupted, give the same command again in a minute.",
            )
        if not _is_live(site, replay):
            raise Conflict(
                f"the swap of generation {replay.generation} of {name} is being given up, or that "
                "was interrupted",
                remedy=f"Finish it: {command_of(replay)}",
            )
        return give_up_rollback(site, replay)
    _refuse_the_table(site, replay)
    if replay.state is State.SWAPPING:
        raise Conflict(
            f"generation {replay.generation} of {name} is being swapped, or its swap was "
            "interrupted",
            remedy=f"Finish it: {command_of(replay)}; or give it up: penstock replay rollback "
            f"{name}, and then this command again",
        )
    was = {"was": replay.state.value}
    open_ = (*UNFINISHED, *READY)
    cancelled = book.record(replay.now(State.CANCELLED, detail=was), after=open_)
    if not is_alive(replay):
        remove_files(site, replay)
    return cancelled


def give_up_rollback(site: Site, replay: Replay) -> Replay:
    """Let a generation that is being rolled back stay the table; return its row.

    Raises `Conflict` where the rollback's commit is there, or it was finished meanwhile.
    """
    if is_taken_back(site, replay):
        raise Conflict(
            f"the table was taken back from generation {replay.generation} of {replay.name} "
            "already; its rollback was interrupted",
            remedy=f"Finish it: penstock replay rollback {replay.name}",
        )
    detail = {name: told for name, told in replay.detail.items() if name != CLAIM}
    # A swap that died behind its commit is as it was before: readers by name do not know it yet.
    state = State.SWAPPED if _is_live(site, replay) else State.SWAPPING
    book = ReplayBook(site.lake, site.tables)
    return book.record(replay.now(state, detail=detail), after=(State.ROLLING_BACK,))


def _is_live(site: Site, replay: Replay) -> bool:
    return entry_of(site, replay.name).generation == replay.generation


def _refuse_the_table(site: Site, replay: Replay) -> None:
    """Raise `Conflict` for a generation whose swap was interrupted: its files are the table's."""
    path = site.place.path(stable_name(replay.name))
    if is_in_place(site, replay):
        raise Conflict(
            f"generation {replay.generation} of {replay.name} is the table at {path}",
            remedy="Remove that folder where nobody reads it any more.",
        )
    stable = site.tables.open(path)
    app = live_app(replay.name, replay.generation)
    if site.into is not None or stable is None or stable.transaction_version(app) is None:
        return
    raise Conflict(
        f"generation {replay.generation} of {replay.name} is the table already; its swap was "
        "interrupted",
        remedy=f"Finish it: {command_of(replay)}; or take it back: "
        f"penstock replay rollback {replay.name}",
    )


def remove_abandoned(site: Site, name: str) -> list[Replay]:
    """Remove the files of cancelled generations whose processes died; return these."""
    removed = []
    for replay in ReplayBook(site.place, site.tables).of(name):
        if replay.state is not State.CANCELLED or replay.at is None:
            continue
        died = datetime.now(UTC) - replay.at >= ABANDONED_AFTER
        path = generation_path(site.place, name, replay.generation)
        if died and storage.exists(path) and not is_in_place(site, replay):
            remove_files(site, replay)
            removed.append(replay)
    return removed


def remove_files(site: Site, replay: Replay) -> None:
    """Remove what a cancelled generation has written.

    Only what the book calls cancelled: anything else may be another process's by now, or live. One
    that was cancelled as it became the table of another lake stays that.
    """
    known = ReplayBook(site.place, site.tables).known(replay.name, replay.generation)
    if known is None or known.state is not State.CANCELLED or is_in_place(site, replay):
        return
    path = generation_path(site.place, replay.name, replay.generation)
    site.tables.forget(path)
    storage.remove(path)
