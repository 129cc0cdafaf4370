"""Commits to a table that its own writer did not make: the usual cause of a difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from projections.log.datasets import location_of
from projections.log.layout import Lake
from projections.log.storage import read, version_at
from projections.log.tables import Tables

_LOOK_BACK = 40


def stranger(lake: Lake, tables: Tables, name: str) -> str | None:
    """Describe the newest commit that changed a table's rows without its writer's guard.

    Looks at the last 40 commits; None when all were its writer's. A commit that is not kept any
    more is passed over.
    """
    table = tables.open(lake.path(name))
    if table is None:
        return None
    newest = int(table.version())
    root = location_of(table)
    for version in range(newest, max(-1, newest - _LOOK_BACK), -1):
        commit = version_at(root, version)
        if commit is None:
            continue
        actions = [json.loads(line) for line in read(root, commit.path).splitlines() if line]
        if not _changes_rows(actions) or name in set(_app_ids(actions)):
            continue
        info: dict[str, Any] = next((a["commitInfo"] for a in actions if "commitInfo" in a), {})
        at = datetime.fromtimestamp(int(info.get("timestamp", 0)) / 1000, UTC)
        what = info.get("operation", "a commit")
        return (
            f"version {version} of {name} ({what} at {at.isoformat(timespec='seconds')}) was not"
            " written by the pipeline"
        )
    return None


def _changes_rows(actions: list[dict[str, Any]]) -> bool:
    changes = [a[kind] for a in actions for kind in ("add", "remove") if kind in a]
    return any(change.get("dataChange", True) for change in changes)


def _app_ids(actions: list[dict[str, Any]]) -> Iterator[str]:
    for action in actions:
        if "txn" in action:
            yield str(action["txn"].get("appId"))
