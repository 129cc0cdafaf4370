"""A lake with one projection whose generations are built, swapped and taken back by hand.

Rows say which generation gave them, and up to which epoch. Queries are never run.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable

from kernel.positions import CLOSED, Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import Guard
from replay.book import READY, Replay, ReplayBook, State
from replay.generations import build_app, generation_name, live_app
from replay.planning import next_generation
from replay.subject import Site, entry_of, noted_epoch
from tests.support.lake.handmade import SQL, HandMade, words

NAME = "report"
STABLE = f"projection/{NAME}"
TOLD = "typed/events.thing.told"


def rows(generation: int, epoch: int) -> pa.Table:
    return words(*((number, f"of {generation}") for number in range(1, epoch + 1)), epoch=epoch)


@dataclass
class SwappedReport:
    """A lake whose processes have handles of their own."""

    lake: Lake
    head: int = 0

    def __post_init__(self) -> None:
        self.made = HandMade(self.lake)
        self.made.deploy(NAME)
        self.epochs(live=True)

    @property
    def site(self) -> Site:
        return Site(lake=self.lake)

    @property
    def stable(self) -> DeltaTable:
        return DeltaTable(self.lake.path(STABLE))

    @property
    def live(self) -> int:
        return entry_of(self.site, NAME).generation

    def epochs(self, *, live: bool) -> None:
        self.head += 1
        made = HandMade(self.lake)
        assert made.epoch() == self.head
        made.derive({TOLD: words((self.head, "w"), epoch=self.head, _late=[False])}, self.head)
        if live:
            self.run()

    def run(self) -> None:
        """Run as the pipeline does, which refuses to write for a generation that was closed."""
        live, made = self.live, HandMade(self.lake)
        table = made.tables.open(self.lake.path(STABLE))
        if table is None or table.transaction_version(live_app(NAME, live)) != CLOSED:
            made.run(NAME, rows(live, self.head), self.head, generation=live)

    def build(self, text: str | None = None) -> None:
        live = self.live
        epoch = noted_epoch(self.site, NAME, live) or Epoch(0)
        base = SQL.format(name=NAME, key="id")
        replay = Replay(
            name=NAME,
            generation=next_generation(self.site, NAME),
            base=live,
            state=State.BUILT,
            epoch=epoch,
            include_late=False,
            text=text or base,
            base_text=base,
        )
        self._write(replay)
        ReplayBook(self.lake, Tables()).record(replay)

    def catch_up(self, replay: Replay) -> Replay:
        now = replay.now(replay.state, epoch=Epoch(self.head), detail=replay.detail)
        self._write(now)
        after = READY if replay.state in READY else None
        return ReplayBook(self.lake, Tables()).record(now, after=after)

    def _write(self, replay: Replay) -> None:
        path = self.lake.path(generation_name(NAME, replay.generation))
        guard = Guard(build_app(NAME, replay.generation), replay.epoch)
        self.made.writer.overwrite(path, rows(replay.generation, replay.epoch), guard)
