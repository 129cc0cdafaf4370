"""The claim of places of projections, by which a swap or a rollback keeps others off its commits.

It is in the book, where nobody cancels the generation any more and whoever deploys finds what is
about to go live; and in the catalog, where the live runner, which would commit again and again in
between, sees that it has to hold still. The book's stays after a crash: the commit may be there.
The catalog's ends by itself after a minute, and each attempt makes it anew.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deltalake.exceptions import DeltaError

from kernel.errors import Conflict, PenstockError
from projections.run.catalog import Entry
from replay.book import CLAIM, READY, TOGETHER, Replay, ReplayBook, State
from replay.deployment import claims_over, hold_places
from replay.subject import Site, entry_of

_STOPS = (Exception, KeyboardInterrupt)
"""What ends a command that is still there to clean up."""
_VERSION = "version"
"""Of the table, by which the swap was made: who takes it back looks for it."""


@dataclass(slots=True)
class PlaceClaim:
    """Claims the places of projections for one process: SWAPPING, or ROLLING_BACK."""

    site: Site
    book: ReplayBook
    state: State
    _told: list[Entry] = field(default_factory=list)

    def take(self, replays: Sequence[Replay], *, begun: bool = False) -> list[Replay]:
        """Claim generations for the commits that follow; live runners hold still from now on.

        All of them at once, or none. Raises `Cancelled`, and `Conflict` where another process has
        one, or something was deployed since that does not go with a query that is about to go live:
        unless one of those commits was made (`begun`), which is finished whatever came since.
        """
        together = {each.name: each.generation for each in replays} if len(replays) > 1 else {}
        claimed = [self._claimed(each, together) for each in replays]
        self.book.record_all([*zip(claimed, map(self._free, replays), strict=True)])
        try:
            self.hold(replays, begun=begun)
        except _STOPS:
            with contextlib.suppress(Conflict):
                self.give_back(claimed, replays)
            raise
        return claimed

    def hold(self, replays: Sequence[Replay], *, begun: bool = False) -> None:
        """Let live runners hold still for another minute."""
        going = [self._going_live(each) for each in replays]
        self._told = hold_places(self.site, going, looks=not begun)

    def refuse_lost(self, claimed: Sequence[Replay]) -> None:
        """Raise `Conflict` where another process has gone on with generations, or taken them back.

        To be looked at before a commit that comes long after the claim.
        """
        for mine in claimed:
            self.book.refuse_moved(mine, after=(self.state,), claim=str(mine.detail[CLAIM]))

    def _claimed(self, replay: Replay, together: Mapping[str, int]) -> Replay:
        detail: dict[str, object] = {CLAIM: uuid.uuid4().hex}
        if self.state is State.ROLLING_BACK and _VERSION in replay.detail:
            detail |= {_VERSION: replay.detail[_VERSION]}
        if together:
            detail |= {TOGETHER: together}
        return replay.now(self.state, detail=detail)

    def _free(self, replay: Replay) -> Sequence[State]:
        """Return the states from which a generation is claimed."""
        if self.state is State.SWAPPING and replay.state is not self.state:
            return READY
        return (replay.state,)  # Of a rollback: what was swapped, or whose swap is given up.

    def _going_live(self, replay: Replay) -> Entry:
        text, coming = replay.text, replay.generation
        if self.state is State.ROLLING_BACK:
            text, coming = replay.base_text, replay.base
        return replace(entry_of(self.site, replay.name), text=text, generation=coming)

    @contextlib.contextmanager
    def unless(
        self, is_there: Callable[[], bool], claimed: Sequence[Replay], replays: Sequence[Replay]
    ) -> Iterator[None]:
        """Give claims back after an error of the block, unless a commit of the block is there.

        Where nobody can see whether it is, the place stays claimed.
        """
        try:
            yield
        except _STOPS:
            with contextlib.suppress(PenstockError, DeltaError, OSError):
                if not is_there():
                    self.give_back(claimed, replays)
            raise

    def give_back(self, claimed: Sequence[Replay], replays: Sequence[Replay]) -> list[Replay]:
        """Give claims back after a commit that was not made, all of them by one commit.

        Returns what they are then. The live runners still hold still, for the next attempt. What a
        crash left claimed stays so: whoever left it may still be about to commit. Raises `Conflict`
        where another process took them over: it may have given up what was claimed.
        """
        given = [
            mine if replay.state is self.state else mine.now(replay.state, detail=replay.detail)
            for mine, replay in zip(claimed, replays, strict=True)
        ]
        back = [(now, mine) for now, mine in zip(given, claimed, strict=True) if now is not mine]
        self.book.record_all(
            [(now, (self.state,)) for now, _ in back],
            claims=[str(mine.detail[CLAIM]) for _, mine in back],
        )
        return given

    def let_go(self) -> None:
        """Let the live runners go on."""
        told = self._told
        if told:
            # They go on by themselves a minute later.
            with contextlib.suppress(PenstockError):
                self.site.deployed.decide(
                    lambda: [over for one in told for over in claims_over(self.site, one.name, one)]
                )


@contextlib.contextmanager
def claiming(site: Site, book: ReplayBook, state: State) -> Iterator[PlaceClaim]:
    """Claim places in the block. After an error, or Ctrl-C, the live runners go on at once.

    Without one they go on with what the block made, once that is deployed.
    """
    claim = PlaceClaim(site, book, state)
    try:
        yield claim
    except _STOPS:
        claim.let_go()
        raise
