"""Brings the rows of a large fold to their newest images, which are staged beside the table.

Upstream: unread rows of the log (`large_folds`). Downstream: `StagedMerge`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pyarrow as pa

from kernel import failpoints
from lake.datasets import dataset_of
from lake.executor_tasks import Executors, Task
from lake.layers import whole
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import OP
from pipeline.current.key_buckets import BucketPart, Known, gone_through
from pipeline.current.key_files import SHARES
from pipeline.current.newest_images import ImageTask, KeyedImageTask, NewestImages
from pipeline.current.staged_images import ImageStaging
from pipeline.current.tail import TailTables
from pipeline.ddl.unchanged_values import any_of, rows_of_keys
from pipeline.log.large_folds import SLICE_ROWS, LogRows, slices
from schemas.registry import SchemaLookup


class ImageStager:
    """Stages images of tables of one lake. Safe for several threads, each with its `tables`."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        tails: TailTables,
        executors: Executors,
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._schemas = schemas
        self._tails = tails
        self._executors = executors

    def stage(
        self, staging: ImageStaging, rows: LogRows, images: NewestImages, name: str, *, gone: bool
    ) -> tuple[str, ...]:
        """Stage the newest images of all rows; return the key columns, none without a row.

        Executors do it: a slice each, or all rows of some keys each where an update left a value
        alone, or deleted rows are kept. What they decline, the driver does.
        """
        cut = [*slices(rows)]
        by_slices = ImageTask(slices=cut, images=images, root=staging.path)
        # Who declines a slice for a key looks at that key in all slices.
        images = replace(images, exact=True)
        if not images.soft and cut and not cut[0].has_marks():
            keys = self._staged_by_executors(staging, by_slices, len(cut))
            if keys is not None:
                return keys
        self._tails.settle(name)
        handle = None if gone else self._tables.open(self._lake.path(name))
        known = Known(base=None if handle is None else dataset_of(handle))
        if not images.evolution and self._executors.tasks is not None:
            by_keys = KeyedImageTask(
                slices=cut,
                images=images,
                known=known,
                root=staging.path,
                parts=SHARES,
                rows=rows.count(),
                per_part=rows.per_part(SLICE_ROWS),
            )
            keys = self._staged_by_executors(staging, by_keys, SHARES)
            if keys is not None:
                return keys

        def stage(parts: Iterable[BucketPart]) -> tuple[str, ...]:
            keys: tuple[str, ...] = ()
            for part in parts:
                newest, keys = images.of(part.rows, part.stored)
                staging.add(newest, keys)
                part.became(newest)
                failpoints.hit(failpoints.LARGE_AFTER_SLICE)
            return keys

        return gone_through(
            cut,
            stage,
            known=None if images.evolution else known,
            stored=partial(self._staged, staging, name, gone),
            anew=staging.remove,
            schemas=self._schemas,
            per_part=rows.per_part(SLICE_ROWS),
        )

    def _staged_by_executors(
        self, staging: ImageStaging, task: Task, parts: int
    ) -> tuple[str, ...] | None:
        """Stage what a task writes; return the key columns, None where executors decline it."""
        files = None if self._executors.tasks is None else self._executors.tasks(task, parts)
        if files is None:
            staging.remove()
            return None
        keys = staging.adopt(files)
        failpoints.hit(failpoints.LARGE_AFTER_SLICE)
        return keys

    def _staged(
        self, staging: ImageStaging, name: str, gone: bool, wanted: pa.Table
    ) -> pa.Table | None:
        known = self.stored(name, gone, wanted)
        found = staging.newest(any_of(wanted))
        if found is None:
            return known
        newest, keys = found
        if known is None:
            known = newest.schema.remove(newest.schema.get_field_index(OP)).empty_table()
        return rows_of_keys(whole(known, newest, keys), wanted)

    def stored(self, name: str, gone: bool, wanted: pa.Table) -> pa.Table | None:
        """Return the rows of some keys as base and tail have them; None where these are `gone`."""
        if gone:
            return None
        # The tail first: what is folded meanwhile, the base has.
        tail = self._tails.newest(name)
        known = self._tables.read(self._lake.path(name), where=any_of(wanted))
        if tail is not None and known is not None:
            known = whole(known, tail, self._tails.keys(name))
        return rows_of_keys(known, wanted)
