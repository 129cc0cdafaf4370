"""What the manifest's notes say of a projection's table at an epoch.

A savepoint keeps with a table what the manifest said of it then: retention forgets the manifest's
notes, and a savepoint outlives them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from kernel.positions import DeltaVersion, Epoch
from lake.layout import Lake
from pipeline.commit.manifest import Manifest
from projections.run.targets import live_target

ENDED = "ended_us"
"""Name in a note's counts of the moment up to which final rows were given out, in microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    """What was noted of a projection's table after a run up to an epoch.

    `meaning`: of the query that made all its rows, empty where several did or nobody knows.
    `ended_us`: of final rows, the moment up to which they were given out.
    """

    generation: int
    epoch: Epoch
    version: DeltaVersion
    meaning: str
    ended_us: int | None

    def to_json(self) -> str:
        """Return what a savepoint keeps."""
        return json.dumps(asdict(self))


def noted_from_json(text: str) -> Noted:
    """Restore what a savepoint keeps."""
    kept = json.loads(text)
    return Noted(
        generation=kept["generation"],
        epoch=Epoch(kept["epoch"]),
        version=DeltaVersion(kept["version"]),
        meaning=kept["meaning"],
        ended_us=kept["ended_us"],
    )


def noted_by(
    lake: Lake, manifest: Manifest, name: str, *, published: Iterable[int], up_to: Epoch
) -> Noted | None:
    """Return the last note of a projection at or before an epoch, of the newest generation then.

    `published` are its generations, the newest first: what was built beside the live one, or
    taken back, is none that readers saw (`DeployedCatalog.published`).
    """
    for generation in published:
        app = live_target(lake, name, generation).app_id
        runs = [run for run in manifest.history_of(app) if run.epoch <= up_to]
        if runs:
            last = runs[-1]
            return Noted(
                generation=generation,
                epoch=last.epoch,
                version=DeltaVersion(last.tables[f"projection/{name}"].version),
                meaning=last.meaning,
                ended_us=ended_at(manifest, app, last.epoch),
            )
    return None


def ended_at(manifest: Manifest, app_id: str, up_to: Epoch) -> int | None:
    """Return the moment up to which a generation had given out rows at an epoch; None before any.

    What was noted while the generation was built counts too.
    """
    found = (
        run.counts[ENDED]
        for name in (app_id, f"{app_id}/build")
        for run in manifest.history_of(name)
        if ENDED in run.counts and run.epoch <= up_to
    )
    return max(found, default=None)
