"""Two generations of a projection on the live stream: how many rows differ, epoch after epoch.

The built one is brought to each epoch that the live one has, as a swap would, and compared there.
Every comparison is noted in the book, so that the drift is told over processes and days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernel.errors import Conflict, NotFound
from kernel.positions import Epoch
from replay.book import READY, Replay, ReplayBook, State
from replay.subject import Site
from replay.verify import NOTHING, Expectation, GenerationComparison, comparable, live_epoch, verify

CatchUp = Callable[[Replay], Replay]
"""Brings a built generation forward to an epoch."""
_PROMOTED = (State.SWAPPING, State.SWAPPED)
"""It is made the table by somebody, or was; or the one who tried goes on with it later."""


def comparisons(
    site: Site,
    name: str,
    catch_up: Callable[[Epoch], CatchUp],
    *,
    generation: int | None = None,
    expectation: Expectation | None = None,
    go_on: Callable[[], bool] = lambda: False,
) -> Iterator[GenerationComparison]:
    """Yield a comparison as of now, and one for each newer epoch as long as `go_on` says so.

    `catch_up` gives what brings a generation to an epoch. `go_on` is asked when nothing is new, and
    waits. Without an `expectation` what was accepted before is so still: who looks on does not take
    that back. It ends once the generation is the table. Raises what `verify` does, also when it was
    cancelled meanwhile.
    """
    book = ReplayBook(site.lake, site.tables)
    compared: Epoch | None = None
    while True:
        found: GenerationComparison | None = None
        try:
            built = book.newest(name, *READY, generation=generation)
            generation, live = built.generation, live_epoch(site, built)
            if live > built.epoch or not comparable(site, built):
                built = catch_up(live)(built)
            if built.epoch != compared and comparable(site, built):
                wanted = _accepted(built) if expectation is None else expectation
                found = verify(site, name, generation=generation, expectation=wanted)
        except (Conflict, NotFound):
            known = None if generation is None else book.known(name, generation)
            if compared is None or known is None or known.state not in _PROMOTED:
                raise
            if known.state is State.SWAPPED:
                return
        if found is not None:
            compared = Epoch(found.epoch)
            yield found
        if not go_on():
            return


def _accepted(built: Replay) -> Expectation:
    """Return what was expected of a generation as it was compared and accepted."""
    told = built.detail.get("expectation") if built.state is State.VERIFIED else None
    if not isinstance(told, dict):
        return NOTHING
    return Expectation(rows=told["rows"], columns=tuple(told["columns"]))
