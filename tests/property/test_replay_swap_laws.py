"""Swaps, rollbacks and cancels at random, that die or meet others: a table is one generation whole.

Rows say which generation gave them, and up to which epoch. Queries are never run.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import failpoints
from kernel.errors import PenstockError
from kernel.positions import CLOSED
from lake.layout import Lake
from lake.tables import Tables
from replay.book import ReplayBook, State
from replay.cancel import cancel
from replay.generations import live_app
from replay.planning import next_generation
from tests.support.lake.swapped_report import NAME, SwappedReport
from tests.support.lake.swaps import swap, taken_back


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """New input; the pipeline takes it in, or does not come to it yet."""

    live: bool


@dataclass(frozen=True, kw_only=True)
class Build:
    """A generation beside the live one."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """`swap`, `rollback` or `cancel`. At a failpoint something happens first, or it dies there."""

    what: str
    at: str
    meanwhile: Epochs | Command | None = None
    dies: bool = False


Step = Epochs | Build | Command
WHAT = st.sampled_from(["swap", "swap", "rollback", "cancel"])
PLACES = st.sampled_from([failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP])
EPOCHS = st.builds(Epochs, live=st.booleans())
OTHERS = st.builds(Command, what=WHAT, at=PLACES, dies=st.booleans())
COMMANDS = st.builds(
    Command,
    what=WHAT,
    at=PLACES,
    meanwhile=st.none() | EPOCHS | OTHERS,
    dies=st.booleans(),
)
SWAP, BACK = (Command(what=each, at="nowhere") for each in ("swap", "rollback"))
STEPS = st.lists(st.one_of(EPOCHS, st.builds(Build), COMMANDS, COMMANDS), min_size=3, max_size=9)


class World(SwappedReport):
    """Commands that are given to it at random."""

    def command(self, what: str, generation: int | None = None) -> None:
        """Give a command; being refused is an answer."""
        with contextlib.suppress(PenstockError):
            match what:
                case "swap":
                    swap(self.site, NAME, self.catch_up, generation=generation)
                case "rollback":
                    taken_back(self.site, NAME)
                case _:
                    cancel(self.site, NAME)

    def do(self, step: Step) -> None:
        match step:
            case Epochs(live=live):
                self.epochs(live=live)
            case Build():
                self.build()
            case Command(what=what):
                with meeting(self, step):
                    self.command(what)
        self.check()

    def check(self) -> None:
        """Whatever happened, readers see one generation as of one epoch, in its own files."""
        table = self.stable
        found = table.to_pyarrow_table().sort_by("id")
        (word,) = set(found["word"].to_pylist())
        assert found["id"].to_pylist() == [*range(1, found.num_rows + 1)]
        files = table.get_add_actions().column("path").to_pylist()
        built = {f.partition("_gen/")[2].partition("/")[0] for f in files if "_gen/" in f}
        assert built <= {word.removeprefix("of ")}
        generations = range(1, next_generation(self.site, NAME))
        cursors = {n: table.transaction_version(live_app(NAME, n)) for n in generations}
        opened = [n for n, cursor in cursors.items() if cursor not in (None, CLOSED)]
        assert opened == [int(word.removeprefix("of "))], "one writer may go on"
        assert cursors[opened[0]] <= self.head

    def finish(self) -> None:
        """Give each command again that died; then the pipeline goes on."""
        for each in ReplayBook(self.lake, Tables()).of(NAME):
            if each.state is State.SWAPPING:
                self.command("swap", each.generation)
                self.check()
        if self.stable.transaction_version(live_app(NAME, self.live)) == CLOSED:
            # Neither state tells of it: a rollback died behind its commit.
            self.command("rollback")
        self.epochs(live=True)
        self.check()
        live = self.live
        assert self.stable.to_pyarrow_table().num_rows == self.head
        assert self.stable.transaction_version(live_app(NAME, live)) == self.head
        states = [each.state for each in ReplayBook(self.lake, Tables()).of(NAME)]
        assert State.SWAPPING not in states


@contextlib.contextmanager
def meeting(world: World, command: Command) -> Iterator[None]:
    """Let something happen at a failpoint of a command, once; or let it die there."""
    left, real = [command], failpoints.hit

    def hit(name: str) -> None:
        if not left or name != left[0].at:
            return
        now = left.pop()
        other = now.meanwhile
        if isinstance(other, Epochs):
            world.epochs(live=other.live)
        elif other is not None:
            left.append(other)
            with contextlib.suppress(failpoints.Crash):
                world.command(other.what)
            left.clear()
        world.check()
        if now.dies:
            raise failpoints.Crash(name)

    failpoints.hit = hit
    try:
        yield
    except failpoints.Crash:
        pass
    finally:
        failpoints.hit = real


GIVEN_AGAIN = [Build(), SWAP, Build(), SWAP, BACK, BACK]
"""The second one takes back the generation that the first one brought back."""


@pytest.mark.matrix
@given(STEPS)
@example(GIVEN_AGAIN)
@settings(max_examples=40)
def test_p10_a_table_is_one_generation_whole_whatever_dies_or_meets(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Lake.at(Path(folder) / "lake"))
        for step in steps:
            world.do(step)
        world.finish()
