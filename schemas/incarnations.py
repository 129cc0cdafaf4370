"""Which history of which server a captured source reads: capture writes it, the catalog keeps it.

A row's place in a source means something only within one incarnation.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """One unbroken history of a source, as one slot hands it out.

    `system` and `timeline` are the server's, `slots` counts the slots that we have made there,
    `since` is the LSN at which the newest of them began. `lost` says why it can give no more:
    then the source stands still until `penstock source resnapshot`.
    """

    system: str
    timeline: int
    slots: int
    since: str
    lost: str | None = None
    lost_at: str | None = None

    def on(self, timeline: int) -> Incarnation:
        """Return the same, noted on a timeline that the server has gone on to."""
        return replace(self, timeline=timeline)

    def losing(self, reason: str, at: str) -> Incarnation:
        """Return the same, noted as lost since a moment (ISO 8601)."""
        return replace(self, lost=reason, lost_at=at)


def render_incarnation(incarnation: Incarnation) -> str:
    """Return the text of a slot's entry."""
    return json.dumps(asdict(incarnation), sort_keys=True)


def parse_incarnation(text: str) -> Incarnation:
    """Read a slot's entry."""
    return Incarnation(**json.loads(text))
