"""The claim of a projection's place, by which a swap or a rollback keeps others off its commit.

It is in the book, where nobody cancels the generation any more and whoever deploys finds what is
about to go live; and in the catalog, where the live runner, which would commit again and again in
between, sees that it has to hold still. The book's stays after a crash: the commit may be there.
The catalog's ends by itself after a minute, and each attempt makes it anew.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from kernel.errors import Conflict, PenstockError
from projections.run.catalog import Entry
from replay.book import CLAIM, READY, Replay, ReplayBook, State
from replay.deployment import claims_over, hold_place
from replay.subject import Site

_STOPS = (Exception, KeyboardInterrupt)
"""What ends a command that is still there to clean up."""
_VERSION = "version"
"""Of the table, by which the swap was made: who takes it back looks for it."""


@dataclass(slots=True)
class PlaceClaim:
    """Claims the place of one projection for one process: SWAPPING, or ROLLING_BACK."""

    site: Site
    book: ReplayBook
    state: State
    _told: Entry | None = None

    def take(self, replay: Replay) -> Replay:
        """Claim a generation for the commit that follows; the live runner holds still from now on.

        Raises `Cancelled`, and `Conflict` where another process has it, or something was deployed
        since that does not go with the query that is about to go live.
        """
        back = self.state is State.ROLLING_BACK
        free = (State.SWAPPED,) if back else READY
        detail: dict[str, object] = {CLAIM: uuid.uuid4().hex}
        if back and _VERSION in replay.detail:
            detail |= {_VERSION: replay.detail[_VERSION]}
        claimed = self.book.record(
            replay.now(self.state, detail=detail),
            after=(self.state,) if replay.state is self.state else free,
        )
        text, coming = replay.text, replay.generation
        if back:
            text, coming = replay.base_text, replay.base
        try:
            self._told = hold_place(self.site, replay.name, text, coming)
        except _STOPS:
            self.give_back(claimed, replay)
            raise
        return claimed

    @contextlib.contextmanager
    def unless(
        self, is_there: Callable[[], bool], claimed: Replay, replay: Replay
    ) -> Iterator[None]:
        """Give a claim back after an error of the block, unless the block's commit is there.

        Where nobody can see whether it is, the place stays claimed.
        """
        try:
            yield
        except _STOPS:
            with contextlib.suppress(PenstockError, DeltaError, OSError):
                if not is_there():
                    self.give_back(claimed, replay)
            raise

    def give_back(self, claimed: Replay, replay: Replay) -> None:
        """Give a claim back after a commit that was not made, unless another one took it over.

        The live runner still holds still, for the next attempt. What a crash left claimed stays so:
        whoever left it may still be about to commit.
        """
        if replay.state is not self.state:
            with contextlib.suppress(Conflict):
                claim = str(claimed.detail[CLAIM])
                now = claimed.now(replay.state, detail=replay.detail)
                self.book.record(now, after=(self.state,), claim=claim)

    def let_go(self) -> None:
        """Let the live runner go on."""
        told = self._told
        if told is not None:
            # It goes on by itself a minute later.
            with contextlib.suppress(PenstockError):
                self.site.deployed.decide(lambda: claims_over(self.site, told.name, told))


@contextlib.contextmanager
def claiming(site: Site, book: ReplayBook, state: State) -> Iterator[PlaceClaim]:
    """Claim a place in the block. After an error, or Ctrl-C, the live runner goes on at once.

    Without one it goes on with what the block made, once that is deployed.
    """
    claim = PlaceClaim(site, book, state)
    try:
        yield claim
    except _STOPS:
        claim.let_go()
        raise
