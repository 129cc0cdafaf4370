"""The way of one event: the store, Kafka, the log, the epoch, its typed table, projections.

Each place is asked by itself. One that cannot be asked just now, or where the event has not come
to, is told as such, and the others are asked all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from kernel.errors import NotFound, PenstockError
from kernel.positions import Epoch
from lake import storage
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest import PROJECTION, TYPED, Manifest
from projections.run.catalog import LIVE, DeployedCatalog
from projections.sql.lineage import readers_of_events

_LOG = "log/events"
_OF_LOG = (
    *("position", "stream", "version", "category", "type", "recorded_at", "epoch"),
    *("topic", "partition", "offset", "ingested_at"),
)

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
    tables = Tables()
    first, known = _in_store(event_id, stored)
    log, row = _asked("log", lambda: _in_log(event_id, lake, tables, known))
    if row is None and known is None:
        raise NotFound(
            f"no event {event_id}: {first.missing}; {log.missing}",
            remedy="Look for it: penstock read --type TYPE",
        )
    hops = [first]
    if row is not None:
        place = {name: row[name] for name in ("topic", "partition", "offset")}
        hops.append(Hop(place="Kafka", detail=place))
    hops.append(log)
    event = row or known
    if event is not None and row is not None:
        hops.append(_asked("epoch", lambda: (_of_epoch(row, lake, tables), None))[0])
        hops += _derived(event, int(row["epoch"]), lake, tables)
    return _timed(hops)


def _in_store(event_id: str, stored: Stored) -> tuple[Hop, Mapping[str, Any] | None]:
    try:
        found = stored(event_id)
    except PenstockError as error:
        return Hop(place="event store", missing=error.message), None
    detail = {name: found[name] for name in ("stream", "version", "position", "type")}
    at = datetime.fromisoformat(found["recorded_at"])
    return Hop(place="event store", at=at, detail=detail), found


def _in_log(
    event_id: str, lake: Lake, tables: Tables, known: Mapping[str, Any] | None
) -> tuple[Hop, Mapping[str, Any] | None]:
    where = pc.field("event_id") == event_id
    if known is not None:
        where = where & (pc.field("position") == known["position"])
    for store in sorted(storage.folders_in(f"{lake.root}/{_LOG}")):
        name = f"{_LOG}/{store}"
        rows = tables.read(lake.path(name), where=where, columns=_OF_LOG)
        for row in rows.to_pylist() if rows is not None else ():
            detail = {"table": name, "epoch": row["epoch"], "position": row["position"]}
            return Hop(place="log", at=row["ingested_at"], detail=detail), {**row, "log": name}
    return Hop(place="log", missing="it is not in the log (yet)"), None


def _of_epoch(row: Mapping[str, Any], lake: Lake, tables: Tables) -> Hop:
    done = Manifest(lake, tables).at(Epoch(int(row["epoch"])))
    version = done.tables[row["log"]].version if row["log"] in done.tables else None
    return Hop(place="epoch", at=done.at, detail={"epoch": done.epoch, "log_version": version})


def _derived(event: Mapping[str, Any], epoch: int, lake: Lake, tables: Tables) -> Iterator[Hop]:
    """Say when the typed table and each projection that reads it first had the event's epoch."""
    runs = _asked_runs(epoch, lake, tables)
    category, type_ = str(event["category"]), str(event["type"])
    name = f"typed/events.{category}.{type_}"
    where = pc.field("position") == event["position"]

    def typed() -> tuple[Hop, None]:
        rows = tables.read(lake.path(name), where=where, columns=["_epoch", "event_id"])
        if rows is None or rows.num_rows == 0:
            return Hop(place="typed table", missing=f"{name} has not taken it in"), None
        own = int(rows["_epoch"][0].as_py())
        at = runs.get(TYPED, {}).get("at")
        return Hop(place="typed table", at=at, detail={"table": name, "epoch": own}), None

    yield _asked("typed table", typed)[0]
    deployment = DeployedCatalog(lake, tables).deployment()
    for reader in readers_of_events(category, type_, deployment.declared.values()):
        entry, _ = deployment.projections[reader]
        place = f"projection {reader}"
        run = runs.get(f"projection/{reader}/g{entry.generation}")
        if run is None:
            state = "" if entry.status == LIVE else f"; it is {entry.status}"
            yield Hop(place=place, missing=f"it has not taken in epoch {epoch}{state}")
        else:
            detail = {"epoch": run["epoch"], "generation": entry.generation}
            yield Hop(place=place, at=run["at"], detail=detail)


def _asked_runs(epoch: int, lake: Lake, tables: Tables) -> dict[str, Mapping[str, Any]]:
    """Return, of each derived table, its first run at or behind an epoch."""
    found: dict[str, Mapping[str, Any]] = {}
    where = (pc.field("kind") == PROJECTION) & (pc.field("epoch") >= epoch)
    rows = tables.read(
        lake.epochs, where=where, columns=["name", "epoch", "at"], since=("epoch", epoch)
    )
    for row in rows.to_pylist() if rows is not None else ():
        known = found.get(row["name"])
        if known is None or (row["epoch"], row["at"]) < (known["epoch"], known["at"]):
            found[row["name"]] = row
    return found


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
