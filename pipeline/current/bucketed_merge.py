"""Merges the staged images of a large fold into its table, bucket by bucket of the keys' hashes.

    staged images, touched files of the base -> files by key -> new files of the base -> one commit

Both sides are laid into files of the local disk by the hash of their key, and then joined, as many
files at once as make a bucket: memory holds one bucket, whatever the number of rows and however
wide they are, and each row is read and written twice. How wide rows are the files tell once they
are laid: neither the rows of a table do, nor the size of what is packed.
Spark's MERGE joins twice, sorts, and takes some twenty times the processors for it. Executors do
the work, each for some of the hashes; the driver makes the commit.

A file of the base in whose bounds no staged key lies stays as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from kernel.positions import DeltaVersion
from lake.datasets import (
    dataset_at,
    dataset_of,
    has_whole_files,
    location_of,
    schema_of,
)
from lake.executor_tasks import Tasks, TasksHere, WrittenFile, handed_back
from lake.file_actions import actions_of
from lake.file_batches import small_batches
from lake.guarded_commits import committing, guarded, put_in_place
from lake.layers import EPOCH, KEYS, whole
from lake.staged_files import FilePlace, StagedFiles
from lake.tables import Tables
from lake.writer import OP, Guard, reached
from pipeline.current.key_files import MOST_FILES, SHARES, KeyFiles, Share, hashes_of
from pipeline.current.staged_images import SparkStagedMerge, StagedMerge
from pipeline.log.images import newest_per_key

BUCKET_ROWS = 200_000
"""About so many rows of both sides together are in memory at a time."""
BUCKET_BYTES = 96 * 2**20
"""So many bytes of both sides together are in memory at a time, a few times over.

Where the keys of one file take more, the merge is declined."""
MOST_BYTES = 4 * 2**30
"""Files of both sides that are laid out on one machine's disk; more is merged by Spark."""
FILE_ROWS = 2_000_000
"""A file ends behind the bucket with which it has so many rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketTask:
    """Merges the keys of some hashes: part `number` has every `parts`-th of them. Picklable.

    `columns` are those of the table at `root`. A null in a key is declined: SQL finds it equal to
    nothing, and Arrow to another null. So are more bytes than `MOST_FILES` buckets hold.
    """

    images: ds.Dataset
    base: ds.Dataset | None
    columns: pa.Schema
    keys: Sequence[str]
    root: str
    parts: int

    def __call__(self, number: int) -> Sequence[WrittenFile] | None:
        """Write the new files of one part."""
        written: list[WrittenFile] = []
        files = self._files()
        with TemporaryDirectory(prefix="penstock-merge-") as folder:
            images = self._laid(Path(folder) / "images", self.images, number)
            base = None
            if images is not None and self.base is not None:
                base = self._laid(Path(folder) / "base", self.base, number)
            if images is None or (base is None and self.base is not None):
                return None
            buckets = _buckets([images] if base is None else [images, base])
            if buckets is None:
                return None
            for bucket in buckets:
                merged = self._merged(
                    None if base is None else base.read(*bucket), images.read(*bucket)
                )
                if merged is not None:
                    files.write(merged)
                if files.rows >= FILE_ROWS:
                    written += handed_back(files, self.root)
                    files = self._files()
        return written + handed_back(files, self.root)

    def _files(self) -> StagedFiles:
        return StagedFiles(self.root, FilePlace(stem=uuid.uuid4().hex))

    def _laid(self, folder: Path, rows: ds.Dataset, number: int) -> KeyFiles | None:
        """Lay this part's rows into files; None where a key has a null, or they are too large."""
        share = Share(number=number, of=self.parts)
        with KeyFiles(folder, MOST_FILES) as files:
            for step in small_batches(rows):
                keys = step.select(list(self.keys))
                if any(column.null_count for column in keys.columns):
                    return None
                files.add(*share.taken(step, hashes_of(keys)))
                if max(files.bytes) > BUCKET_BYTES:
                    return None
        return files

    def _merged(self, base: pa.Table | None, images: pa.Table | None) -> pa.Table | None:
        if images is None:
            return base
        ordered = images.sort_by(EPOCH).drop_columns([EPOCH, KEYS])
        newest = _shaped(newest_per_key(ordered, tuple(self.keys)), self.columns)
        known = self.columns.empty_table() if base is None else base
        merged = whole(known, newest, self.keys)
        assert merged is not None, "there is a base, empty at least"
        return merged.select(self.columns.names).cast(self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """The files of a merge over a version of its table, and those in whose place they come."""

    version: int
    written: Sequence[WrittenFile]
    gone: Sequence[dict[str, object]]


class BucketedMerge:
    """Has `tasks` merge in `parts`; what does not suit that is left to another merge.

    That are keys that are neither numbers nor texts, columns that change their type, more than
    `MOST_BYTES`, and what a task declines.
    """

    def __init__(
        self, tables: Tables, tasks: Tasks, *, otherwise: StagedMerge, parts: int = 1
    ) -> None:
        self._tables = tables
        self._tasks = tasks
        self._otherwise = otherwise
        self._parts = parts

    def __call__(
        self, path: str, staged: str, guard: Guard, keys: Sequence[str], *, replace: bool
    ) -> DeltaVersion:
        """See `StagedMerge`."""
        images, table = self._sides(path, staged)
        if reached(table, guard):
            return DeltaVersion(table.version())
        made = self._made(images, table, keys, replace=replace)
        if made is None:
            return self._otherwise(path, staged, guard, keys, replace=replace)
        _commit(table, made, guard)
        return DeltaVersion(table.version())

    def ahead(
        self, path: str, staged: str, keys: Sequence[str], *, replace: bool
    ) -> MergedFiles | None:
        """Do as a merge does, but for its commit (`put_ahead`); None where buckets do not suit."""
        return self._made(*self._sides(path, staged), keys, replace=replace)

    def _sides(self, path: str, staged: str) -> tuple[DeltaTable, DeltaTable]:
        """Return the images and the table, which is made where it is not there."""
        images = self._tables.open(staged)
        assert images is not None, "it was just staged"
        return images, self._tables.ensure(path, _columns_of(images))

    def _made(
        self, images: DeltaTable, table: DeltaTable, keys: Sequence[str], *, replace: bool
    ) -> MergedFiles | None:
        if not _suits(table, _columns_of(images), keys, replace=replace):
            return None
        version, files = int(table.version()), _files(table)
        told = not replace and _has_own_bounds(keys[0], schema_of(table))
        touched = _touched(files, _files(images), keys[0]) if told else files
        task = self._task(table, images, [] if replace else touched, keys)
        written = None if task is None else self._tasks(task, self._parts)
        if written is None:
            return None
        return MergedFiles(version=version, written=tuple(written), gone=tuple(touched))

    def _task(
        self,
        table: DeltaTable,
        images: DeltaTable,
        touched: Sequence[dict[str, object]],
        keys: Sequence[str],
    ) -> BucketTask | None:
        both = [*_files(images), *touched]
        if sum(_number(file["size_bytes"]) for file in both) > MOST_BYTES:
            return None
        return BucketTask(
            images=dataset_of(images),
            base=dataset_at(table, [str(file["path"]) for file in touched]) if touched else None,
            columns=schema_of(table),
            keys=tuple(keys),
            root=location_of(table),
            parts=self._parts,
        )


def put_ahead(tables: Tables, path: str, made: MergedFiles, guard: Guard) -> DeltaVersion:
    """Commit what `ahead` made; the table is at the version that it was made over."""
    table = tables.open(path)
    assert table is not None, "it was there when the files were made"
    _commit(table, made, guard)
    return DeltaVersion(table.version())


def large_merge(spark: SparkSession, tables: Tables, tasks: Tasks | None) -> BucketedMerge:
    """Return the merge of large folds: by buckets, and by Spark's MERGE where these do not suit.

    Without `tasks` this process does the buckets.
    """
    spark_own = SparkStagedMerge(spark, tables)
    return BucketedMerge(tables, tasks or TasksHere(), otherwise=spark_own, parts=SHARES)


def _suits(table: DeltaTable, own: pa.Schema, keys: Sequence[str], *, replace: bool) -> bool:
    """Say whether images have columns that the table has, and keys that have one form only."""
    stored = {field.name: field.type for field in schema_of(table)}
    same = all(stored.get(field.name) == field.type for field in own)
    plain = all(
        pa.types.is_integer(stored.get(key)) or pa.types.is_string(stored.get(key)) for key in keys
    )
    whole_ = not replace or len(stored) == len(own)
    return bool(keys and same and whole_ and plain and has_whole_files(table))


def _files(table: DeltaTable) -> list[dict[str, object]]:
    found: list[dict[str, object]] = actions_of(table).to_pylist()
    return found


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _has_own_bounds(key: str, columns: pa.Schema) -> bool:
    """Say whether no nested field is called as a key is when its bounds are written flat."""
    return not any(
        pa.types.is_nested(field.type) and key.startswith(f"{field.name}.") for field in columns
    )


def _touched(
    files: Sequence[dict[str, object]], images: Sequence[dict[str, object]], key: str
) -> list[dict[str, object]]:
    """Return the files in whose bounds of a key column one of the images may lie."""
    ranges = [(image.get(f"min.{key}"), image.get(f"max.{key}")) for image in images]
    return [
        file
        for file in files
        if any(_meet(file.get(f"min.{key}"), file.get(f"max.{key}"), *each) for each in ranges)
    ]


def _meet(low: object, high: object, first: object, last: object) -> bool:
    match low, high, first, last:
        case int(), int(), int(), int():
            return first <= high and low <= last
        case str(), str(), str(), str():
            return first <= high and low <= last
    return True


def _buckets(sides: Sequence[KeyFiles]) -> list[list[int]] | None:
    """Put neighbouring files together as rows and bytes allow; None where one is too large."""
    found: list[list[int]] = []
    rows = size = 0
    for number in range(MOST_FILES):
        more_rows = sum(side.rows[number] for side in sides)
        more_bytes = sum(side.bytes[number] for side in sides)
        if more_bytes > BUCKET_BYTES:
            return None
        rows, size = rows + more_rows, size + more_bytes
        if not found or rows > BUCKET_ROWS or size > BUCKET_BYTES:
            found.append([])
            rows, size = more_rows, more_bytes
        found[-1].append(number)
    return found


def _shaped(images: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return images with all columns of the table: what an image lacks is null."""
    for field in columns:
        if field.name not in images.schema.names:
            images = images.append_column(field, pa.nulls(images.num_rows, field.type))
    return images.select([*columns.names, OP])


def _columns_of(images: DeltaTable) -> pa.Schema:
    """Return the columns that staged images bring to their table."""
    return pa.schema([f for f in schema_of(images) if f.name not in (OP, EPOCH, KEYS)])


def _commit(table: DeltaTable, made: MergedFiles, guard: Guard) -> None:
    """Put new files in the place of others, on top of the version that was read, or not at all."""
    adds = [file.addition() for file in made.written]
    with committing(table, guard.app_id, guard.epoch, f"merging into {table.table_uri}"):
        put_in_place(table, adds, made.gone, guarded(guard.app_id, guard.epoch, retries=0))
        table.update_incremental()
