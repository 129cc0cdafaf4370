"""What a swap and a rollback ask and do beside their commits on tables: the catalog's part of them.

Readers by name follow the catalog: whatever is deployed here by one commit they see at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from deltalake import DeltaTable

from kernel.errors import Conflict, LeaseLost, NotFound
from kernel.positions import CLOSED, Epoch
from lake.tables import kept
from projections.run.catalog import DROPPED, Entry
from projections.run.meanings import MIXED
from replay.book import CLAIM, CLAIMED, READY, TOGETHER, Replay, ReplayBook, State, command_of
from replay.deployment import claims_over
from replay.generations import build_app, live_app, published_version
from replay.subject import Site, entry_of, typed_head
from replay.swap_place import is_the_table, refuse_taken_back

ATTEMPTS = 3
"""Each costs a catch-up over what the live generation committed meanwhile."""
NOTED_WITHIN_S = 5.0
"""So long a swap waits for the notes of a round whose rows are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoingLive:
    """Which of the two generations of a swap goes live, and with what."""

    replay: Replay
    generation: int
    text: str
    include_late: bool


def forward(replay: Replay) -> GoingLive:
    """Return what a swap lets go live."""
    return GoingLive(
        replay=replay,
        generation=replay.generation,
        text=replay.text,
        include_late=replay.include_late,
    )


def backward(book: ReplayBook, replay: Replay) -> GoingLive:
    """Return what a rollback lets go live."""
    return GoingLive(
        replay=replay,
        generation=replay.base,
        text=replay.base_text,
        include_late=any(
            r.include_late for r in book.of(replay.name) if r.generation == replay.base
        ),
    )


def with_options(site: Site, replay: Replay) -> Replay:
    """Return a generation with the options that its query was given while it was built.

    Raises `Conflict` where it was built from another query, which may not want them.
    """
    entry = entry_of(site, replay.name)
    if entry.generation != replay.base or entry.text == replay.base_text:
        return replay
    if replay.text == replay.base_text:
        return replace(replay, text=entry.text, base_text=entry.text)
    if replay.state is State.SWAPPING:
        return replay  # Readers may have it already.
    raise Conflict(
        f"{replay.name} was given other options since generation {replay.generation} was built "
        "from another query: the swap would undo them",
        remedy=f"Write them into that query, and build it again: penstock replay cancel "
        f"{replay.name}, then penstock replay apply {replay.name} --sql FILE",
    )


def refuse_replaced(site: Site, book: ReplayBook, replay: Replay) -> None:
    """Raise `Conflict` where another generation went live since the build."""
    live = _in_its_place(site, book, replay)
    if live is None:
        return
    raise Conflict(
        f"generation {live} of {replay.name} is live; generation {replay.generation} "
        f"was built to replace generation {replay.base}",
        remedy=f"Build it again: penstock replay apply {replay.name}",
    )


def still_placed(site: Site, book: ReplayBook, members: Sequence[Replay]) -> list[Replay]:
    """Return members of a set without those whose places other generations took since it was begun.

    One may have been dropped and deployed anew after a crash: neither will it go live any more, nor
    come back, and the others would wait for it for ever. Raises `Conflict` where none is left.
    """
    claimed = [each for each in members if each.state in CLAIMED]
    begun = {(name, number) for each in claimed for name, number in each.together.items()}
    kept = []
    for each in members:
        live = entry_of(site, each.name).generation
        if live in (each.base, each.generation) or (each.name, each.generation) not in begun:
            kept.append(each)
        elif each.state in CLAIMED:
            _released(site, book, each)
    if not kept:
        refuse_another(entry_of(site, members[0].name), members[0])
    return kept


def _released(site: Site, book: ReplayBook, replay: Replay) -> None:
    """Give up a swap or a rollback of a generation whose place another one took."""
    back = replay.state is State.ROLLING_BACK and is_the_table(site, replay)
    detail = {n: told for n, told in replay.detail.items() if n not in (CLAIM, TOGETHER)}
    over = replay.now(State.SWAPPED, detail=detail) if back else replay.now(State.BUILT)
    book.record(over, after=(replay.state,))


def refuse_part(site: Site, book: ReplayBook, replays: Sequence[Replay]) -> None:
    """Raise `Conflict` where a part of those that belong together is about to go alone.

    Of a swap that was made long ago those alone count that are the tables still, and of one that
    was begun those whose places no other generation took.
    """
    given = {(each.name, each.generation) for each in replays}
    for replay in replays:
        for name, generation in replay.together.items():
            gone = _is_gone(site, book, replay, name, generation)
            if gone or replay.state in READY or (name, generation) in given:
                continue
            how = "was swapped" if replay.state is State.SWAPPED else f"is {replay.state}"
            raise Conflict(
                f"generation {replay.generation} of {replay.name} {how} together with generation "
                f"{generation} of {name}",
                remedy=_all_of(replay),
            )


def _is_gone(site: Site, book: ReplayBook, replay: Replay, name: str, generation: int) -> bool:
    """Say whether a generation that went along with another one has no part in it any more."""
    entry = entry_of(site, name)
    if replay.state not in CLAIMED:
        return entry.status == DROPPED or entry.generation != generation
    other = book.known(name, generation)
    return other is None or entry.generation not in (other.base, generation)


def _all_of(replay: Replay) -> str:
    if replay.state in CLAIMED:
        return command_of(replay)
    return f"Take all of them back: penstock replay rollback {' '.join(sorted(replay.together))}"


def refuse_another(entry: Entry, replay: Replay) -> None:
    """Raise `Conflict` where neither of the two generations of a swap is live."""
    if entry.generation not in (replay.generation, replay.base):
        raise Conflict(
            f"generation {entry.generation} of {entry.name} is live, not {replay.generation}",
            remedy=f"penstock replay status {entry.name}",
        )


def meaning(site: Site, replay: Replay) -> str:
    """Return what made a generation's rows, as its build noted it."""
    runs = site.manifest.history_of(build_app(replay.name, replay.generation))
    return runs[-1].meaning if runs else MIXED


def before_swap(stable: DeltaTable, path: str, replay: Replay) -> DeltaTable:
    """Return the table as it was before the swap. Raises `NotFound` where it is not kept."""
    # Not the newest commit that names it: a rollback to it is one as well, of a later generation.
    swapped = replay.detail.get("version")
    try:
        at = published_version(stable, replay.generation) if swapped is None else int(str(swapped))
        before = kept(path, at - 1)
    except NotFound:
        before = None
    if before is None or before.transaction_version(live_app(replay.name, replay.base)) == CLOSED:
        raise NotFound(
            f"what {replay.name} was before generation {replay.generation} is not kept any more "
            "(lake.retention_days)",
            remedy="Build the query of that time again: penstock replay apply "
            f"{replay.name} --sql FILE",
        )
    return before


def go_live(site: Site, going: Sequence[GoingLive]) -> None:
    """Deploy generations, by one commit.

    Raises `Conflict` where another one is deployed since, or a table was taken back from one of
    these: whoever comes here may have slept. Both are looked at anew for each attempt. Who takes
    a table back closes the generation before the catalog names another one: so it is seen here, or
    the attempt fails.
    """

    def deployed() -> list[Entry]:
        return [entry for each in going for entry in _deployed(site, each)]

    for attempt in range(ATTEMPTS):
        try:
            site.deployed.decide(deployed)
        except LeaseLost:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def _deployed(site: Site, going: GoingLive) -> list[Entry]:
    replay, generation = going.replay, going.generation
    entry = entry_of(site, replay.name)
    refuse_another(entry, replay)
    over = claims_over(site, replay.name)
    if entry.generation == generation:
        return over
    stable = DeltaTable(site.lake.path(f"projection/{replay.name}"))
    refuse_taken_back(stable, replay, generation)
    deploy = replace(entry, generation=generation, text=going.text, include_late=going.include_late)
    return [deploy, *over]


def overtaken(book: ReplayBook, done: Sequence[Replay]) -> None:
    """Give up swaps of other generations that died before their commits: these are the tables.

    They cannot go live any more, and a rollback would take them for what was swapped last.
    """
    for each in done:
        for other in book.of(each.name):
            alone = other.state is State.SWAPPING and not other.together
            if alone and other.generation != each.generation:
                with contextlib.suppress(Conflict):  # Somebody gave it up at the same moment.
                    book.record(other.now(State.BUILT), after=(State.SWAPPING,))


def refuse_overtaken(site: Site, book: ReplayBook, replay: Replay) -> None:
    """Raise `Conflict` for a lone swap that died, where another generation is the table since.

    It is given up, so that the next rollback takes back what is live: a process may have died
    before `overtaken`, and a version of before did not know of it.
    """
    lone = replay.state is State.SWAPPING and not replay.together
    live = _in_its_place(site, book, replay) if lone else None
    if live is None:
        return
    raise Conflict(
        f"generation {live} of {replay.name} became the table after the swap of generation "
        f"{replay.generation} had died, which is given up; generation {live} was not taken back",
        remedy=f"Give it again to take back generation {live}: penstock replay rollback "
        f"{replay.name}",
    )


def _in_its_place(site: Site, book: ReplayBook, replay: Replay) -> int | None:
    """Return the generation that went live in place of a built one since; give up its swap then."""
    live = entry_of(site, replay.name).generation
    if live in (replay.base, replay.generation):
        return None
    if replay.state is State.SWAPPING:
        # A swap that still runs fails at its commit: the table is another one since.
        book.record(replay.now(State.BUILT), after=(State.SWAPPING,))
    return live


def await_input(site: Site, replay: Replay, live: Epoch) -> None:
    """Wait until the typed tables that a live generation at an epoch was computed from are noted.

    A round of the pipeline notes them with the projections, behind the rows of these. Before that
    no generation is brought so far. Raises `Conflict` for a round that ended without its notes.
    """
    ends = time.monotonic() + NOTED_WITHIN_S
    while (noted := typed_head(site)) < live:
        if time.monotonic() >= ends:
            raise Conflict(
                f"{replay.name} has epoch {live}, of a round of the pipeline that has not noted "
                f"its typed tables: these are noted up to epoch {noted}",
                remedy="See that the pipeline runs (penstock status), which notes them then, and "
                "give the same command again",
            )
        time.sleep(0.05)


def too_fast(replay: Replay) -> Conflict:
    """Return what a swap ends with whose commits the live generation was always faster than."""
    return Conflict(
        f"the live generation of {replay.name} committed during each of {ATTEMPTS} attempts",
        remedy=f"penstock projection pause {replay.name}, the same command again, then "
        f"penstock projection resume {replay.name}",
    )
