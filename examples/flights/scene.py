"""What the steps of the demo share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from apps import settings
from apps.cli.demo_options import DemoOptions
from examples.flights.amendments import Amendment, final_weather
from examples.flights.commands import Penstock
from examples.flights.narration import Narration
from examples.flights.oracle import KEYS, Oracle
from examples.flights.poster import Poster, Tally
from examples.flights.posting_order import FlightRiver
from examples.flights.tables import Caught, until_caught_up
from lake.layout import Lake


@dataclass(kw_only=True)
class Scene:
    """One run, from the moment when the stack is up.

    `posting_s` and `through_s` are the seconds from the first post to the last answer and to the
    moment when every table had every event, the steady tail not included.
    """

    options: DemoOptions
    narration: Narration
    folder: Path
    found: settings.Settings
    river: FlightRiver
    script: tuple[Amendment, ...]
    penstock: Penstock
    source_dsn: str
    tally: Tally = field(default_factory=Tally)
    posted_in_bulk: int = 0
    posting_s: float = 0.0
    through_s: float = 0.0
    tail: tuple[int, int] = (0, 0)

    @property
    def lake(self) -> Lake:
        """Where the tables lie."""
        return Lake(self.found.lake)

    @cached_property
    def events(self) -> int:
        """How many events there are in all, the held back ones included."""
        return sum(self.river.counts.values())

    @cached_property
    def oracle(self) -> Oracle:
        """What every projection must hold."""
        return Oracle(flights=self.river.flights, readings=final_weather(self.script))

    def poster(self) -> Poster:
        """Open a connection to the service that adds to the one tally."""
        url = self.found.required("service.url")
        return Poster(url, token=self.found.text("service.token"), tally=self.tally)

    def catch_up(self, projections: Sequence[str] = tuple(KEYS)) -> Caught:
        """Wait until every table has what was acknowledged."""
        return until_caught_up(
            self.lake,
            self.tally.last_position,
            self.narration,
            projections=projections,
            deadline_s=self.options.deadline_s,
        )


class DemoStopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start
