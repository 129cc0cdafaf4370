"""The plans of all deployed projections, as a round asks for them: kept while they hold."""

from __future__ import annotations

from collections.abc import Collection

from kernel.positions import Epoch
from projections.run.catalog import Deployment
from projections.run.projection_states import ProjectionState
from projections.run.relations import LakeCatalog
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.kept_plans import Asked, KeptPlans
from projections.sql.plans.plan import Plan
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.words.catalog import Catalog


class RoundPlans:
    """Plans projections, and says in their `states` why one cannot be planned."""

    def __init__(self, states: dict[str, ProjectionState]) -> None:
        self._states = states
        self._kept = KeptPlans()
        self._unplanned: set[str] = set()

    def of(self, deployment: Deployment, catalog: LakeCatalog, at: Epoch) -> dict[str, Plan]:
        """Return the plans that can be made now, by projection; `catalog` is of an epoch."""
        plans: dict[str, Plan] = {}
        sources = tuple(deployment.sources.values())
        declared = DeclaredCatalog(Asked(catalog), sources, tuple(deployment.declared.values()))
        for name, decl in deployment.declared.items():
            made = self._plan(name, decl, declared, at)
            if made is not None:
                plans[name] = made
                if name in self._unplanned:
                    self._unplanned.remove(name)
                    self._states[name].first_row = None
            else:
                self._unplanned.add(name)
        for name, (_, error) in deployment.held.items():
            state = self._states.setdefault(name, ProjectionState(name))
            drop = f"penstock projection drop {name} --yes, and deploy what works"
            state.error = f"{error.message} | fix: {error.remedy} To change it: {drop}"
        return plans

    def _plan(self, name: str, decl: ProjectionDecl, declared: Catalog, at: Epoch) -> Plan | None:
        state = self._states.setdefault(name, ProjectionState(name))
        try:
            return self._kept.plan(decl, declared)
        except Exception as error:
            state.stops(error, asked=at)
            return None

    def keep_only(self, names: Collection[str]) -> None:
        """Forget the plans of all other projections."""
        self._kept.keep_only(names)
        self._unplanned &= {*names}
