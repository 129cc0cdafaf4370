"""The way of one event: the store, Kafka, the log, the epoch, its typed table, projections.

Each place is asked by itself. One that cannot be asked just now, or where the event has not come
to, is told as such, and the others are asked all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from deltalake.exceptions import DeltaError

from kernel.errors import NotFound, PenstockError
from lake import storage
from lake.layout import Lake
from lake.rows import SmallTables
from projections.run.catalog import LIVE
from projections.serve.epochs import epoch_at
from projections.serve.standings import TYPED, Standing, standings

_LOG = "log/events"
_OF_LOG = """
SELECT position, stream, version, category, type, recorded_at, epoch, topic, "partition", "offset",
    ingested_at
FROM rows WHERE event_id = '{event_id}' AND ({position})
"""
_OF_TYPED = "SELECT _epoch FROM rows WHERE position = {position}"
_FIRST_RUNS = """
SELECT name, epoch, at FROM (
    SELECT *, row_number() OVER (PARTITION BY name ORDER BY epoch, at) AS age
    FROM rows WHERE kind = 'projection' AND epoch >= {epoch}
) WHERE age = 1
"""

Stored = Callable[[str], Mapping[str, Any]]
"""Asks the event store for an event by its id, as `GET /v1/events/{id}` answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One place on the way. `at`: when the event came there. `missing`: why it is not seen there.

    `after_s` counts from the first place; clocks of several machines may disagree.
    """

    place: str
    at: datetime | None = None
    after_s: float | None = None
    detail: Mapping[str, object] = field(default_factory=dict)
    missing: str | None = None


def trace(event_id: str, lake: Lake, stored: Stored) -> list[Hop]:
    """Follow an event from place to place. Raises `NotFound` where no place has ever seen it."""
    tables = SmallTables()
    first, known = _in_store(event_id, stored)
    log, row = _asked("log", lambda: _in_log(event_id, lake, tables, known))
    if row is None and known is None:
        raise NotFound(
            f"no event {event_id}: {first.place}: {first.missing}; {log.place}: {log.missing}",
            remedy="Look for it: penstock read --type TYPE",
        )
    hops = [first]
    if row is not None:
        place = {name: row[name] for name in ("topic", "partition", "offset")}
        hops.append(Hop(place="Kafka", detail=place))
    hops.append(log)
    event = row or known
    if event is not None and row is not None:
        hops.append(_asked("epoch", lambda: (_of_epoch(row, lake), None))[0])
        hops += _derived(event, int(row["epoch"]), lake, tables)
    return _timed(hops)


def _in_store(event_id: str, stored: Stored) -> tuple[Hop, Mapping[str, Any] | None]:
    try:
        found = stored(event_id)
    except NotFound:
        return Hop(place="event store", missing="it has no such event"), None
    except PenstockError as error:
        return Hop(place="event store", missing=error.message), None
    detail = {name: found[name] for name in ("stream", "version", "position", "type")}
    at = datetime.fromisoformat(found["recorded_at"])
    return Hop(place="event store", at=at, detail=detail), found


def _in_log(
    event_id: str, lake: Lake, tables: SmallTables, known: Mapping[str, Any] | None
) -> tuple[Hop, Mapping[str, Any] | None]:
    # Positions let the reader pass over most files.
    position = "true" if known is None else f"position = {int(known['position'])}"
    asked = _OF_LOG.format(event_id=event_id, position=position)
    for store in sorted(storage.folders_in(f"{lake.root}/{_LOG}")):
        name = f"{_LOG}/{store}"
        for found in tables.select(lake.path(name), asked):
            row: dict[str, Any] = found
            detail = {"table": name, "epoch": row["epoch"], "position": row["position"]}
            return Hop(place="log", at=row["ingested_at"], detail=detail), {**row, "log": name}
    return Hop(place="log", missing="it is not in the log (yet)"), None


def _of_epoch(row: Mapping[str, Any], lake: Lake) -> Hop:
    done = epoch_at(lake, int(row["epoch"]))
    version = done.tables[row["log"]].version if row["log"] in done.tables else None
    return Hop(place="epoch", at=done.at, detail={"epoch": done.epoch, "log_version": version})


def _derived(
    event: Mapping[str, Any], epoch: int, lake: Lake, tables: SmallTables
) -> Iterator[Hop]:
    """Say when the typed table and each projection that reads it first had the event's epoch."""
    rows: list[dict[str, Any]] = tables.select(lake.epochs, _FIRST_RUNS.format(epoch=epoch))
    runs = {str(row["name"]): row for row in rows}
    category, type_ = str(event["category"]), str(event["type"])
    name = f"typed/events.{category}.{type_}"

    def typed() -> tuple[Hop, None]:
        asked = _OF_TYPED.format(position=int(event["position"]))
        own = [row["_epoch"] for row in tables.select(lake.path(name), asked)]
        if not own:
            return Hop(place="typed table", missing=f"{name} has not taken it in"), None
        at = runs.get(TYPED, {}).get("at")
        return Hop(place="typed table", at=at, detail={"table": name, "epoch": own[0]}), None

    yield _asked("typed table", typed)[0]
    for reader in _readers(category, type_, lake):
        place = f"projection {reader.name}"
        run = runs.get(f"projection/{reader.name}/g{reader.generation}")
        if run is None:
            state = "" if reader.status == LIVE else f"; it is {reader.status}"
            yield Hop(place=place, missing=f"it has not taken in epoch {epoch}{state}")
        else:
            detail = {"epoch": run["epoch"], "generation": reader.generation}
            yield Hop(place=place, at=run["at"], detail=detail)


def _readers(category: str, type_: str, lake: Lake) -> list[Standing]:
    """Return the projections that read events of a type, directly or through others."""
    deployed = {each.name: each for each in standings(lake)}
    if not any(category in each.text for each in deployed.values()):
        return []
    # Their statements say so: what reads them takes half a second to load.
    from projections.sql.statements.lineage import readers_of_events
    from projections.sql.statements.parse import parse_script

    declared = [
        decl
        for name, each in deployed.items()
        for decl in parse_script(each.text, origin=f"projection {name}").projections
    ]
    return [deployed[name] for name in readers_of_events(category, type_, declared)]


def _asked(
    place: str, ask: Callable[[], tuple[Hop, Mapping[str, Any] | None]]
) -> tuple[Hop, Mapping[str, Any] | None]:
    try:
        return ask()
    except (PenstockError, DeltaError, OSError) as error:
        why = error.message if isinstance(error, PenstockError) else str(error)
        return Hop(place=place, missing=f"it could not be asked: {why}"), None


def _timed(hops: list[Hop]) -> list[Hop]:
    times = [hop.at for hop in hops if hop.at is not None]
    if not times:
        return hops
    return [
        Hop(
            place=hop.place,
            at=None if hop.at is None else hop.at.astimezone(UTC),
            after_s=None if hop.at is None else round((hop.at - times[0]).total_seconds(), 3),
            detail=hop.detail,
            missing=hop.missing,
        )
        for hop in hops
    ]
