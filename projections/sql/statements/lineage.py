"""Which projections read which, and in what order they are run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sqlglot import exp

from projections.sql.operators.shape import InputKind, Plan
from projections.sql.statements.declarations import ProjectionDecl


def readers_of(name: str, projections: Iterable[ProjectionDecl]) -> list[str]:
    """Return the projections whose queries name `name` as a table, also where none compiles yet."""
    return sorted(decl.name for decl in projections if name in _tables_named(decl.query))


def readers_of_source(name: str, projections: Iterable[ProjectionDecl]) -> list[str]:
    """Return the projections whose queries name a declared source, as a stream or as a table."""
    return sorted(
        decl.name
        for decl in projections
        if any(len(t.parts) == 1 and t.name == name for t in decl.query.find_all(exp.Table))
    )


def readers_of_events(
    category: str, type_: str, projections: Iterable[ProjectionDecl]
) -> list[str]:
    """Return the projections that read events of a type, directly or through others."""
    decls = list(projections)
    wanted = {f"events.{category}", f"events.{category}.{type_}"}
    found = {decl.name for decl in decls if wanted & streams_named(decl.query)}
    while more := {
        decl.name for decl in decls if decl.name not in found and found & _tables_named(decl.query)
    }:
        found |= more
    return sorted(found)


def read_by(plan: Plan) -> tuple[str, ...]:
    """Return the other projections that a plan reads."""
    return tuple(one.name for one in plan.inputs if one.kind is InputKind.PROJECTION)


def reads_of(projections: Collection[ProjectionDecl]) -> dict[str, list[str]]:
    """Return by name which others of some projections each one names as tables."""
    names = {decl.name for decl in projections}
    return {decl.name: sorted(names & _tables_named(decl.query)) for decl in projections}


def with_their_readers(names: Iterable[str], reads: Mapping[str, Collection[str]]) -> set[str]:
    """Return projections and all that read them, directly or through others."""
    readers: dict[str, list[str]] = {}
    for reader, read in reads.items():
        for name in read:
            readers.setdefault(name, []).append(reader)
    return with_what_they_read(names, readers)


def in_order(reads: Mapping[str, Collection[str]]) -> list[str]:
    """Return projections so that each comes after those that it reads, else as they were given."""
    ordered: dict[str, None] = {}

    def put(name: str) -> None:
        for other in reads[name]:
            if other in reads and other not in ordered:
                put(other)
        ordered[name] = None

    for name in reads:
        put(name)
    return [*ordered]


def with_what_they_read(names: Iterable[str], reads: Mapping[str, Collection[str]]) -> set[str]:
    """Return projections and all that they read, directly or through others."""
    found: set[str] = set()
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += reads.get(name, ())
    return found


def streams_named(query: exp.Expr) -> frozenset[str]:
    """Return the names that a query reads as streams."""
    return frozenset(
        ".".join(part.name for part in table.parts)
        for table in query.find_all(exp.Table)
        if isinstance(table.parent, exp.Stream)
    )


def _tables_named(query: exp.Expr) -> frozenset[str]:
    """Return the names of one part that stand for tables, and not for a query of WITH."""
    named = {cte.alias.lower() for cte in query.find_all(exp.CTE)}
    return frozenset(
        table.name
        for table in query.find_all(exp.Table)
        if len(table.parts) == 1
        and not isinstance(table.parent, exp.Stream)
        and (table.name.lower() not in named or _within_its_own(table))
    )


def _within_its_own(table: exp.Expr) -> bool:
    """Say whether a table stands in the query of WITH that has its name, where it is unknown."""
    around = table.find_ancestor(exp.CTE)
    while around is not None:
        if around.alias.lower() == table.name.lower():
            return True
        around = around.find_ancestor(exp.CTE)
    return False
