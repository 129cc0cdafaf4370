"""What SQL files declare, on what a lake has: names, lateness, since when there are versions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from projections.run.relations import LakeCatalog
from projections.sql.operators.shape import InputKind, Plan
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.state_bounds import Lateness
from projections.sql.statements.declarations import SourceDecl
from projections.sql.statements.topics import log_of
from projections.sql.words.catalog import Catalog
from projections.trial.sql_files import Declared


def declared_catalog(known: Catalog, files: Declared) -> DeclaredCatalog:
    """Return what files declare on what is known, with the projections that are deployed."""
    deployed = known.declared if isinstance(known, LakeCatalog) else {}
    projections = {**deployed, **{decl.name: decl for decl in files.projections}}
    return DeclaredCatalog(known, files.sources, [*projections.values()])


def lateness_of(default: timedelta, known: Catalog, sources: Sequence[SourceDecl]) -> Lateness:
    """Return how late rows of a stream may be: as files, what is deployed, or `default` says."""
    declared = {
        name: source.lateness
        for source in sources
        if source.lateness is not None
        for name in (source.name, source.on or log_of(source))
    }

    def late(name: str) -> timedelta:
        # A category's declaration is that of each of its types.
        above = ".".join(name.split(".")[:2]) if name.startswith("events.") else name
        own = declared.get(name, declared.get(above))
        if own is not None:
            return own
        return known.terms(name).lateness if isinstance(known, LakeCatalog) else default

    return late


def beginnings_of(
    made: Plan, known: Catalog | None, sources: Sequence[SourceDecl]
) -> tuple[str, ...]:
    """Say of joined versions that are kept by commit time since when there are any.

    Versions by a column of the table's own (`event_time`) reach back as far as its rows do.
    """
    declared = {source.name: source for source in sources}
    notes = []
    for one in made.inputs:
        source = declared.get(one.name)
        if one.kind is not InputKind.HISTORY or not isinstance(known, LakeCatalog):
            continue
        relation = DeclaredCatalog(known, sources).history(one.name)
        if relation is None or relation.event_time != "valid_from":
            continue
        if source is None and not known.kept_by_commit_time(one.name):
            continue
        begins = known.begins(source.on if source is not None and source.on else one.name)
        since = "" if begins is None else f", at {begins.isoformat(timespec='milliseconds')}"
        notes.append(
            f"the versions of {one.name} begin where its capture did{since}: what is asked as of "
            "a time before finds none"
        )
    return tuple(notes)
