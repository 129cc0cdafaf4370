"""What a swap and a rollback commit to one table, note of it and tell.

The commit is made on top of the version that was looked at, or fails: then the live runner was
faster, and whoever swaps looks again.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import LeaseLost, Unavailable
from kernel.positions import DeltaVersion, Epoch
from kernel.retry import Backoff, retrying
from lake.datasets import schema_of
from lake.tables import TableAt
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest_rows import Projected
from replay.book import READY, REASON, TOGETHER, Replay, ReplayBook, State
from replay.generations import (
    Cursor,
    generation_name,
    live_app,
    publish,
    published_version,
    put_back,
)
from replay.going_live import meaning
from replay.subject import Site
from replay.swap_place import SwapPlace, is_taken_back, is_the_table

GOES_ON = (*READY, State.SWAPPING, State.SWAPPED)
"""A swap goes on from these: another process may have finished it. What was taken back is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """What a swap or rollback did. `version` of the stable table is the one it made."""

    name: str
    generation: int
    replaced: int
    epoch: Epoch
    version: DeltaVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeSwap:
    """A table that a generation became, at one look, and the version that it is to be again."""

    stable: DeltaTable
    before: DeltaTable


def became_the_table(replay: Replay, version: DeltaVersion) -> Swapped:
    """Return what a swap did, which made a version of the table."""
    return Swapped(
        name=replay.name,
        generation=replay.generation,
        replaced=replay.base,
        epoch=replay.epoch,
        version=version,
    )


def version_of(site: Site, name: str, generation: int) -> DeltaVersion:
    """Return the version by which a generation became the table. See `published_version`."""
    return published_version(DeltaTable(site.lake.path(f"projection/{name}")), generation)


def told_why(book: ReplayBook, replay: Replay, reason: str | None) -> Replay:
    """Keep why a generation is to be swapped though no comparison speaks for it."""
    if reason is None or replay.state is State.SWAPPING:
        return replay
    told = replay.now(replay.state, detail={**replay.detail, REASON: reason})
    return book.record(told, after=READY)


def noted(site: Site, replay: Replay) -> DeltaVersion:
    """Note in the manifest by which version a generation became the table; return that."""
    table = f"projection/{replay.name}"
    version = version_of(site, replay.name, replay.generation)
    site.manifest.project(
        Projected(
            epoch=replay.epoch,
            name=live_app(replay.name, replay.generation),
            tables={table: TableAt(version=version, as_of_epoch=replay.epoch)},
            meaning=meaning(site, replay),
        )
    )
    return version


def swapped(book: ReplayBook, replay: Replay, version: DeltaVersion) -> Replay:
    """Return the row that says of a generation that it is the table since a version of it."""
    detail: dict[str, object] = {"version": version}
    if replay.together:
        detail[TOGETHER] = replay.together
    if (why := book.reason(replay.name, replay.generation)) is not None:
        detail[REASON] = why
    return replay.now(State.SWAPPED, detail=detail)


def committed(site: Site, place: SwapPlace, epoch: Epoch) -> bool:
    """Make a generation that is claimed the table; say whether the live one was not faster."""
    replay = place.replay
    failpoints.hit(failpoints.REPLAY_AFTER_CLAIM)
    folder = generation_name(replay.name, replay.generation)
    try:
        publish(
            place.stable,
            place.built,
            folder=folder.removeprefix(f"projection/{replay.name}/"),
            old=live_app(replay.name, replay.base),
            new=Cursor(app_id=live_app(replay.name, replay.generation), epoch=epoch),
            generation=replay.generation,
        )
    except LeaseLost:
        return False
    except Unavailable:
        # The storage may have lost its answer, and not the commit.
        if not is_the_table(site, replay):
            raise
    return True


def keep_off(site: Site, replay: Replay) -> None:
    """Let no swap that has looked at the table commit to it any more: its swap is given up.

    It commits on top of the version that it looked at, or not at all. This is one more version, of
    the same rows. Whoever looks later finds the claim of who gives it up.
    """
    path = site.lake.path(f"projection/{replay.name}")
    app_id = f"{live_app(replay.name, replay.generation)}/given-up"

    def committed_once_more() -> None:
        stable = DeltaTable(path)
        guard = Guard(app_id, Epoch(stable.version() + 1))
        ArrowWriter(site.tables).append(path, schema_of(stable).empty_table(), guard)

    retrying(committed_once_more, backoff=Backoff())  # The live runner may commit at this moment.


def taken_back(site: Site, stable: DeltaTable, before: DeltaTable, replay: Replay) -> bool:
    """Make a table what it was before; say whether the live one was not faster."""
    old = live_app(replay.name, replay.base)
    try:
        put_back(
            stable,
            DeltaVersion(before.version()),
            old=Cursor(app_id=old, epoch=Epoch(before.transaction_version(old) or 0)),
            new=live_app(replay.name, replay.generation),
            generation=replay.base,
        )
    except LeaseLost:
        return False
    except Unavailable:
        # As with a swap.
        if not is_taken_back(site, replay):
            raise
    return True
