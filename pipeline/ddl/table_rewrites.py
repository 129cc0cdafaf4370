"""Brings a stored table to the columns that its source has now, in one commit.

Plain Delta tables name columns in their files, so that a renamed column means new files: the rows
are read and written again as a stream, whatever their number. Readers see the table before or
after, and versions of before stay readable.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.ipc
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake

from kernel import failpoints
from kernel.positions import Epoch
from lake.adoption import put_in_place_of_all
from lake.datasets import dataset_at, dataset_of, has_whole_files, location_of, schema_of
from lake.exactness import as_spelled, as_spelled_within
from lake.executor_tasks import Tasks, WrittenFile, handed_back
from lake.file_actions import actions_of
from lake.file_batches import small_batches
from lake.guarded_commits import committing, guarded
from lake.staged_files import FilePlace, StagedFiles
from lake.table_settings import TABLE_SETTINGS
from lake.tables import Tables
from lake.writer import Guard, reached, unsliced
from pipeline.ddl.steps import Retyped, SetAside, Step, apply, read_as, touches_rows
from schemas.widening import common_type

_BATCH_ROWS = 16_384

Widen = Callable[[pa.DataType, pa.DataType], pa.DataType | None]
"""Returns the type that holds the values of both, None where there is none."""


def must_evolve(table: DeltaTable, steps: Sequence[Step]) -> bool:
    """Whether the steps change anything about a table."""
    before = schema_of(table)
    return touches_rows(steps, before) or apply(before.empty_table(), steps).schema != before


def fit(tables: Tables, path: str, rows: pa.Table, widen: Widen = common_type) -> pa.Table:
    """Make a table able to take rows, and return them in its types.

    A column of another type is widened, as `widen` says; where no type holds both, the stored one
    is set aside. One that is stored in other letter case keeps its name: to Delta it is the same.
    Doing it twice has the effect of once.
    """
    table = tables.open(path)
    assert table is not None, f"{path} is to be appended to"
    steps, rows = _fitted(schema_of(table), rows, widen)
    if steps:
        evolve(tables, path, steps, None)
    return rows


def joined(parts: Sequence[pa.Table], widen: Widen) -> pa.Table:
    """Put rows of several schemas together, those that were written first in front, as `fit`."""
    whole, *others = parts
    for part in others:
        steps, rows = _fitted(whole.schema, part, widen)
        whole = pa.concat_tables([apply(whole, steps), rows], promote_options="default")
    return whole


def _fitted(stored: pa.Schema, rows: pa.Table, widen: Widen) -> tuple[list[Step], pa.Table]:
    """Return the steps that make stored columns able to take rows, and the rows in their types."""
    steps: list[Step] = []
    rows = as_spelled(rows, stored.names)
    for place, item in enumerate(rows.schema):
        known = stored.field(item.name).type if item.name in stored.names else item.type
        kind = widen(known, item.type)
        if kind is None:
            steps.append(SetAside(item.name, known))
            continue
        if kind != known:
            steps.append(Retyped(item.name, kind))
        if kind != item.type:
            column = as_spelled_within(rows[item.name], kind).cast(options=read_as(kind))
            rows = rows.set_column(place, pa.field(item.name, kind), column)
    return steps, rows


def evolve(
    tables: Tables,
    path: str,
    steps: Sequence[Step],
    guard: Guard | None,
    *,
    rewritten: str | None = None,
) -> bool:
    """Apply steps to all rows of a table, once per guard; return whether it had to write.

    Where rows that are there change, the commit takes the guard's epoch for `rewritten`, too.
    Memory is that of a few batches. Raises `LeaseLost` when another writer committed under the
    same app id meanwhile, `Unavailable` when storage fails.
    """
    table = tables.open(path)
    if table is None or not steps or (guard is not None and reached(table, guard)):
        return False
    before = schema_of(table)
    after = apply(before.empty_table(), steps).schema
    rewrites = touches_rows(steps, before)
    if not rewrites and after == before:
        return False
    app_id, epoch = (path, Epoch(0)) if guard is None else (guard.app_id, guard.epoch)
    also = [(rewritten, epoch)] if rewritten is not None and rewrites else []
    properties = CommitProperties() if guard is None else guarded(app_id, epoch, also=also)
    with committing(table, app_id, epoch, f"writing {path} with new columns"):
        if rewrites:
            with _rewritten(table, steps, after) as rows:
                write_deltalake(
                    table,
                    rows,
                    mode="overwrite",
                    schema_mode="overwrite",
                    configuration=dict(TABLE_SETTINGS),
                    commit_properties=properties,
                )
        else:
            added = pa.schema([item for item in after if item.name not in before.names])
            write_deltalake(
                table,
                added.empty_table(),
                mode="append",
                schema_mode="merge",
                commit_properties=properties,
            )
    tables.forget(path)
    failpoints.hit(failpoints.EVOLVE_AFTER_COMMIT)
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """Applies steps to all rows of a table: those of one of some files for each part. Picklable."""

    parts: Sequence[ds.Dataset]
    steps: Sequence[Step]
    after: pa.Schema
    root: str

    def __call__(self, number: int) -> Sequence[WrittenFile]:
        """Write the new files of one part."""
        files = StagedFiles(self.root, FilePlace(stem=uuid.uuid4().hex))
        for batch in _batches(small_batches(self.parts[number]), self.steps, self.after):
            files.write(pa.Table.from_batches([batch]))
        return handed_back(files, self.root)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFiles:
    """The rows of a table's version after steps, in files that are no part of it yet."""

    version: int
    steps: tuple[Step, ...]
    columns: pa.Schema
    written: Sequence[WrittenFile]


def rewritten_ahead(
    table: DeltaTable, steps: Sequence[Step], tasks: Tasks
) -> RewrittenFiles | None:
    """Do as `evolve`, but for its commit (`put_rewritten`); None where no row is written anew.

    So it is for a table whose rows are not told by its files alone.
    """
    before = schema_of(table)
    if not has_whole_files(table) or not touches_rows(steps, before):
        return None
    after, version = apply(before.empty_table(), steps).schema, int(table.version())
    parts = [dataset_at(table, [str(file)]) for file in actions_of(table)["path"].to_pylist()]
    task = RewriteTask(parts=parts, steps=tuple(steps), after=after, root=location_of(table))
    written = tasks(task, len(parts))
    if written is None:
        return None
    return RewrittenFiles(
        version=version, steps=tuple(steps), columns=after, written=tuple(written)
    )


def put_rewritten(tables: Tables, path: str, made: RewrittenFiles, guard: Guard) -> None:
    """Put rewritten files in the place of all others: the table is at the version they are of."""
    table = tables.open(path)
    assert table is not None, "it was there when its rows were written anew"
    with committing(table, guard.app_id, guard.epoch, f"writing {path} with new columns"):
        adds = [file.addition() for file in made.written]
        properties = guarded(guard.app_id, guard.epoch, retries=0)
        put_in_place_of_all(table, adds, Schema.from_arrow(made.columns), properties)
    tables.forget(path)
    failpoints.hit(failpoints.EVOLVE_AFTER_COMMIT)


@contextmanager
def _rewritten(
    table: DeltaTable, steps: Sequence[Step], after: pa.Schema
) -> Iterator[pa.RecordBatchReader]:
    """Yield the rows by way of a file, which is read without the interpreter.

    deltalake's threads, one for each core, would wait for it, batch by batch: with as many such
    streams as threads nothing is left for whoever keeps the interpreter until they answer.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-rows-") as folder:
        path, options = f"{folder}/rows", pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, after, options=options) as sink:
            for batch in _batches(_rows(table), steps, after):
                sink.write_batch(batch)
        with pa.OSFile(path, "rb") as file:
            yield pa.ipc.open_stream(file)


def _rows(table: DeltaTable) -> Iterator[pa.Table]:
    """Read a table, a few rows at a time: wide ones would fill memory."""
    rows = dataset_of(table)
    if has_whole_files(table) and not any(map(pa.types.is_nested, rows.schema.types)):
        yield from small_batches(rows)
        return
    scanner = rows.scanner(batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1)
    for batch in scanner.to_batches():
        yield pa.Table.from_batches([batch])


def _batches(
    rows: Iterable[pa.Table], steps: Sequence[Step], after: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Apply steps to rows, batch by batch."""
    for batch in rows:
        yield from unsliced(apply(batch, steps).cast(after)).to_batches()
        failpoints.hit(failpoints.EVOLVE_WHILE_WRITING)
