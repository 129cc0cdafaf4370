"""From where a build is asked to begin, and which epoch that is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime

import pyarrow.compute as pc

from kernel.errors import InvalidRequest, NotFound
from kernel.positions import Epoch
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import COMMITTED
from replay.subject import Site

_OTHERWISE = "Give one that there is: penstock epoch list; or leave it out, for the beginning."


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """From where a build is asked to begin: at most one of these; none is the beginning.

    `at`: with what was committed by that time. `position`: with the events up to that position.
    `where`: with the newest rows but those of the keys for which it holds; see `chosen_keys`.
    """

    savepoint: str | None = None
    epoch: Epoch | None = None
    position: int | None = None
    at: datetime | None = None
    where: str | None = None

    @property
    def is_beginning(self) -> bool:
        """Whether nothing was asked for but the beginning."""
        return self == BEGINNING

    @property
    def told(self) -> str:
        """Say what was asked for."""
        if self.savepoint is not None:
            return f"savepoint {self.savepoint}"
        if self.epoch is not None:
            return f"epoch {self.epoch}"
        if self.at is not None:
            return self.at.isoformat()
        if self.where is not None:
            return f"the keys where {self.where}"
        return "the beginning" if self.position is None else f"position {self.position}"


BEGINNING = Start()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """An epoch that the manifest knows, and the last position it has."""

    epoch: Epoch
    head: int


def epoch_of(site: Site, start: Start) -> Epoch:
    """Return the last epoch with nothing beyond an epoch, a position or a time.

    Raises `NotFound` where that lies beyond what was ingested, or before all that is known of it.
    """
    if start.at is not None:
        return Manifest(site.lake, site.tables).committed_by(start.at)
    known = _known(site)
    if not known:
        raise NotFound("nothing was ingested yet", remedy="penstock wait --caught-up")
    if start.epoch is not None:
        return _epoch(known, start.epoch)
    position = start.position or 0
    _refuse_beyond(known, position)
    found = [each.epoch for each in known if each.head <= position]
    if not found:
        raise NotFound(
            f"{start.told} is before the first epoch that is known, {known[0].epoch}, which has "
            f"the events up to position {known[0].head}",
            remedy=_OTHERWISE,
        )
    return max(found)


def _epoch(known: list[_Known], epoch: Epoch) -> Epoch:
    first, last = known[0].epoch, known[-1].epoch
    if not first <= epoch <= last:
        raise NotFound(
            f"epoch {epoch} is not among those that are known, {first} to {last}",
            remedy=_OTHERWISE,
        )
    return epoch


def _refuse_beyond(known: list[_Known], position: int) -> None:
    last = max(each.head for each in known)
    if not last:
        raise InvalidRequest(
            f"no event of an event store was ingested, so that nothing has position {position}",
            remedy="Begin with an epoch, as --from epoch:12, or with a time.",
        )
    if position > last:
        raise NotFound(
            f"position {position} is beyond the log, whose last event has position {last}",
            remedy="Give a position that the log has, or wait: penstock wait --caught-up",
        )


def _known(site: Site) -> list[_Known]:
    """Return the epochs that the manifest knows, the oldest first."""
    rows = site.tables.read(
        site.lake.epochs, where=pc.field("kind") == COMMITTED, columns=["epoch", "heads"]
    )
    found = [
        _Known(
            epoch=Epoch(row["epoch"]),
            # A store that was rebuilt goes on with the positions of the one before.
            head=max(json.loads(row["heads"]).values(), default=0),
        )
        for row in (rows.to_pylist() if rows else [])
    ]
    return sorted(found, key=lambda each: each.epoch)
