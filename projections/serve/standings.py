"""How projections and tables stand, for lists: what is deployed, how far it came, what is held.

It reads the same rows as `Manifest`, without what loads slowly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kernel.errors import NotFound
from kernel.positions import Offsets
from lake.layout import Lake
from lake.rows import SmallTables
from pipeline.ddl.held_tables import Held, Hold, held_by_name, held_from_json
from projections.run.catalog import DROPPED, PROJECTION, DeployedCatalog, Entry
from projections.serve.epochs import last_epoch
from projections.serve.lake_tables import row_count
from projections.serve.projection_lag import EpochsSince

_SINK = re.compile(r"\bsink\b\s*=", re.IGNORECASE)
_NEWEST = """
SELECT epoch, heads, cuts, progress, end_offsets FROM rows
WHERE kind = 'committed' AND epoch = {epoch}
"""
_RUNS = """
SELECT name, epoch, held FROM (
    SELECT *, row_number() OVER (PARTITION BY name ORDER BY epoch DESC, at DESC) AS age
    FROM rows WHERE kind = 'projection'
) WHERE age = 1
"""

TYPED = "typed"
"""The run of typed tables and histories, as `pipeline.commit.manifest` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a projection stands. `epoch` None: it has not run yet.

    It lacks `lag_events` rows of the log, the oldest of them for `lag_s` seconds.
    """

    name: str
    status: str
    generation: int
    epoch: int | None
    newest_epoch: int
    rows: int
    lag_events: int
    lag_s: float
    text: str

    @property
    def behind(self) -> int:
        """How many epochs it has not taken in."""
        return self.newest_epoch - (self.epoch or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestEpoch:
    """The newest committed epoch: heads of stores, cuts of sources, the tables that it holds.

    `ends` is up to where it has read each topic.
    """

    epoch: int
    heads: Mapping[str, int]
    cuts: Mapping[str, int]
    held: Held
    ends: Offsets = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """How far a derived table or a projection was brought last, and what of it is held."""

    epoch: int
    held: Mapping[str, Hold]


def newest(lake: Lake, tables: SmallTables) -> NewestEpoch | None:
    """Return the newest committed epoch; None before the first."""
    last = last_epoch(lake, tables)
    if last is None:
        return None
    # The rows are some kilobytes each: this one alone is read whole.
    (row, *_) = tables.select(lake.epochs, _NEWEST.format(epoch=last))
    return NewestEpoch(
        epoch=int(str(row["epoch"])),
        heads=json.loads(str(row["heads"])),
        cuts=json.loads(str(row["cuts"])),
        held=held_from_json(json.loads(str(row["progress"])).get("held")),
        ends=json.loads(str(row["end_offsets"])),
    )


def runs(lake: Lake, tables: SmallTables) -> dict[str, LastRun]:
    """Return, per derived table and projection, how far it was brought last."""
    return {
        str(row["name"]): LastRun(
            epoch=int(str(row["epoch"])),
            held={n: Hold.from_json(h) for n, h in json.loads(str(row["held"] or "{}")).items()},
        )
        for row in tables.select(lake.epochs, _RUNS)
    }


def with_sinks(lake: Lake, tables: SmallTables, *, known: frozenset[str]) -> dict[str, int]:
    """Return the live generations of projections that are not dropped and have a sink, by name.

    `known` are names that need no look at their statements: to read one takes a second to load.
    """
    return {
        each.name: each.generation
        for each in _deployed(lake, tables)
        if each.name in known or _has_sink(each.text)
    }


def _deployed(lake: Lake, tables: SmallTables) -> list[Entry]:
    """Return the projections that are not dropped, in the order of their first deployment."""
    known = DeployedCatalog(lake, tables).entries()
    return [each for each in known if each.kind == PROJECTION and each.status != DROPPED]


def _has_sink(text: str) -> bool:
    if _SINK.search(text) is None:
        return False
    from projections.sql.statements.parse import parse_script

    return any(each.sink is not None for each in parse_script(text).projections)


def standings(lake: Lake) -> list[Standing]:
    """Describe every projection that is not dropped, in the order of their first deployment."""
    tables = SmallTables()
    last = newest(lake, tables)
    # The manifest's notes, not the tables' cursors: a run without new input commits nothing.
    noted = {name: run.epoch for name, run in runs(lake, tables).items()}
    deployed = _deployed(lake, tables)
    epochs = [noted.get(f"projection/{each.name}/g{each.generation}") for each in deployed]
    since = EpochsSince(lake, tables, min((epoch or 0 for epoch in epochs), default=0))
    found = []
    for each, epoch in zip(deployed, epochs, strict=True):
        lag = since.behind(epoch or 0)
        found.append(
            Standing(
                name=each.name,
                status=each.status,
                generation=each.generation,
                epoch=epoch,
                newest_epoch=last.epoch if last is not None else 0,
                rows=row_count(lake, f"projection/{each.name}"),
                lag_events=lag.rows,
                lag_s=lag.seconds,
                text=each.text,
            )
        )
    return found


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
    tables = SmallTables()
    last = newest(lake, tables)
    found = {} if last is None else held_by_name(last.held)
    for run in runs(lake, tables).values():
        found |= run.held
    return found
