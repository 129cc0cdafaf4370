"""What a torture run is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

KILLS = ("service", "writer", "connections", "pause", "postgres")
"""What can happen to a running store, by name; see `tests.torture.kills`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`events` acknowledged end the run, once it has healed after `least_kills`.

    `transactors`: writers that append in SQL transactions of their own, beside `writers` that use
    HTTP. `batch`: events in a plain append; others have fewer. Something of `kills` happens every
    `kill_every_s` seconds, in turn. `delay_s` is the longest pause that a writer makes between
    requests, now and then. `patience_s`: how long a writer repeats one request before its outcome
    counts as unknown; `heal_s`: how long nothing may be acknowledged after a kill before the run
    fails.
    """

    events: int = 100_000
    writers: int = 16
    transactors: int = 2
    batch: int = 20
    readers: int = 2
    services: int = 2
    kills: tuple[str, ...] = KILLS
    kill_every_s: float = 6.0
    least_kills: int = 0
    delay_s: float = 0.02
    patience_s: float = 60.0
    heal_s: float = 60.0
    streams: int = 40
    streams_read: int = 300
    seed: int = 2013
    folder: Path = Path(".penstock") / "torture"
    out: Path | None = None
