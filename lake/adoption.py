"""Files that become part of a Delta table by one commit: written first, added to its log after.

Readers see none of them before the commit and all of them after it. The commit is made with
`create_write_transaction`; statistics go along, so that readers go on skipping files.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.transaction import AddAction

from kernel.positions import Epoch
from lake.datasets import schema_of
from lake.exactness import refuse_other_types
from lake.guarded_commits import committing, guarded, mark_of, overtaken
from lake.log_lengths import shorten
from lake.reader_features import enable_for
from lake.staged_files import FilePlace, StagedFiles, statistics_text
from lake.writer import Guard, reached


def adopted(built: DeltaTable, folder: str) -> list[AddAction]:
    """Return a built table's files as additions to the table above it, which has it in `folder`."""
    return [
        AddAction(
            f"{folder}/{row['path']}",
            row["size_bytes"],
            {},
            row["modification_time"],
            True,
            statistics_text(row),
        )
        for row in pa.table(built.get_add_actions()).to_pylist()
    ]


def commit_staged(
    table: DeltaTable,
    adds: list[AddAction],
    schemas: Sequence[pa.Schema],
    app: str,
    version: int,
    *,
    partition_by: Sequence[str] = (),
) -> None:
    """Make staged files part of a table: one commit, which carries the guard (`app`, `version`).

    Columns that the table lacks are added before. A guard that the table has makes it do nothing.
    Raises `LeaseLost` when somebody else commits under the same app id, and `Incompatible` where a
    file has a column in another type than the table.
    """
    table.update_incremental()
    done = table.transaction_version(app)
    if done is not None and done >= version:
        return
    known = schema_of(table)
    for schema in schemas:
        added = [field for field in schema if field.name not in known.names]
        if added:
            empty = pa.schema(added).empty_table()
            write_deltalake(table, empty, mode="append", schema_mode="merge")
            table.update_incremental()
            known = schema_of(table)
        refuse_other_types(known, schema, table.table_uri)
    with committing(table, app, Epoch(version), f"committing {app} to {table.table_uri}"):
        table.create_write_transaction(
            [*adds],
            mode="append",
            schema=table.schema(),
            partition_by=list(partition_by),
            commit_properties=guarded(app, Epoch(version)),
        )
        # The handle does not see its own commit by itself.
        table.update_incremental()


def append_files(
    table: DeltaTable,
    adds: Sequence[AddAction],
    rows: pa.Table | None,
    guard: Guard,
    shape: pa.Schema,
    partition_by: Sequence[str] = (),
) -> int:
    """Append files that lie below a table's root, and rows beside them: one guarded commit.

    See `TableWriter.append`; `shape` are the columns of all of them. Returns the version.
    """
    shorten(guard.app_id, table)
    beside: list[AddAction] = []
    if rows is not None and not reached(table, guard):
        beside = _written(table, rows, partition_by)
    commit_staged(
        table, [*adds, *beside], [shape], guard.app_id, int(guard.epoch), partition_by=partition_by
    )
    return int(table.version())


def replace_files(
    table: DeltaTable,
    adds: Sequence[AddAction],
    guard: Guard,
    columns: pa.Schema,
    before: int | None,
) -> None:
    """Make files that lie below a table's root all that it has, under their columns: one commit.

    `before`: the guard's epoch in the table when its rows were begun to be computed. Commits of
    others that came since are replaced as well. Raises `LeaseLost` where one of these is under the
    guard's app id, or comes at this very moment.
    """
    shorten(guard.app_id, table)
    table.update_incremental()
    enable_for(table, columns)  # A commit, which takes in what others did: before it is asked.
    if mark_of(table, guard.app_id) != before:
        raise overtaken(table, guard.app_id, guard.epoch)
    what = f"replacing the rows of {table.table_uri}"
    with committing(table, guard.app_id, guard.epoch, what, again=guard.again):
        # Right behind the version whose files it takes away: Delta would let it pass after a
        # commit that only rearranged them, and the rows would double.
        properties = guarded(guard.app_id, guard.epoch, retries=0)
        put_in_place_of_all(table, adds, Schema.from_arrow(columns), properties)
        table.update_incremental()


def put_in_place_of_all(
    table: DeltaTable, adds: Sequence[AddAction], columns: Schema, properties: CommitProperties
) -> None:
    """Put files in the place of all that a table has, under their columns, by one commit.

    Where new columns need it, one that changes no row comes before (`lake.reader_features`). Raises
    what deltalake raises.
    """
    enable_for(table, pa.schema(columns.to_arrow()))
    table.create_write_transaction(
        [*adds], mode="overwrite", schema=columns, partition_by=[], commit_properties=properties
    )


def _written(table: DeltaTable, rows: pa.Table, partition_by: Sequence[str]) -> list[AddAction]:
    """Write rows to files, one for each partition of the one column there may be."""
    if not partition_by:
        files = StagedFiles(table)
        files.write(rows)
        return files.close()
    (column,) = partition_by
    added: list[AddAction] = []
    for value in rows[column].unique().to_pylist():
        files = StagedFiles(table, FilePlace(stem=uuid.uuid4().hex, values={column: value}))
        files.write(rows.filter(pc.equal(rows[column], value)).drop_columns([column]))
        added += files.close()
    return added
