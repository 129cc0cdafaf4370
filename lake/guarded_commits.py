"""What every commit of ours carries, and what it means when deltalake refuses one."""

from __future__ import annotations

import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from kernel.errors import (
    Incompatible,
    LeaseLost,
    StorageFull,
    Unavailable,
    is_no_room,
    without_stack,
)
from kernel.positions import Epoch

_STORAGE = ("os error", "ObjectStore", "object store", "Object at", "Generic S3", "Generic Local")
"""What deltalake's errors say when storage is their cause; they have no kinds."""
_ROOM = (
    "Make room on that disk: the pipeline then goes on by itself, a command is to be given again."
)

_WRITER = "penstock.writer"
_own = uuid.uuid4().hex
"""Who this process is, in its commits: a guard names the work, which another may have done."""


def guarded(
    app_id: str,
    epoch: Epoch,
    *,
    retries: int | None = None,
    metadata: dict[str, str] | None = None,
    also: Sequence[tuple[str, Epoch]] = (),
) -> CommitProperties:
    """Return the properties of a commit under a guard, and under others `also`.

    Delta retries by itself after commits of others; one under the same app id is a conflict. With
    no `retries` the commit comes right behind the version that was read, or not at all.
    """
    return CommitProperties(
        custom_metadata={**(metadata or {}), **said_by_us()},
        max_commit_retries=retries,
        app_transactions=[Transaction(app, int(at)) for app, at in ((app_id, epoch), *also)],
    )


def said_by_us() -> dict[str, str]:
    """Return what a commit says of who made it."""
    return {_WRITER: _own}


class _Marks:
    """What handles were asked for: deltalake looks through a table's log, for milliseconds."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[weakref.ref[DeltaTable], int, dict[str, int | None]]] = {}

    def of(self, table: DeltaTable, app_id: str) -> int | None:
        """Return the last epoch under an app id at the handle's version."""
        place, version = id(table), table.version()
        known = self._of.get(place)
        if known is None or known[0]() is not table or known[1] != version:
            gone = weakref.ref(table, lambda _: self._of.pop(place, None))
            known = self._of[place] = gone, version, {}
        marks = known[2]
        if app_id not in marks:
            marks[app_id] = table.transaction_version(app_id)
        return marks[app_id]

    def move(self, table: DeltaTable, before: int, own: Mapping[str, int]) -> None:
        """Take over what is known at version `before`, if the one behind it marked `own` alone."""
        known = self._of.get(id(table))
        if known is None or known[0]() is not table or known[1] != before:
            return
        if table.version() == before + 1:
            self._of[id(table)] = known[0], before + 1, {**known[2], **own}


_marks = _Marks()


def mark_of(table: DeltaTable, app_id: str) -> int | None:
    """Return the last epoch that a table has under an app id, as its handle knows it; or None.

    Each is looked up once per handle and version.
    """
    return _marks.of(table, app_id)


def marked(table: DeltaTable, before: int, own: Mapping[str, int]) -> None:
    """Take note of the guards of a commit of ours that was to come behind version `before`.

    Where others came in between, nothing is taken over: the log is asked again.
    """
    _marks.move(table, before, own)


@contextmanager
def committing(
    table: DeltaTable | None, app_id: str, epoch: Epoch, what: str, *, again: bool = False
) -> Iterator[None]:
    """Tell what deltalake raises of one commit under a guard; `what` names the write.

    Raises `LeaseLost`, or as `write_error` does. With `again` the guard may be there already;
    `table` is None for one that the commit makes.
    """
    try:
        yield
    except CommitFailedError as error:
        raise conflict(app_id, epoch, error) from error
    except (DeltaError, OSError) as error:
        if again or table is None or not _landed(table, app_id, epoch, error):
            raise write_error(what, error) from error


def _landed(table: DeltaTable, app_id: str, epoch: Epoch, error: Exception) -> bool:
    """Say whether a write that ended in `error` is in the log all the same; the handle is renewed.

    Behind a commit deltalake removes what has expired of the log. Where two writers do so at once,
    the later one finds a file gone that it wanted to remove, and its write ends in that error. A
    commit under the same guard may be a rival's, which came first while the answer was lost.
    """
    if "_delta_log" not in str(error):
        return False
    before = table.version()
    try:
        table.update_incremental()
        if table.version() <= before or table.transaction_version(app_id) != epoch:
            return False
        behind = table.history(table.version() - before)
        return any(commit.get(_WRITER) == _own for commit in behind)
    except (DeltaError, OSError):
        return False  # the error of the write says more


def conflict(app_id: str, epoch: Epoch, error: Exception) -> LeaseLost:
    """Return the error of a commit that another one under its app id came before."""
    return LeaseLost(
        f"another writer committed to {app_id} while epoch {epoch} was written:"
        f" {without_stack(error)}"
    )


def put_in_place(
    table: DeltaTable,
    adds: Sequence[AddAction],
    gone: Sequence[Mapping[str, object]],
    properties: CommitProperties,
) -> None:
    """Put new files in the place of others by one commit of deltalake's.

    `gone` have `path` and `size_bytes`, as the log tells them, and lie in no partition. The handle
    does not see the commit by itself. Raises what deltalake raises.
    """
    now = int(time.time() * 1000)
    removes = [
        RemoveAction(str(file["path"]), True, now, int(str(file["size_bytes"])), {})
        for file in gone
    ]
    table.create_write_transaction(
        [*adds, *removes],
        mode="append",
        schema=table.schema(),
        partition_by=[],
        commit_properties=properties,
    )


def overtaken(table: DeltaTable, app_id: str, epoch: Epoch) -> LeaseLost:
    """Return the error of a commit that came behind one under its app id, at a handle's version."""
    return LeaseLost(
        f"another writer committed to {app_id} while epoch {epoch} was written:"
        f" version {table.version()} of {table.table_uri} has its epoch {mark_of(table, app_id)}"
    )


def write_error(what: str, error: Exception) -> Unavailable | Incompatible:
    """Tell a storage that fails, which may pass, from rows and a table that do not go together."""
    remedy = "Read the cause: these rows fail in the same way again."
    return _error(f"{what} failed: {without_stack(error)}", error, remedy)


def read_error(path: str, error: Exception) -> Unavailable | Incompatible:
    """Tell a storage that fails, which may pass, from a table whose files are not whole."""
    remedy = "Bring its files back as they were, from a backup; then: penstock restart pipeline"
    return _error(f"{path} cannot be read: {without_stack(error)}", error, remedy)


def _error(said: str, error: Exception, remedy: str) -> Unavailable | Incompatible:
    if is_no_room(error):
        return StorageFull(said, remedy=_ROOM)
    if isinstance(error, OSError) or any(hint in said for hint in _STORAGE):
        return Unavailable(said)
    return Incompatible(said, remedy=remedy)
