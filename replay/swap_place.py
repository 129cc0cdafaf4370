"""A projection's table and a generation that is built to become it, as they are at one look."""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable

from kernel.errors import Conflict, NotFound
from kernel.positions import CLOSED, Epoch
from lake.datasets import schema_of
from lake.removals import Removals
from lake.table_files import live_files
from lake.tables import kept
from replay.book import CLAIMED, Replay, ReplayBook, command_of
from replay.generations import build_app, generation_name, live_app
from replay.subject import Site, anything_new, noted_epoch, subject_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPlace:
    """What is to be swapped: `replay` has the epoch of the built table, `live` is the live one's.

    `swapped`: the generation is the table by its commit already.
    """

    stable: DeltaTable
    built: DeltaTable
    replay: Replay
    live: Epoch
    swapped: bool


def place_now(site: Site, replay: Replay) -> SwapPlace:
    """Look at the table and at a generation that is built.

    Raises `Conflict` where the table was taken back from it, or its base is not the table any
    more: a rollback, or another swap, may have come as far as its commit and no further.
    """
    path = site.lake.path(f"projection/{replay.name}")
    built = DeltaTable(site.lake.path(generation_name(replay.name, replay.generation)))
    site.tables.ensure(path, schema_of(built))
    stable = DeltaTable(path)
    swapped = _swapped_at(site, stable, replay)
    # A catch-up without new input commits nothing: the book may know better than the table.
    done = built.transaction_version(build_app(replay.name, replay.generation)) or 0
    if swapped is None:
        epoch = Epoch(max(done, replay.epoch))
    else:  # One that was brought further without new input tells it in the manifest alone.
        epoch = Epoch(max(swapped, noted_epoch(site, replay.name, replay.generation) or 0))
    noted = noted_epoch(site, replay.name, replay.base) or 0
    live = max(stable.transaction_version(live_app(replay.name, replay.base)) or 0, noted)
    return SwapPlace(
        stable=stable,
        built=built,
        replay=replay.now(replay.state, epoch=epoch, detail=replay.detail),
        live=Epoch(live),
        swapped=swapped is not None,
    )


def lacks_input(site: Site, place: SwapPlace, epoch: Epoch) -> bool:
    """Say whether an epoch is ahead of a built generation by input that it has not."""
    replay = place.replay
    return epoch > replay.epoch and anything_new(
        site, subject_of(site, replay.name, replay.text), replay.epoch
    )


def refuse_taken_back(stable: DeltaTable, replay: Replay, generation: int) -> None:
    """Raise `Conflict` where a generation was the table and is not any more."""
    if stable.transaction_version(live_app(replay.name, generation)) == CLOSED:
        raise Conflict(
            f"the table was taken back from generation {generation} of {replay.name} meanwhile",
            remedy=f"penstock replay status {replay.name}",
        )


def refuse_going(site: Site, before: DeltaTable, replay: Replay) -> None:
    """Raise `NotFound` where files that a rollback brings back are gone, or are about to go.

    To be looked at behind its claim: whoever announces files later sees that.
    """
    path = site.lake.path(f"projection/{replay.name}")
    going = Removals(site.lake).among(path, sorted(live_files(before)))
    if going or kept(path, before.version()) is None:
        raise NotFound(
            f"files of what {replay.name} was before generation {replay.generation} are being "
            "removed (lake.retention_days)",
            remedy="Give the same command again; where it is refused again, build the query of "
            f"that time again: penstock replay apply {replay.name} --sql FILE",
        )


def is_taken_back(site: Site, replay: Replay) -> bool:
    """Say whether the table was taken back from a generation, by the rollback's commit."""
    return _cursor(site, replay) == CLOSED


def is_the_table(site: Site, replay: Replay) -> bool:
    """Say whether a generation became the table, by the swap's commit."""
    return _cursor(site, replay) is not None


def _cursor(site: Site, replay: Replay) -> int | None:
    stable = DeltaTable(site.lake.path(f"projection/{replay.name}"))
    return stable.transaction_version(live_app(replay.name, replay.generation))


def refuse_half_swapped(site: Site, name: str, generation: int) -> None:
    """Raise `Conflict` where a swap or rollback came as far as its commit, the catalog not yet."""
    stable = site.tables.open(site.lake.path(f"projection/{name}"))
    if stable is not None and stable.transaction_version(live_app(name, generation)) == CLOSED:
        raise Conflict(
            f"a swap or rollback of {name} was interrupted",
            remedy=finishing(site, name),
        )


def finishing(site: Site, name: str) -> str:
    """Return what finishes the swap or rollback whose commit a table has.

    Of a swap it names the generation: a newer one may have been built beside it.
    """
    known = ReplayBook(site.lake, site.tables).of(name)
    begun = [each for each in known if each.state in CLAIMED and is_the_table(site, each)]
    if begun:
        return f"Finish what was begun: {command_of(begun[-1])}"
    return f"Build it again beside what is live now: penstock replay apply {name}"


def _swapped_at(site: Site, stable: DeltaTable, replay: Replay) -> Epoch | None:
    """Return the epoch of a generation that is the table by its commit already; None before."""
    refuse_taken_back(stable, replay, replay.generation)
    swapped = stable.transaction_version(live_app(replay.name, replay.generation))
    if swapped is None and stable.transaction_version(live_app(replay.name, replay.base)) == CLOSED:
        raise Conflict(
            f"generation {replay.base} of {replay.name} was replaced by another one than "
            f"{replay.generation}",
            remedy=finishing(site, replay.name),
        )
    return None if swapped is None else Epoch(swapped)
