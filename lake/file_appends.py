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
from lake.guarded_commits import committing, mark_of, marked, overtaken
from lake.local_commits import Landing, came_before, commit_here, is_made_here
from lake.staged_files import FilePlace, StagedFiles, nan_columns, staged
from lake.table_commits import ROWS

MOST_BYTES = 8 * 2**20
"""Of more rows in memory deltalake makes files of the size that it likes."""
_TRIES = 16
_PARTITIONS = 16


def appended(
    table: DeltaTable,
    rows: pa.Table,
    guards: Sequence[tuple[str, Epoch]],
    *,
    again: bool = False,
) -> bool:
    """Append rows under guards, and bring the handle up to date; False where it did nothing.

    Commits of others may come before: what is appended depends on none of them. Raises `LeaseLost`
    where one of these is under an app id of `guards`, and as `committing` does. With `again` the
    table has the epoch of the first of them.
    """
    behind, stored, split = table.version(), schema_of(table), table.metadata().partition_columns
    known = {*rows.schema.names} <= {*stored.names}
    made = shaped(rows, stored) if known and rows.nbytes <= MOST_BYTES else None
    # Its column would have no bounds, which deltalake's own datasets take for null.
    parts = None if made is None or nan_columns(made) else _parts(made, split)
    if parts is None or not is_made_here(table, [place.folder for place, _ in parts]):
        return False
    app_id, epoch = guards[0]
    with committing(table, app_id, epoch, f"writing {rows.num_rows} rows", again=again):
        if _is_reached(table, guards, again=again):
            raise overtaken(table, app_id, epoch)
        files = [staged(table, part, place) for place, part in parts]
        done = _committed(table, behind, files, guards, {ROWS: str(rows.num_rows)})
        if not done:
            for each in files:
                each.discard()
            rival = came_before(table, behind, [app for app, _ in guards])
            if rival is not None:
                raise overtaken(table, rival, epoch)
    return done


def _is_reached(table: DeltaTable, guards: Sequence[tuple[str, Epoch]], *, again: bool) -> bool:
    """Say whether a commit came since the caller asked, by another thread that has the handle."""
    marks = ((mark_of(table, app), at) for app, at in guards)
    return any(mark is not None and (mark > at or (mark == at and not again)) for mark, at in marks)


def _committed(
    table: DeltaTable,
    behind: int,
    files: Sequence[StagedFiles],
    guards: Sequence[tuple[str, Epoch]],
    said: dict[str, str],
) -> bool:
    """Commit files behind a version, or behind commits of others that came meanwhile."""
    stored, apps = schema_of(table), [app for app, _ in guards]
    adds = [add for each in files for add in each.close()]
    at = behind
    for _ in range(_TRIES):
        outcome = commit_here(table, at, adds, (), guards, said)
        if outcome is Landing.DONE:
            marked(table, at, {app: int(epoch) for app, epoch in guards})
            return True
        now = table.version()  # Before it is asked who came: that is about this version, or more.
        same = schema_of(table).equals(stored) and came_before(table, behind, apps) is None
        if outcome is Landing.NOT_HERE or not same:
            break
        at = now
    return False


def _parts(rows: pa.Table, columns: Sequence[str]) -> list[tuple[FilePlace, pa.Table]] | None:
    """Return rows by the values of a table's partition column; None where they are many, or odd."""
    if not columns:
        return [(FilePlace(stem=uuid.uuid4().hex), rows)]
    (column, *others) = columns
    if others or not pa.types.is_string(rows.schema.field(column).type):
        return None
    values = pc.unique(rows[column]).to_pylist()
    if len(values) > _PARTITIONS or None in values or "" in values:
        return None
    own = rows.drop_columns([column])
    return [
        (
            FilePlace(stem=uuid.uuid4().hex, values={column: one}),
            own.filter(pc.equal(rows[column], one)),
        )
        for one in values
    ]
