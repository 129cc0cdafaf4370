"""What a replay does outside of its table: effects that stay silent, and what readers must know.

A build gives nothing to anyone. Up to the epoch of the build its effects were given out by the
generation that is live; only what a swap makes different is given out later, and by whom is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernel.positions import Epoch
from projections.sql.statements.declarations import ProjectionDecl

NTZ = "timestampNtz"
"""The one feature for readers that a projection's table may need: for times without a zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Something that the projection gives out. It is silent up to `epoch` and its `positions`.

    `positions`: by event store, the last event that the epoch has. `then`: what a swap gives out.
    """

    what: str
    epoch: Epoch
    positions: Mapping[str, int]
    then: str


def effects_of(
    old: ProjectionDecl, new: ProjectionDecl, up_to: Epoch, positions: Mapping[str, int]
) -> tuple[Effect, ...]:
    """Return what stays silent while a generation is built, in the same order each time."""

    def silent(what: str, then: str) -> Effect:
        return Effect(what=what, epoch=up_to, positions=dict(sorted(positions.items())), then=then)

    found = [silent("the change feed", "the rows that differ, once, with the swap's commit")]
    for sink in dict.fromkeys(each.sink for each in (old, new) if each.sink is not None):
        found.append(silent(f"sink {sink.target}", sink.swapped))
    if new.final:
        found.append(silent("corrections", "nothing: the new generation corrects from the swap on"))
    return tuple(found)


def features_of(types: Mapping[str, str]) -> tuple[str, ...]:
    """Return the features of Delta's protocol that readers of columns of these types must know."""
    return (NTZ,) if any("TIMESTAMP_NTZ" in kind.upper() for kind in types.values()) else ()
