"""What made the rows of a projection's table: the meaning of its query, noted with every run.

A table whose rows one meaning made, from the first to the last, is what a build from the beginning
by that meaning gives (P6): a build may then begin with it. Where another meaning took over amid
the table, as of a newer version of the software or with columns that came, nothing is noted until
the whole is computed anew.
"""

from __future__ import annotations

import hashlib
import json

from pipeline.commit.manifest import Manifest
from projections.run.targets import Target
from projections.sql.plans.plan import Plan

MIXED = ""
"""The meaning of a table that several made, or one that nobody noted."""


def meaning_of(plan: Plan, *, include_late: bool) -> str:
    """Return a text that changes with all that a projection's rows depend on, but the facts."""
    columns = [[each.name, each.type] for each in plan.columns]
    parts = [plan.fingerprint, plan.rows_sql, columns, include_late]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class Meanings:
    """Knows what made the tables of some targets. For one thread."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._known: dict[str, str] = {}

    def forget(self, app_id: str) -> None:
        """Ask the manifest again for a target: another one may have noted it."""
        self._known.pop(app_id, None)

    def made(self, plan: Plan, target: Target) -> None:
        """Take note that all rows of a target were made by a plan's meaning."""
        self._known[target.app_id] = meaning_of(plan, include_late=target.include_late)

    def same(self, plan: Plan, target: Target) -> bool:
        """Say whether a plan's meaning made all rows that a target has."""
        return self._before(target) == meaning_of(plan, include_late=target.include_late)

    def of(self, plan: Plan, target: Target, *, whole: bool) -> str:
        """Return what made a target's rows, after a run of a plan that made them all or some."""
        now = meaning_of(plan, include_late=target.include_late)
        if not whole and self._before(target) != now:
            now = MIXED
        self._known[target.app_id] = now
        return now

    def _before(self, target: Target) -> str:
        if target.app_id not in self._known:
            runs = self._manifest.history_of(target.app_id)
            self._known[target.app_id] = runs[-1].meaning if runs else MIXED
        return self._known[target.app_id]
