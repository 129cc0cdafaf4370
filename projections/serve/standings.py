"""How projections and tables stand, for lists: what is deployed, how far it came, what is held.

It reads the same rows as `DeployedCatalog` and `Manifest`, without what loads slowly.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from kernel.errors import NotFound
from projections.log.layout import Lake
from projections.log.rows import select
from projections.serve.lake_tables import row_count
from projections.state.held import Hold, held_by_name, held_from_json

_DEPLOYED = """
SELECT name, generation, status, text FROM (
    SELECT *, min(entry) OVER each AS first, max(entry) OVER each AS newest
    FROM rows WHERE kind = 'projection' WINDOW each AS (PARTITION BY name)
) WHERE entry = newest AND status <> 'dropped' ORDER BY first
"""
_NEWEST = "SELECT epoch, progress FROM rows WHERE kind = 'committed' ORDER BY epoch DESC LIMIT 1"
_RUNS = """
SELECT name, epoch, held FROM (
    SELECT *, row_number() OVER (PARTITION BY name ORDER BY epoch DESC, at DESC) AS age
    FROM rows WHERE kind = 'projection'
) WHERE age = 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a projection stands. `epoch` None: it has not run yet."""

    name: str
    status: str
    generation: int
    epoch: int | None
    newest_epoch: int
    rows: int
    text: str

    @property
    def behind(self) -> int:
        """How many epochs it has not taken in."""
        return self.newest_epoch - (self.epoch or 0)


def standings(lake: Lake) -> list[Standing]:
    """Describe every projection that is not dropped, in the order of their first deployment."""
    newest = select(lake.epochs, _NEWEST)
    # The manifest's notes, not the tables' cursors: a run without new input commits nothing.
    noted = {row["name"]: int(str(row["epoch"])) for row in select(lake.epochs, _RUNS)}
    return [
        Standing(
            name=str(row["name"]),
            status=str(row["status"]),
            generation=int(str(row["generation"])),
            epoch=noted.get(f"projection/{row['name']}/g{row['generation']}"),
            newest_epoch=int(str(newest[0]["epoch"])) if newest else 0,
            rows=row_count(lake, f"projection/{row['name']}"),
            text=str(row["text"]),
        )
        for row in select(lake.catalog, _DEPLOYED)
    ]


def standing(lake: Lake, name: str) -> Standing:
    """Describe one projection. Raises `NotFound`."""
    found = {each.name: each for each in standings(lake)}
    if name not in found:
        raise unknown_projection(name, found)
    return found[name]


def unknown_projection(name: str, known: Iterable[str]) -> NotFound:
    """Return the error for a projection that is not deployed."""
    return NotFound(
        f"no projection {name}; there are: {', '.join(sorted(known)) or 'none'}",
        remedy="penstock projection list",
    )


def held_tables(lake: Lake) -> dict[str, Hold]:
    """Return every table that stands still now, by name, with its hold."""
    found: dict[str, Hold] = {}
    for row in select(lake.epochs, _NEWEST):
        found |= held_by_name(held_from_json(json.loads(str(row["progress"])).get("held")))
    for row in select(lake.epochs, _RUNS):
        kept = json.loads(str(row["held"] or "{}"))
        found |= {name: Hold.from_json(hold) for name, hold in kept.items()}
    return found
