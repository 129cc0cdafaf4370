"""Swaps and rollbacks of one projection by its name, as the commands give them."""

from __future__ import annotations

from collections.abc import Callable

from replay.book import READY, Replay, ReplayBook, State
from replay.subject import Site
from replay.swap import rollback_set, swap_set
from replay.swap_commits import Swapped


def swap(
    site: Site,
    name: str,
    catch_up: Callable[[Replay], Replay],
    *,
    generation: int | None = None,
    reason: str | None = None,
) -> Swapped:
    """Make the newest built generation, or the one that is named, the table.

    `catch_up` brings it forward as far as it comes.
    """
    book = ReplayBook(site.lake, site.tables)
    built = book.newest(name, *READY, State.SWAPPING, generation=generation)
    (done,) = swap_set(site, [built], lambda _, each, *__: catch_up(each), reason=reason)
    return done


def rollback(site: Site, name: str) -> Swapped:
    """Make the generation before the live one the table again."""
    (done,) = taken_back(site, name)
    return done


def taken_back(site: Site, name: str) -> list[Swapped]:
    """Take the newest swap back, or give it up where it came to no table: then nothing is told."""
    book = ReplayBook(site.lake, site.tables)
    states = State.SWAPPED, State.ROLLING_BACK, State.SWAPPING
    return rollback_set(site, book.set_of([name], *states))
