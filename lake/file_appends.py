"""Appends few rows to a table on this machine's disk: one file, and a commit of our own for it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from kernel.positions import Epoch
from lake.datasets import schema_of
from lake.file_merges import shaped
from lake.guarded_commits import mark_of, marked, overtaken
from lake.local_commits import ROWS, Outcome, commit_here
from lake.staged_files import FilePlace, StagedFiles

MOST_BYTES = 8 * 2**20
"""Of more rows in memory deltalake makes files of the size that it likes."""
_TRIES = 3
_PARTITIONS = 16


def appended(table: DeltaTable, rows: pa.Table, guards: Sequence[tuple[str, Epoch]]) -> bool:
    """Append rows under guards, and bring the handle up to date; False where it did nothing.

    Commits of others may come before: what is appended depends on none of them. Raises `LeaseLost`
    where one of these is under an app id of `guards`.
    """
    stored, split = schema_of(table), table.metadata().partition_columns
    known = {*rows.schema.names} <= {*stored.names}
    made = shaped(rows, stored) if known and rows.nbytes <= MOST_BYTES else None
    parts = None if made is None else _parts(made, split)
    if parts is None:
        return False
    marks = {app: mark_of(table, app) for app, _ in guards}
    adds, written = [], []
    for values, part in parts:
        files = StagedFiles(table, FilePlace(stem=uuid.uuid4().hex, values=values))
        files.write(part)
        adds += files.close()
        written.append(files)
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
    for files in written:
        files.discard()
    return False


def _parts(rows: pa.Table, columns: Sequence[str]) -> list[tuple[dict[str, str], pa.Table]] | None:
    """Return rows by the values of a table's partition column; None where they are many, or odd."""
    if not columns:
        return [({}, rows)]
    (column, *others) = columns
    if others or not pa.types.is_string(rows.schema.field(column).type):
        return None
    values = pc.unique(rows[column]).to_pylist()
    if len(values) > _PARTITIONS or None in values or "" in values:
        return None
    own = rows.drop_columns([column])
    return [({column: one}, own.filter(pc.equal(rows[column], one))) for one in values]
