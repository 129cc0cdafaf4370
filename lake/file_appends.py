"""Appends few rows to a table on this machine's disk: one file, and a commit of our own for it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from deltalake import DeltaTable

from kernel.positions import Epoch
from lake.datasets import schema_of
from lake.file_merges import shaped
from lake.guarded_commits import mark_of, marked, overtaken
from lake.local_commits import ROWS, Outcome, commit_here
from lake.staged_files import StagedFiles

MOST_BYTES = 8 * 2**20
"""Of more rows in memory deltalake makes files of the size that it likes."""
_TRIES = 3


def appended(table: DeltaTable, rows: pa.Table, guards: Sequence[tuple[str, Epoch]]) -> bool:
    """Append rows under guards, and bring the handle up to date; False where it did nothing.

    Commits of others may come before: what is appended depends on none of them. Raises `LeaseLost`
    where one of these is under an app id of `guards`.
    """
    stored = schema_of(table)
    known = {*rows.schema.names} <= {*stored.names}
    made = shaped(rows, stored) if known and rows.nbytes <= MOST_BYTES else None
    if made is None:
        return False
    marks = {app: mark_of(table, app) for app, _ in guards}
    files = StagedFiles(table)
    files.write(made)
    adds = files.close()
    for _ in range(_TRIES):
        before = table.version()
        outcome = commit_here(table, adds, (), guards, {ROWS: str(rows.num_rows)})
        if outcome is Outcome.DONE:
            marked(table, before, {app: int(at) for app, at in guards})
            return True
        for app, at in guards:
            if mark_of(table, app) != marks[app]:
                raise overtaken(table, app, at)
        if outcome is Outcome.NOT_HERE or not schema_of(table).equals(stored):
            break
    files.discard()
    return False
