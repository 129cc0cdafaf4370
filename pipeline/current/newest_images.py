"""What a fold makes of log rows: the newest image of each key. The one rule of what wins.

The driver and Spark's executors both ask it, for all rows of an epoch or for a part of them.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import BeyondThisProcess
from lake.executor_tasks import WrittenFile, handed_back
from lake.layers import marked
from lake.staged_files import FilePlace, StagedFiles
from lake.writer import DELETE, OP, UPSERT
from pipeline.current.key_buckets import KeyBuckets, Known
from pipeline.current.key_ends import refuse_met_keys
from pipeline.current.key_files import Share
from pipeline.ddl.steps import NOTHING, Evolution
from pipeline.ddl.unchanged_values import Stored, rows_of_keys, unless_left_alone
from pipeline.log.images import (
    COMMITTED_AT,
    EVENT_TIME,
    HI,
    HIDDEN,
    LO,
    newest_per_key,
    row_images,
)
from pipeline.log.large_folds import LogRows
from schemas.pg_exact import EXACT
from schemas.registry import SchemaLookup

DELETED = "_deleted"
"""Column of tables with soft deletes: the source has the row no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestImages:
    """Decodes log rows of one table and keeps the newest image of each key. Picklable.

    `evolution` brings rows to the last columns. With `soft` deletes a deleted row is an image that
    is marked and keeps its last values. `exact`: the table may have a column `_exact`.
    """

    schemas: SchemaLookup
    evolution: Evolution = NOTHING
    soft: bool = False
    exact: bool = True

    def of(self, rows: pa.Table, stored: Stored) -> tuple[pa.Table, tuple[str, ...]]:
        """Return one image per key, with `__op`, and the key columns.

        `stored` finds the last known rows of keys. Raises `SchemaViolation` when bytes do not fit
        the schema that the log names for them, and for keys that would be one row of the lake.
        """
        images, keys = row_images(rows, self.schemas, stored=stored, evolution=self.evolution)
        refuse_met_keys(images, keys, stored, soft=self.soft, exact=self.exact)
        newest = newest_per_key(images, keys)
        newest = _softly(newest, images, keys, stored) if self.soft else newest
        return newest.drop_columns([HI, LO, EVENT_TIME, COMMITTED_AT]), keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTask:
    """Writes the newest images of each slice of a large fold to the staging table at `root`.

    Slices are numbered in the source's order: of a key's images that of the last slice wins. A
    slice in which an update left a value alone is declined: what it is, other rows tell. So is one
    with keys that rows of the table may meet (`key_ends`).
    """

    slices: Sequence[LogRows]
    images: NewestImages
    root: str

    def __call__(self, number: int) -> Sequence[WrittenFile] | None:
        """Write the images of one slice."""
        made = unless_left_alone(partial(self.images.of, self.slices[number].read()))
        if made is None:
            return None
        newest, keys = made
        files = StagedFiles(self.root, FilePlace(stem=uuid.uuid4().hex))
        files.write(marked(newest, keys, number + 1))
        return handed_back(files, "staging")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedImageTask:
    """Writes the newest images of the keys of some hashes: part `number` has every `parts`-th.

    For a large fold in which updates left values alone: `known` has the rows before it. A key's
    images stand in the source's order, and are numbered so. Picklable. A transaction that links
    too many keys is declined.
    """

    slices: Sequence[LogRows]
    images: NewestImages
    known: Known
    root: str
    parts: int
    rows: int
    per_part: int

    def __call__(self, number: int) -> Sequence[WrittenFile] | None:
        """Write the images of one part."""
        share = Share(number=number, of=self.parts)
        buckets = KeyBuckets(
            self.images.schemas,
            rows=self.rows // self.parts,
            per_part=self.per_part,
            share=share,
        )
        files = StagedFiles(self.root, FilePlace(stem=uuid.uuid4().hex))
        with buckets:
            try:
                parts = buckets.parts(self.slices, self.known)
                for place, part in enumerate(parts, start=1):
                    newest, keys = self.images.of(part.rows, part.stored)
                    part.became(newest)
                    files.write(marked(newest, keys, place))
            except BeyondThisProcess:
                return None
        return handed_back(files, "staging")


def _softly(
    rows: pa.Table,
    images: pa.Table,
    keys: tuple[str, ...],
    stored: Stored,
) -> pa.Table:
    """Turn deletes into rows that are marked and keep their last values."""
    gone = pc.equal(rows[OP], DELETE)
    kept = rows.filter(pc.invert(gone))
    kept = kept.append_column(DELETED, pa.array([False] * kept.num_rows, pa.bool_()))
    deleted = rows.filter(gone)
    if deleted.num_rows == 0:
        return kept
    before = newest_per_key(images.filter(pc.equal(images[OP], UPSERT)), keys)
    wanted = deleted.select(list(keys))
    known = stored(wanted)
    if known is not None and EXACT in known.schema.names and EXACT not in deleted.schema.names:
        # A delete has no value that its column could not hold; the row that it ends may.
        deleted = deleted.append_column(EXACT, pa.nulls(deleted.num_rows, pa.string()))
    names = [n for n in deleted.schema.names if n not in HIDDEN]
    last: dict[tuple[object, ...], dict[str, object]] = {}
    for source in (known, rows_of_keys(before, wanted)):
        for row in source.to_pylist() if source is not None else []:
            last[tuple(row[k] for k in keys)] = row
    places = zip(*(deleted[k].to_pylist() for k in keys), strict=True)
    found = [last.get(place, {}) for place in places]
    for name in names:
        if name not in keys:
            field = deleted.schema.field(name)
            values = pa.array([row.get(name) for row in found], field.type)
            deleted = deleted.set_column(deleted.schema.get_field_index(name), field, values)
    n = deleted.num_rows
    deleted = deleted.set_column(
        deleted.schema.get_field_index(OP), OP, pa.array([UPSERT] * n, pa.string())
    ).append_column(DELETED, pa.array([True] * n, pa.bool_()))
    return pa.concat_tables([kept, deleted], promote_options="permissive")
