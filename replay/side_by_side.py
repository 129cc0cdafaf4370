"""Two generations of a projection on the live stream: how many rows differ, epoch after epoch.

The built one is brought to each epoch that the live one has, as a swap would, and compared there.
Every comparison is noted in the book, so that the drift is told over processes and days.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernel.positions import Epoch
from replay.book import READY, ReplayBook
from replay.subject import Site
from replay.swap import CatchUp
from replay.verify import NOTHING, Expectation, GenerationComparison, comparable, live_epoch, verify


def comparisons(
    site: Site,
    name: str,
    catch_up: Callable[[Epoch], CatchUp],
    *,
    generation: int | None = None,
    expectation: Expectation = NOTHING,
    go_on: Callable[[], bool] = lambda: False,
) -> Iterator[GenerationComparison]:
    """Yield a comparison as of now, and one for each newer epoch as long as `go_on` says so.

    `catch_up` gives what brings a generation to an epoch. `go_on` is asked when nothing is new, and
    waits. Raises what `verify` does, also when the generation was swapped or cancelled meanwhile.
    """
    book = ReplayBook(site.lake, site.tables)
    compared: Epoch | None = None
    while True:
        built = book.newest(name, *READY, generation=generation)
        live = live_epoch(site, built)
        if live > built.epoch or not comparable(site, built):
            built = catch_up(live)(built)
        if built.epoch != compared and comparable(site, built):
            compared = built.epoch
            yield verify(site, name, generation=built.generation, expectation=expectation)
        if not go_on():
            return
