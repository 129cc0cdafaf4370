"""Compares a derived table of another lake with the live one as of the same epoch."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound
from lake.datasets import dataset_of, in_columns, schema_of
from lake.file_batches import small_batches
from lake.layers import beyond, newest_of, tail_name, whole
from lake.writer import DELETE, OP, UPSERT
from pipeline.typed.columns import EPOCH, INGESTED_AT
from replay.book import Replay
from replay.comparison import row_differences
from replay.copies import table_of
from replay.derivations.derived_subject import DerivedSubject, derived_subject
from replay.generations import version_before
from replay.subject import Site
from replay.table_types import type_differences
from replay.verify import (
    NOTHING,
    Expectation,
    GenerationComparison,
    refuse_unknown,
    verify,
)

_WRITTEN_WHEN = frozenset((EPOCH, INGESTED_AT))
"""Columns that say when a row was written, and not what it is."""


def verify_derived(
    site: Site,
    asked: str,
    *,
    generation: int | None = None,
    expectation: Expectation = NOTHING,
) -> GenerationComparison:
    """Compare the table that was made with the live one, and note the result in the book there.

    Raises `NotFound` where there is none, or the live one's version of that epoch is not kept.
    """
    return verify(site, asked, generation=generation, expectation=expectation, compare=_compared)


def _compared(site: Site, replay: Replay, expectation: Expectation) -> GenerationComparison:
    built, subject = table_of(site, replay), derived_subject(site, replay.name)
    with tempfile.TemporaryDirectory(prefix="penstock-live-") as scratch:
        try:
            stable, live = _live_at(site, subject, replay, Path(scratch))
        except (DeltaError, FileNotFoundError, NotFound) as error:
            raise NotFound(
                f"what {replay.name} was at epoch {replay.epoch} is not kept any more "
                "(lake.retention_days)",
                remedy=f"Build it again: penstock replay apply {replay.name}",
            ) from error
        names, theirs = schema_of(stable).names, {*schema_of(built).names}
        refuse_unknown(expectation.columns, {*theirs, *names})
        left_out = {*_WRITTEN_WHEN, *expectation.columns} - {*subject.row_key}
        compared = tuple(name for name in names if name in theirs and name not in left_out)
        types = tuple(t for t in type_differences(stable, built) if t.name not in _WRITTEN_WHEN)
        return GenerationComparison(
            name=replay.name,
            generation=replay.generation,
            epoch=replay.epoch,
            types=types,
            rows=row_differences(
                live,
                built,
                key=subject.row_key,
                columns=compared,
                expect=expectation.rows,
                # Rows that were put together here are on no executor's disk.
                large=site.large if live is stable else None,
            ),
            columns=compared,
            expectation=expectation,
            declared=False,
        )


def _live_at(
    site: Site, subject: DerivedSubject, replay: Replay, scratch: Path
) -> tuple[DeltaTable, DeltaTable | ds.Dataset]:
    """Return the live table at the epoch that was made, and its rows with those of its tail.

    Raises what opening a version raises that is gone, or `NotFound`.
    """
    path, name = site.lake.path(subject.name), subject.name
    if subject.kind != "current":
        guard = name if subject.history is None else subject.history.app_id
        version = version_before(path, guard, replay.epoch)
        if version is None:
            raise NotFound(f"{name} of epoch {replay.epoch} is gone")
        stable = DeltaTable(path, version=version)
        return stable, stable
    at = site.manifest.at(replay.epoch).tables
    stable = DeltaTable(path, version=at[name].version)
    place = at.get(tail_name(name))
    rows = None
    if place is not None:
        rows = site.tables.read(site.lake.path(tail_name(name)), version=place.version)
    rows = None if rows is None else beyond(rows, stable, name)
    if rows is None or rows.num_rows == 0:
        return stable, stable
    return stable, _with_tail(stable, rows, scratch)


def _with_tail(stable: DeltaTable, tail: pa.Table, scratch: Path) -> ds.Dataset:
    """Lay a tail over the rows of its base, in files of the local disk: memory holds the tail."""
    newest, keys = newest_of(tail)
    shape = schema_of(stable)
    # Of each part all touched keys go; what they are now comes once, behind all parts.
    gone = newest.set_column(
        newest.schema.get_field_index(OP), OP, pa.repeat(DELETE, newest.num_rows)
    )
    with pq.ParquetWriter(scratch / "rows.parquet", shape) as writer:
        for part in small_batches(dataset_of(stable)):
            rows = whole(part, gone, keys)
            assert rows is not None, "there is a part"
            writer.write_table(in_columns(rows, shape))
        added = newest.filter(pc.equal(newest[OP], UPSERT)).drop_columns([OP])
        writer.write_table(in_columns(added, shape))
    return ds.dataset(scratch / "rows.parquet", schema=shape)
