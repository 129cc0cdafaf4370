"""What one commit of a Delta table says: whether it changed rows, and under whose guards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lake.storage import read, version_at

OPERATION = "penstock.operation"
"""Says of a commit that it is a merge: deltalake calls every commit of files a write."""
ROWS = "penstock.rows"
"""How many rows a merge had to insert, to update or to delete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCommit:
    """One commit. `guards` are the versions of its transactions, by the app id of each.

    A compaction and the like rewrite rows as they were: `changes_rows` is False.
    """

    version: int
    changes_rows: bool
    guards: Mapping[str, int]
    operation: str
    at: datetime


def commit_at(uri: str, version: int) -> TableCommit | None:
    """Read the commit of one version of a table; None where the log does not keep it any more."""
    stored = version_at(uri, version)
    if stored is None:
        return None
    actions: list[dict[str, Any]] = [
        json.loads(line) for line in read(uri, stored.path).splitlines() if line
    ]
    files = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
    info: dict[str, Any] = next(
        (each["commitInfo"] for each in actions if "commitInfo" in each), {}
    )
    return TableCommit(
        version=version,
        changes_rows=any(file.get("dataChange", True) for file in files),
        guards={
            str(each["txn"]["appId"]): int(each["txn"]["version"])
            for each in actions
            if "txn" in each
        },
        operation=str(info.get("operation", "a commit")),
        at=datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1000, UTC),
    )
