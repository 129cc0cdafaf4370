"""Where generations of projections are written: the stable table, and those beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lake.layout import Lake


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a generation of a projection is written, and how it is guarded.

    The live generation lies at the projection's stable path; another one beneath it in `_gen/N`.
    `versions` pins tables that are read, for a run up to an epoch that they have passed.
    `ended_us` is the watermark that final rows begin with, that of the table which is replaced.
    """

    name: str
    path: str
    app_id: str
    include_late: bool
    versions: Mapping[str, int] = field(default_factory=dict)
    ended_us: int | None = None


def live_target(lake: Lake, name: str, generation: int, *, include_late: bool = False) -> Target:
    """Return the stable table of a projection, guarded by its live generation."""
    return Target(
        name=f"projection/{name}",
        path=lake.path(f"projection/{name}"),
        app_id=f"projection/{name}/g{generation}",
        include_late=include_late,
    )


def at_table(target: Target, lake: Lake, name: str, generation: int) -> Target:
    """Return a target that is written where the live generation is, and guarded as that."""
    live = live_target(lake, name, generation)
    return replace(target, name=live.name, path=live.path, app_id=live.app_id)
