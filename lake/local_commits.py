"""Commits to tables on this machine's disk: the log's next file, which one writer can put in place.

    {commitInfo} {txn} … {add} … {remove} …  ->  _delta_log/00000000000000000042.json

Whoever has the file of the next version first has committed: on a disk a second name of a file that
is whole decides it, for deltalake and for us alike. It does so by threads that each wait for a
processor, five to ten milliseconds where all are busy; here it takes half of one.
Left to deltalake are tables on object stores, and with features that need more of a writer; and the
commits about which it writes a checkpoint, and cleans the log behind it.
Source: the Delta transaction protocol, "Actions" and "Writer requirements".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from deltalake import DeltaTable
from deltalake.transaction import AddAction

from kernel.positions import Epoch
from lake.datasets import location_of
from lake.guarded_commits import said_by_us
from lake.storage import is_local, log_file, write_new

OPERATION = "penstock.operation"
"""Says of a commit that it is a merge: deltalake calls every commit of files a write."""
ROWS = "penstock.rows"
"""How many rows a merge had to insert, to update or to delete."""

_FEATURES = {"appendOnly", "invariants", "timestampNtz"}
"""What a writer of ours has to know: it marks nothing and computes nothing for these."""
_ASKS_MORE = ("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableInCommitTimestamps")
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./=-]+")
_INTERVAL = "delta.checkpointInterval"


class Outcome(Enum):
    """What became of a commit: it is there, another one was first, or deltalake is to make it."""

    DONE = "done"
    BEHIND = "behind"
    NOT_HERE = "not here"


def commit_here(
    table: DeltaTable,
    adds: Sequence[AddAction],
    gone: Sequence[Mapping[str, Any]],
    guards: Sequence[tuple[str, Epoch]],
    said: Mapping[str, str],
) -> Outcome:
    """Put files into a table, and take others out of it, right behind the handle's version.

    `gone` have `path` and `size_bytes`, as the log tells them, and lie in no partition. The handle
    is brought up to date.
    """
    place, version = location_of(table), table.version() + 1
    if not _suits(table, place, version) or not all(
        _PLAIN_PATH.fullmatch(path)
        for path in (*(a.path for a in adds), *(f["path"] for f in gone))
    ):
        return Outcome.NOT_HERE
    lines = "".join(f"{json.dumps(each)}\n" for each in _actions(adds, gone, guards, said))
    try:
        new = write_new(log_file(place, version), lines.encode())
    except OSError:
        return Outcome.NOT_HERE  # Its own error tells more, if it has one too.
    table.update_incremental()
    return Outcome.DONE if new else Outcome.BEHIND


def _suits(table: DeltaTable, place: str, version: int) -> bool:
    if not is_local(place):
        return False
    asked, metadata = table.protocol(), table.metadata()
    settings = metadata.configuration
    interval = int(settings.get(_INTERVAL) or 0)
    return (
        asked.min_writer_version in (1, 2, 7)
        and {*(asked.writer_features or ())} <= _FEATURES
        and not any(settings.get(name) == "true" for name in _ASKS_MORE)
        # Those on both sides of a checkpoint are deltalake's: it writes them behind one of these.
        and interval > 2
        and (version + 1) % interval > 1
    )


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
