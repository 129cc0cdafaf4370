"""Plans that are kept as long as what they were made of stays the same.

To plan a query takes some milliseconds, and a pipeline asks for all plans in every round: with
fifty projections that would be most of a core. What a plan hangs on is its statement and the
relations that the planner was told of; these are asked for again, and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from projections.sql.plans.plan import Plan, plan
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.words.catalog import Catalog, Relation

Question = tuple[str, str]
"""Kind of a relation, as the catalog's method is called, and its name."""


@dataclass(slots=True)
class Asked:
    """A catalog that answers from another one, each question once, and keeps the answers."""

    under: Catalog
    answers: dict[Question, Relation | None] = field(default_factory=dict)

    def stream(self, name: str) -> Relation | None:
        """Return a log."""
        return self._answer("stream", name, self.under.stream)

    def history(self, name: str) -> Relation | None:
        """Return a table with versions."""
        return self._answer("history", name, self.under.history)

    def latest(self, name: str) -> Relation | None:
        """Return a table's newest rows."""
        return self._answer("latest", name, self.under.latest)

    def projection(self, name: str) -> Relation | None:
        """Return the target of another projection."""
        return self._answer("projection", name, self.under.projection)

    def names(self) -> Collection[str]:
        """Return the names that there are; no plan hangs on them, only what is said of errors."""
        return self.under.names()

    def holds(self, catalog: Catalog) -> bool:
        """Say whether another catalog gives the same answers."""
        ask: dict[str, Callable[[str], Relation | None]] = {
            "stream": catalog.stream,
            "history": catalog.history,
            "latest": catalog.latest,
            "projection": catalog.projection,
        }
        return all(ask[kind](name) == answer for (kind, name), answer in self.answers.items())

    def _answer(
        self, kind: str, name: str, ask: Callable[[str], Relation | None]
    ) -> Relation | None:
        question = kind, name
        if question not in self.answers:
            self.answers[question] = ask(name)
        return self.answers[question]


class KeptPlans:
    """Plans statements, and anew only where one of the relations has become another."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[ProjectionDecl, Asked, Plan]] = {}

    def plan(self, decl: ProjectionDecl, catalog: Catalog) -> Plan:
        """Return the plan of a statement; raises as `plan.plan` does, and keeps no refusal."""
        known = self._kept.get(decl.name)
        if known is not None and known[0] is decl and known[1].holds(catalog):
            return known[2]
        asked = Asked(catalog)
        made = plan(decl, asked)
        self._kept[decl.name] = decl, asked, made
        return made

    def keep_only(self, names: Collection[str]) -> None:
        """Forget the plans of all other projections."""
        self._kept = {name: kept for name, kept in self._kept.items() if name in names}
