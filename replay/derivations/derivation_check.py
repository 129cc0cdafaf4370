"""Compares a derived table of another lake with the live one as of the same epoch."""

from __future__ import annotations

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound
from lake.datasets import schema_of
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
    stable = _live_at(site, subject, replay)
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
            stable,
            built,
            key=subject.row_key,
            columns=compared,
            expect=expectation.rows,
            large=site.large,
        ),
        columns=compared,
        expectation=expectation,
        declared=False,
    )


def _live_at(site: Site, subject: DerivedSubject, replay: Replay) -> DeltaTable:
    """Return the live table as it was at the epoch that was made. Raises `NotFound`."""
    path, guard = site.lake.path(subject.name), subject.name
    if subject.history is not None:
        guard = subject.history.app_id
    version = version_before(path, guard, replay.epoch)
    try:
        if version is not None:
            return DeltaTable(path, version=version)
    except DeltaError:
        version = None
    raise NotFound(
        f"what {replay.name} was at epoch {replay.epoch} is not kept any more "
        "(lake.retention_days)",
        remedy=f"Build it again: penstock replay apply {replay.name}",
    )
