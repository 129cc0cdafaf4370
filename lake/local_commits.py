"""Commits to tables on this machine's disk: the log's next file, which one writer can put in place.

    {commitInfo} {txn} … {add} … {remove} …  ->  _delta_log/00000000000000000042.json

Whoever has the file of the next version first has committed: on a disk a second name of a file that
is whole decides it, for deltalake and for us alike. A version whose file was cleaned away behind a
checkpoint is nobody's any more, which the checkpoint tells. deltalake commits by threads that each
wait for a processor, five to ten milliseconds where all are busy; here it takes half of one.
Left to it are tables on object stores, and with features that need more of a writer. Checkpoints,
and the removal of what expired of a log, come behind commits (`lake.log_checkpoints`).
Source: the Delta transaction protocol, "Actions" and "Writer requirements".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from deltalake import DeltaTable
from deltalake.transaction import AddAction

from kernel.positions import Epoch
from lake.datasets import location_of, paths_of
from lake.guarded_commits import said_by_us
from lake.log_checkpoints import INTERVAL, is_due, write_beside
from lake.storage import is_local, last_checkpoint, log_file, remove_file, write_new
from lake.table_commits import OPERATION, commit_at

_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
"""What a writer of ours has to know: it marks nothing and computes nothing for these."""
_ASKS_MORE = ("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableInCommitTimestamps")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./=-]+")


class Landing(Enum):
    """What became of a commit: it is there, another one was first, or deltalake is to make it."""

    DONE = "done"
    BEHIND = "behind"
    NOT_HERE = "not here"


def is_made_here(table: DeltaTable, folders: Sequence[str] = ()) -> bool:
    """Say whether commits are ours to make, to files that lie in `folders`."""
    asked, settings = table.protocol(), table.metadata().configuration
    return (
        is_local(location_of(table))
        and asked.min_writer_version in (1, 2, 7)
        and {*(asked.writer_features or ())} <= _FEATURES
        and not any(settings.get(name) == "true" for name in _ASKS_MORE)
        and _interval(table) > 2
        and all(map(_PLAIN_PATH.fullmatch, filter(None, folders)))
    )


def _interval(table: DeltaTable) -> int:
    """Return how many versions there are from one checkpoint to the next; 0 where none is said."""
    return int(table.metadata().configuration.get(INTERVAL) or 0)


def commit_here(
    table: DeltaTable,
    behind: int,
    adds: Sequence[AddAction],
    gone: Sequence[Mapping[str, Any]],
    guards: Sequence[tuple[str, Epoch]],
    said: Mapping[str, str],
) -> Landing:
    """Put files into a table, and take others out of it, as the version behind one that was read.

    `gone` have `path` and `size_bytes`, as the log tells them, and lie in no partition. The handle
    is brought up to date. What is not `is_made_here` is `NOT_HERE`, and so is what a disk refuses.
    """
    place, version = location_of(table), behind + 1
    paths = [*(each.path for each in adds), *(each["path"] for each in gone)]
    if not is_made_here(table, paths) or (gone and table.metadata().partition_columns):
        return Landing.NOT_HERE
    lines = "".join(f"{json.dumps(each)}\n" for each in _actions(adds, gone, guards, said))
    new = False
    # A log that went on beyond a checkpoint may lack the file of a version that it has.
    if last_checkpoint(place) < version:
        try:
            new = write_new(log_file(place, version), lines.encode())
        except OSError:
            return Landing.NOT_HERE  # Its own error tells more, if it has one too.
        if new and last_checkpoint(place) >= version and not _is_there(place, adds, guards):
            remove_file(place, log_file(place, version))
            new = False
    table.update_incremental()
    if new and is_due(version, _interval(table)):
        write_beside(place, version)
    return Landing.DONE if new else Landing.BEHIND


def came_before(table: DeltaTable, behind: int, app_ids: Collection[str]) -> str | None:
    """Return which of some app ids has a commit in the versions behind one, up to the handle's.

    Where the log does not tell it any more, it is the first of them.
    """
    for version in range(behind + 1, table.version() + 1):
        found = commit_at(location_of(table), version)
        if found is None:
            return next(iter(app_ids))
        for app_id in app_ids:
            if app_id in found.guards:
                return app_id
    return None


def _is_there(place: str, adds: Sequence[AddAction], guards: Sequence[tuple[str, Epoch]]) -> bool:
    """Say whether a commit is in the log, as it is read from its last checkpoint."""
    table = DeltaTable(place)
    marked = all((table.transaction_version(app) or -1) >= int(at) for app, at in guards)
    paths = paths_of(table)
    return marked and all(each.path in paths for each in adds)


def _actions(
    adds: Sequence[AddAction],
    gone: Sequence[Mapping[str, Any]],
    guards: Sequence[tuple[str, Epoch]],
    said: Mapping[str, str],
) -> list[dict[str, Any]]:
    now = int(time.time() * 1000)
    info = {
        "timestamp": now,
        "operation": said.get(OPERATION, "WRITE"),
        "operationParameters": {"mode": "Append"},
        "engineInfo": "penstock",
        **said,
        **said_by_us(),
    }
    marks = [{"appId": app, "version": int(at), "lastUpdated": now} for app, at in guards]
    added = [
        {
            "path": each.path,
            "partitionValues": dict(each.partition_values),
            "size": each.size,
            "modificationTime": each.modification_time,
            "dataChange": True,
            "stats": each.stats,
        }
        for each in adds
    ]
    removed = [
        {
            "path": each["path"],
            "dataChange": True,
            "deletionTimestamp": now,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": each["size_bytes"],
        }
        for each in gone
    ]
    return [
        {"commitInfo": info},
        *({"txn": each} for each in marks),
        *({"add": each} for each in added),
        *({"remove": each} for each in removed),
    ]
