"""Does a large fold up to its commit, beside ingest: images are staged, files of the merge written.

    unread rows of the log -> staged images -> files of the base -> `CurrentTables.fold_large`

What comes of it changes nothing that anybody reads, and may be thrown away at any moment. The epoch
that takes it in makes the one commit, and only over the version that the files were made over.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass

from kernel import failpoints
from kernel.positions import Epoch
from lake import storage
from lake.executor_tasks import Executors, TasksHere
from lake.file_actions import size_of
from lake.layout import Lake, current_name
from lake.tables import Tables
from pipeline.current.bucketed_merge import BucketedMerge, MergedFiles
from pipeline.current.image_stager import ImageStager
from pipeline.current.newest_images import NewestImages
from pipeline.current.staged_images import ImageStaging
from pipeline.current.tail import TailTables
from pipeline.ddl.steps import Evolution
from pipeline.ddl.table_rewrites import RewrittenFiles, rewritten_ahead
from pipeline.log.large_folds import LogRows, holds_rows, last_truncate
from schemas.pg_exact import EXACT
from schemas.registry import SchemaLookup

AHEAD = "current/_staging/_ahead/"
_PROCESS_BYTES = 16 * 2**20
"""Files that are smaller are written anew sooner than a process for it has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedAhead:
    """Staged images of a large fold, and the files of their merge, where these could be made.

    Both were made over a base of `version`, None for no table, whose tail had nothing to add.
    """

    staging: ImageStaging
    keys: tuple[str, ...]
    version: int | None
    files: MergedFiles | None


class FoldAhead:
    """Folds ahead for tables of one lake, in one thread, with table handles of its own.

    `merge` has the same handles. Nobody else writes a table from the beginning of its fold until
    that was taken in, but for its tail, which is folded into the base first.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        schemas: SchemaLookup,
        tails: TailTables,
        *,
        keeps_deleted: Callable[[str, str], bool],
        executors: Executors,
        merge: BucketedMerge,
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._schemas = schemas
        self._tails = tails
        self._keeps_deleted = keeps_deleted
        self._merge = merge
        self._tasks = executors.tasks or TasksHere()
        self._stager = ImageStager(lake, tables, schemas, tails, executors)

    def __call__(
        self, source: str, table: str, rows: LogRows, epoch: Epoch, over: Callable[[], bool]
    ) -> FoldedAhead | None:
        """Fold rows of one table; None for what is done by its epoch alone, or when it is `over`.

        That is a TRUNCATE, whose commits are several. Another attempt at the same epoch, which is
        over and does not know it yet, may be at work still: each has a place of its own.
        """
        name = current_name(source, table)
        if last_truncate(rows) is not None:
            return None
        storage.remove(self._lake.path(AHEAD + name.removeprefix("current/")))
        attempt = f"{epoch}-{uuid.uuid4().hex[:8]}"
        staging = ImageStaging(self._lake, self._tables, name, attempt, AHEAD)
        self._tails.settle(name)
        path = self._lake.path(name)
        version = self._version(path)
        exact = version is not None and EXACT in self._tables.columns(path, version).names
        soft = self._keeps_deleted(source, table)
        images = NewestImages(schemas=self._schemas, soft=soft, exact=exact)
        keys = () if over() else self._stager.stage(staging, rows, images, name, gone=False)
        failpoints.hit(failpoints.AHEAD_AFTER_STAGE)
        if not keys or over():
            staging.remove()
            return None
        files = None
        if staging.few() is None:
            replace = not holds_rows(self._tables, path)
            files = self._merge.ahead(path, staging.path, keys, replace=replace)
            # A table that was not there is made for its files.
            version = self._version(path) if version is None else version
            failpoints.hit(failpoints.AHEAD_AFTER_MERGE)
        if files is not None and files.version != version:
            files = None
        return FoldedAhead(staging=staging, keys=keys, version=version, files=files)

    def rewritten(self, source: str, table: str, evolution: Evolution) -> RewrittenFiles | None:
        """Bring the rows of a table to new columns; None where that takes no new files."""
        name = current_name(source, table)
        self._tails.settle(name)
        base = self._tables.open(self._lake.path(name))
        if base is None:
            return None
        few = size_of(base)[1] <= _PROCESS_BYTES
        made = rewritten_ahead(base, evolution.all_steps(), TasksHere() if few else self._tasks)
        failpoints.hit(failpoints.AHEAD_AFTER_REWRITE)
        return made

    def _version(self, path: str) -> int | None:
        table = self._tables.open(path)
        return None if table is None else int(table.version())
