"""Generations of a table: where they lie, and the one commit that makes another one the table.

A generation is built beneath the table's root, in `_gen/N`, with a Delta log of its own. The swap
adds its files to the stable table by relative path and removes the old ones, in one commit, so
that every engine sees it whole. The commit also carries the app ids of both generations: the old
one's is closed, so that its writer conflicts if it commits at this moment and refuses afterwards,
the new one's is set to its own cursor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from kernel.errors import LeaseLost, NotFound, Unavailable
from kernel.positions import CLOSED, DeltaVersion, Epoch
from kernel.retry import Backoff, retrying
from lake.adoption import adopted, put_in_place_of_all
from lake.datasets import schema_of
from lake.layout import Lake
from lake.tables import Tables, kept
from lake.writer import ArrowWriter, Guard
from replay.generation_names import stable_name

GENERATION_KEY = "penstock.generation"
"""Name in the commit's own metadata by which a swap is found again after a crash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A writer's app id and the epoch that it is set to."""

    app_id: str
    epoch: Epoch


def generation_path(lake: Lake, name: str, generation: int) -> str:
    """Return the place in a lake at which a generation is built."""
    return f"{lake.path(stable_name(name))}/_gen/{generation}"


def generation_name(name: str, generation: int) -> str:
    """Return the name in the lake of the table of a projection's generation."""
    return f"projection/{name}/_gen/{generation}"


def build_app(name: str, generation: int) -> str:
    """Return the app id of a build, in the generation's own log."""
    return f"projection/{name}/g{generation}/build"


def elsewhere(app_id: str) -> str:
    """Return the app id of a build in another lake, whose generations have numbers of their own."""
    return f"{app_id}/elsewhere"


def slices_app(name: str, generation: int) -> str:
    """Return the app id under which slices are appended to a generation."""
    return f"{build_app(name, generation)}/slices"


def live_app(name: str, generation: int) -> str:
    """Return the app id of a generation's writer in the stable table."""
    return f"projection/{name}/g{generation}"


def publish(
    stable: DeltaTable,
    built: DeltaTable,
    *,
    folder: str,
    old: str,
    new: Cursor,
    generation: int,
    told: Mapping[str, str] | None = None,
) -> None:
    """Make the built generation the table, by one commit on top of the state that `stable` has.

    `told`: what the commit says beside.
    Raises `LeaseLost` when the live writer committed meanwhile: nothing was changed.
    """
    try:
        cursors = [Cursor(app_id=old, epoch=CLOSED), new]
        properties = _properties(cursors, generation, told)
        put_in_place_of_all(stable, adopted(built, folder), built.schema(), properties)
    except CommitFailedError as error:
        raise LeaseLost(f"{old} committed while the swap did: {error}") from error
    except DeltaError as error:
        raise Unavailable(f"the swap of {stable.table_uri} failed: {error}") from error


def close_build(lake: Lake, tables: Tables, name: str, generation: int) -> None:
    """Let no build write to a generation any more: it is the table."""
    path = lake.path(generation_name(name, generation))
    empty = schema_of(DeltaTable(path)).empty_table()
    apps = build_app(name, generation), slices_app(name, generation)
    closed = [(empty, Guard(app, CLOSED)) for app in apps]
    # A build that slept may commit at this moment: it is closed behind that.
    retrying(lambda: ArrowWriter(tables).append_all(path, closed), backoff=Backoff())


def put_back(
    stable: DeltaTable, version: DeltaVersion, *, old: Cursor, new: str, generation: int
) -> None:
    """Restore a version, reopening the old generation's writer and closing the new one's.

    Raises `LeaseLost` when the new generation's writer committed meanwhile.
    """
    try:
        stable.restore(
            int(version),
            commit_properties=_properties([old, Cursor(app_id=new, epoch=CLOSED)], generation),
        )
    except CommitFailedError as error:
        raise LeaseLost(f"{new} committed while it was rolled back: {error}") from error
    except DeltaError as error:
        raise Unavailable(f"restoring {stable.table_uri} failed: {error}") from error


def published_version(table: DeltaTable, generation: int) -> DeltaVersion:
    """Return the version by which a generation last became the table. Raises `NotFound`."""
    for commit in table.history():
        if commit.get(GENERATION_KEY) == str(generation):
            return DeltaVersion(int(commit["version"]))
    raise NotFound(f"{table.table_uri} has no commit that made generation {generation} the table")


def version_before(path: str, app_id: str, epoch: Epoch) -> int | None:
    """Return the newest version of a table whose writer had not passed an epoch.

    For tables whose cursor only grows. Looks backwards in growing steps, then halves. None when
    that version is not kept any more.
    """
    newest: int = DeltaTable(path).version()

    def passed(version: int) -> bool:
        try:
            done = DeltaTable(path, version=version).transaction_version(app_id)
        except DeltaError:
            return False  # Older than what the log tells of.
        return done is not None and done > epoch

    if not passed(newest):
        return newest
    high, step = newest, 1
    while high - step > 0 and passed(high - step):
        high, step = high - step, step * 2
    low = max(high - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if passed(middle) else (middle, high)
    return low if kept(path, low) is not None else None


def _properties(
    cursors: Sequence[Cursor], generation: int, told: Mapping[str, str] | None = None
) -> CommitProperties:
    return CommitProperties(
        custom_metadata={GENERATION_KEY: str(generation), **(told or {})},
        app_transactions=[Transaction(cursor.app_id, int(cursor.epoch)) for cursor in cursors],
        # On top of the version that was read, or not at all: Delta would let a commit that
        # replaces all files pass after one that only rearranged them, and the rows would double.
        max_commit_retries=0,
    )
