"""Up to which moment final rows are given out, target by target.

The moment never goes back: what was given out stays out, also where a stream that was idle goes on
with old rows. It belongs to a generation, and is in the manifest's note of every run of it. A
rebuild begins with the moment that the generation it replaces had at its epoch, so that it has the
rows that the table had; a projection that was dropped and made anew begins with none.
"""

from __future__ import annotations

from collections.abc import Collection

from kernel.errors import NotFound
from kernel.positions import Epoch
from pipeline.commit.manifest import Manifest
from projections.run.notes import ENDED, ended_at
from projections.run.relations import LakeCatalog
from projections.run.targets import Target
from projections.run.watermark import ended_up_to, greater
from projections.sql.operators.shape import InputKind, Plan


class FinalRows:
    """Knows the watermarks of targets whose rows are final. For one thread."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._noted: dict[str, int | None] = {}
        self._asked: tuple[str, Epoch, int | None] | None = None

    def keep_only(self, app_ids: Collection[str]) -> None:
        """Forget all targets but some."""
        self._noted = {name: us for name, us in self._noted.items() if name in app_ids}
        self._asked = None

    def forget(self, app_id: str) -> None:
        """Ask the manifest again for a target: another one may have noted it."""
        self._noted.pop(app_id, None)
        self._asked = None

    def passes(self, plan: Plan, target: Target, catalog: LakeCatalog, up_to: Epoch) -> bool:
        """Say whether rows may end at an epoch that had not ended when the target was written."""
        if not plan.final:
            return False
        return self.watermark(plan, target, catalog, up_to) != self.before(plan, target, up_to)

    def watermark(
        self, plan: Plan, target: Target, catalog: LakeCatalog, up_to: Epoch
    ) -> int | None:
        """Return the moment up to which rows are final at an epoch; None before there is one."""
        if not plan.final:
            return None
        if self._asked is None or self._asked[:2] != (target.app_id, up_to):
            streams = [one.name for one in plan.inputs if one.kind is InputKind.STREAM]
            try:
                now = ended_up_to(self._manifest, up_to, map(catalog.terms, streams))
            except NotFound:
                # Retention took the epoch while the projection stood still: nothing more has ended.
                now = None
            known = greater(greater(now, self.before(plan, target, up_to)), target.ended_us)
            self._asked = target.app_id, up_to, known
        return self._asked[2]

    def before(self, plan: Plan, target: Target, up_to: Epoch) -> int | None:
        """Return the moment at which a target, or the one it is to replace, was written last."""
        if target.app_id in self._noted or not plan.final:
            return self._noted.get(target.app_id)
        own = ended_at(self._manifest, target.app_id, up_to)
        self._noted[target.app_id] = target.ended_us if own is None else own
        return self._noted[target.app_id]

    def counts(self, target: Target, ended_us: int | None) -> dict[str, int]:
        """Return what a run's note says of it, and take note of that here."""
        if ended_us is not None:
            self._noted[target.app_id] = ended_us
        known = self._noted.get(target.app_id)
        return {} if known is None else {ENDED: known}
