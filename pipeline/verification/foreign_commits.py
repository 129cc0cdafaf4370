"""Commits to a table that its own writer did not make: the usual cause of a difference."""

from __future__ import annotations

from collections.abc import Iterable

from lake.datasets import location_of
from lake.layout import Lake
from lake.table_commits import commit_at
from lake.tables import Tables
from pipeline.installs.installation import mend_guard

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
        commit = commit_at(root, version)
        if commit is None or not commit.changes_rows or _ours(commit.guards, name):
            continue
        return (
            f"version {version} of {name} ({commit.operation} at "
            f"{commit.at.isoformat(timespec='seconds')}) was not written by the pipeline"
        )
    return None


def _ours(guards: Iterable[str], name: str) -> bool:
    """Say whether ingest made a commit: for an epoch, or for the install of a range."""
    own = (f"{name}/", mend_guard(""))
    return any(guard == name or guard.startswith(own) for guard in guards)
