"""A lake with two projections that belong together, whose generations are built by hand.

Rows say which generation gave them, and up to which epoch. Queries are never run.
"""

from __future__ import annotations

from collections.abc import Sequence
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

PAIR = ("first", "second")
TOLD = "typed/events.thing.told"


def rows_of(generation: int, epoch: int) -> pa.Table:
    return words(*((number, f"of {generation}") for number in range(1, epoch + 1)), epoch=epoch)


@dataclass
class SwappedPair:
    """A lake whose processes have handles of their own."""

    lake: Lake
    head: int = 0

    def __post_init__(self) -> None:
        for name in PAIR:
            HandMade(self.lake).deploy(name)
        self.epochs(*PAIR)

    @property
    def site(self) -> Site:
        return Site(lake=self.lake)

    @property
    def book(self) -> ReplayBook:
        return ReplayBook(self.lake, Tables())

    def live(self, name: str) -> int:
        return entry_of(self.site, name).generation

    def epochs(self, *runs: str) -> None:
        """Commit an epoch, which the pipeline takes into some projections."""
        self.head += 1
        made = HandMade(self.lake)
        assert made.epoch() == self.head
        made.derive({TOLD: words((self.head, "w"), epoch=self.head, _late=[False])}, self.head)
        for name in runs:
            self.run(name)

    def run(self, name: str) -> None:
        """Run as the pipeline does, which refuses to write for a generation that was closed."""
        live, made = self.live(name), HandMade(self.lake)
        table = made.tables.open(self.lake.path(f"projection/{name}"))
        closed = table is not None and table.transaction_version(live_app(name, live)) == CLOSED
        claimed = self.site.deployed.deployment().claimed(name)
        if not closed and not claimed:
            made.run(name, rows_of(live, self.head), self.head, generation=live)

    def build(self, name: str, state: State = State.VERIFIED) -> Replay:
        live = self.live(name)
        text = SQL.format(name=name, key="id")
        replay = Replay(
            name=name,
            generation=next_generation(self.site, name),
            base=live,
            state=state,
            epoch=noted_epoch(self.site, name, live) or Epoch(0),
            include_late=False,
            text=text,
            base_text=text,
        )
        self._write(replay)
        return self.book.record(replay)

    def bring(self, _: Site, replay: Replay, epoch: Epoch, live: bool) -> Replay:
        """Bring a generation forward, as a builder does, at its place or where it is the table."""
        now = replay.now(replay.state, epoch=epoch, detail=replay.detail)
        if live:
            rows = rows_of(replay.generation, epoch)
            HandMade(self.lake).run(replay.name, rows, epoch, generation=replay.generation)
        else:
            self._write(now)
        return self.book.record(now, after=READY if replay.state in READY else None)

    def members(self, *names: str) -> Sequence[Replay]:
        return self.book.set_of(names or PAIR, *READY, State.SWAPPING)

    def swapped_ones(self, *names: str) -> Sequence[Replay]:
        return self.book.set_of(names or PAIR, State.SWAPPED, State.ROLLING_BACK)

    def states(self) -> dict[str, State]:
        return {name: self.book.of(name)[-1].state for name in PAIR}

    def words(self, name: str) -> set[str]:
        """Return the words of a table by its path."""
        table = DeltaTable(self.lake.path(f"projection/{name}")).to_pyarrow_table()
        return set(table["word"].to_pylist())

    def _write(self, replay: Replay) -> None:
        path = self.lake.path(generation_name(replay.name, replay.generation))
        guard = Guard(build_app(replay.name, replay.generation), replay.epoch)
        rows = rows_of(replay.generation, replay.epoch)
        HandMade(self.lake).writer.overwrite(path, rows, guard)
