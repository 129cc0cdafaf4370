"""What is noted of the slots that sources read from, in the catalog: it outlives every process.

A source that is noted as lost stays so until `penstock source resnapshot` notes a new incarnation.
"""

from __future__ import annotations

from datetime import UTC, datetime

from cdc.slots import SourceServer, next_incarnation
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import DROPPED, LIVE, LOST, SLOT, DeployedCatalog, Entry
from schemas.incarnations import Incarnation, parse_incarnation, render_incarnation


def incarnation_of(lake: Lake, name: str) -> Incarnation | None:
    """Return what was noted last of a source's slot; None when it has none."""
    known, retired = noted(lake, name)
    return None if retired else known


def noted(lake: Lake, name: str) -> tuple[Incarnation | None, bool]:
    """Return what was noted last under a source's name, and whether that source was removed."""
    return _noted(DeployedCatalog(lake, Tables()), name)


def _noted(catalog: DeployedCatalog, name: str) -> tuple[Incarnation | None, bool]:
    for entry in catalog.entries():
        if (entry.kind, entry.name) == (SLOT, name):
            return parse_incarnation(entry.text), entry.status == DROPPED
    return None, False


def record_incarnation(lake: Lake, name: str, incarnation: Incarnation) -> None:
    """Note an incarnation, if it is not noted, nor a newer one, nor that this one is lost."""
    _put(lake, name, incarnation, LIVE if incarnation.lost is None else LOST)


def record_lost(lake: Lake, name: str, incarnation: Incarnation, reason: str) -> None:
    """Note that a source's slot can give no more, once; the first reason stands."""
    if incarnation.lost is None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        _put(lake, name, incarnation.losing(reason, at), LOST)


def renewing(lake: Lake, name: str, server: SourceServer, reason: str) -> None:
    """Note that a slot is about to be replaced: after a crash nobody takes the next one for it."""
    known = incarnation_of(lake, name) or next_incarnation(server, None, None)
    record_lost(lake, name, known, reason)


def forget_incarnation(lake: Lake, name: str) -> None:
    """Note that a source is gone, so that one of its name begins anew.

    The count of slots goes on: what the lake has of the old one is then replaced by a copy.
    """
    known = incarnation_of(lake, name)
    if known is not None:
        _put(lake, name, known, DROPPED)


def _put(lake: Lake, name: str, incarnation: Incarnation, status: str) -> None:
    catalog = DeployedCatalog(lake, Tables())
    entry = Entry(
        kind=SLOT,
        name=name,
        generation=incarnation.slots,
        status=status,
        text=render_incarnation(incarnation),
    )

    def decided() -> list[Entry]:
        # As it is at the commit: a keeper and a command write of one slot at the same moment.
        before, removed = _noted(catalog, name)
        if before is not None and _outlived(before, incarnation, status, removed=removed):
            return []
        return [] if entry in catalog.entries() else [entry]

    catalog.decide(decided)


def _outlived(before: Incarnation, now: Incarnation, status: str, *, removed: bool) -> bool:
    """Say whether what was noted stands: a keeper looks, and writes a moment later.

    The count of slots only grows; a source that is lost or removed goes on with another slot.
    """
    if now.slots != before.slots:
        return now.slots < before.slots
    return status == LIVE and (removed or before.lost is not None)
