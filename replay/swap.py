"""Makes a built generation the table, and takes that back.

Order, and what a crash between the steps leaves:
0. the claim (`replay.claims`): in the book, so that nobody cancels the generation, whose files the
   commit is about to name. Taken before each attempt, given back where the live runner was faster.
   Behind it the catalog is looked at, by a commit: what is deployed since finds the claim, and is
   refused where it reads the generation; and the live runner holds still;
1. one commit on the stable table: files, schema, the old writer closed, the new one at its epoch.
   From here on readers see the new generation, and the live runner, which does not know it yet,
   refuses to write (its generation is closed). So does a build that slept: it is closed next;
2. the manifest's row, so that readers by epoch find the version;
3. the catalog: the live runner goes on with the new generation from its epoch;
4. the book.
The same command again finishes what is left: every step sees whether it was done. Nothing needs
the live runner to stop: a commit of its own in the moment of step 1 makes one of the two fail and
look again. One that runs already when the claim is made may commit once more, and then holds still:
the first attempt brings the new generation up to where the live one was, the second to where it
holds still, the third is for what was under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import Conflict, LeaseLost, NotFound, Unavailable
from kernel.positions import CLOSED, DeltaVersion, Epoch
from lake.tables import TableAt, kept
from pipeline.commit.manifest_rows import Projected
from projections.run.catalog import Entry
from projections.run.meanings import MIXED
from replay.book import READY, REASON, Replay, ReplayBook, State
from replay.cancel import give_up_rollback
from replay.claims import claiming
from replay.deployment import claims_over
from replay.generations import (
    Cursor,
    build_app,
    close_build,
    generation_name,
    live_app,
    publish,
    published_version,
    put_back,
)
from replay.subject import Site, check_deployable, entry_of, reads_projections
from replay.swap_place import (
    SwapPlace,
    is_taken_back,
    is_the_table,
    lacks_input,
    place_now,
    refuse_going,
    refuse_taken_back,
)

ATTEMPTS = 3
"""Each costs a catch-up over what the live generation committed meanwhile."""

_GOES_ON = (*READY, State.SWAPPING, State.SWAPPED)
"""A swap goes on from these: another process may have finished it. What was taken back is over."""

CatchUp = Callable[[Replay], Replay]
"""Brings a built generation forward to the newest epoch there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """What a swap or rollback did. `version` of the stable table is the one it made."""

    name: str
    generation: int
    replaced: int
    epoch: Epoch
    version: DeltaVersion


def swap(
    site: Site,
    name: str,
    catch_up: CatchUp,
    *,
    generation: int | None = None,
    reason: str | None = None,
) -> Swapped:
    """Make the newest built generation, or the one that is named, the table.

    `catch_up` is called while the live generation is ahead: the table never steps back in time.
    `reason`: why, where no comparison speaks for it. It is kept in the book, before anything else.
    Raises `Conflict` when another generation went live since the build, or the live one keeps
    moving faster than the new one follows, where its query does not go with what was deployed
    meanwhile, and `Cancelled` when somebody cancelled it meanwhile.
    """
    book = ReplayBook(site.lake, site.tables)
    # One that is swapping was left so by a crash, or is being swapped by somebody else.
    replay = book.newest(name, *READY, State.SWAPPING, generation=generation)
    if reason is not None and replay.state is not State.SWAPPING:
        told = replay.now(replay.state, detail={**replay.detail, REASON: reason})
        replay = book.record(told, after=READY)
    replay = _with_options(site, replay)
    if replay.state is not State.SWAPPING:
        # Something may have been deployed since the build that does not go with its query.
        check_deployable(site, name, replay.text)
    replay = _published(site, book, replay, catch_up)
    # Whoever built it may have slept since, and would go on where it was.
    close_build(site.lake, site.tables, name, replay.generation)
    failpoints.hit(failpoints.REPLAY_AFTER_SWAP)
    # Whoever slept here may find that another process finished the swap, and took it back.
    book.refuse_moved(replay, after=_GOES_ON)
    stable = DeltaTable(site.lake.path(f"projection/{name}"))
    version = published_version(stable, replay.generation)
    site.manifest.project(
        Projected(
            epoch=replay.epoch,
            name=live_app(name, replay.generation),
            tables={f"projection/{name}": TableAt(version=version, as_of_epoch=replay.epoch)},
            meaning=_meaning(site, replay),
        )
    )
    _go_live(
        site,
        replay,
        generation=replay.generation,
        text=replay.text,
        include_late=replay.include_late,
    )
    detail: dict[str, object] = {"version": version}
    if (why := book.reason(name, replay.generation)) is not None:
        detail[REASON] = why
    book.record(replay.now(State.SWAPPED, detail=detail), after=_GOES_ON)
    return Swapped(
        name=name,
        generation=replay.generation,
        replaced=replay.base,
        epoch=replay.epoch,
        version=version,
    )


def rollback(site: Site, name: str) -> Swapped:
    """Make the generation before the live one the table again, as it was at the swap.

    The live runner then brings it up from its own epoch. Raises `NotFound` when nothing was
    swapped or the table of that moment is not kept any more or about to go: one that died before
    is given up then. Raises `Conflict` when the live generation keeps committing, and where the
    query that comes back does not go with what was deployed since: with a sink of another one, or
    with projections that read this one.
    """
    book = ReplayBook(site.lake, site.tables)
    # One that is rolling back was left so by a crash, or is taken back by somebody else.
    replay = book.newest(name, State.SWAPPED, State.ROLLING_BACK)
    entry = entry_of(site, name)
    _refuse_another(entry, replay)
    try:
        epoch = _restored(site, book, replay)
    except NotFound:
        # What died on its way to where nothing is any more would stay on it for ever.
        if replay.state is State.ROLLING_BACK:
            give_up_rollback(site, replay)
        raise
    failpoints.hit(failpoints.REPLAY_AFTER_SWAP)
    stable = DeltaTable(site.lake.path(f"projection/{name}"))
    version = published_version(stable, replay.base)
    _go_live(
        site,
        replay,
        generation=replay.base,
        text=replay.base_text,
        include_late=any(r.include_late for r in book.of(name) if r.generation == replay.base),
    )
    book.record(replay.now(State.ROLLED_BACK, detail={"version": version}))
    return Swapped(
        name=name,
        generation=replay.base,
        replaced=replay.generation,
        epoch=epoch,
        version=version,
    )


def _with_options(site: Site, replay: Replay) -> Replay:
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


def _refuse_replaced(site: Site, book: ReplayBook, replay: Replay) -> None:
    """Raise `Conflict` where another generation went live since the build."""
    entry = entry_of(site, replay.name)
    if entry.generation in (replay.base, replay.generation):
        return
    if replay.state is State.SWAPPING:
        # A swap that still runs fails at its commit: the table is another one since.
        book.record(replay.now(State.BUILT), after=(State.SWAPPING,))
    raise Conflict(
        f"generation {entry.generation} of {replay.name} is live; generation {replay.generation} "
        f"was built to replace generation {replay.base}",
        remedy=f"Build it again: penstock replay apply {replay.name}",
    )


def _meaning(site: Site, replay: Replay) -> str:
    """Return what made a generation's rows, as its build noted it."""
    runs = site.manifest.history_of(build_app(replay.name, replay.generation))
    return runs[-1].meaning if runs else MIXED


def _published(site: Site, book: ReplayBook, replay: Replay, catch_up: CatchUp) -> Replay:
    asked = False
    with claiming(site, book, State.SWAPPING) as claim:
        for _ in range(ATTEMPTS):
            book.refuse_moved(replay, after=_GOES_ON)
            _refuse_replaced(site, book, replay)
            place = place_now(site, replay)
            replay = place.replay
            if place.swapped:
                return replay  # A swap that was interrupted after its commit.
            # What another projection has changes at the epoch where it stands, too: nothing tells.
            if lacks_input(site, place) or (
                not asked and reads_projections(site, replay.name, replay.text)
            ):
                asked, replay = True, catch_up(replay)
            claimed = claim.take(replay)
            with claim.unless(partial(is_the_table, site, replay), claimed, replay):
                # The live one may have come further until it saw the claim.
                place = place_now(site, replay)
                ahead = place.swapped or lacks_input(site, place)
                replay = place.replay
                epoch = Epoch(max(place.live, replay.epoch))
                if not ahead and _committed(site, place, epoch):
                    return replay.now(replay.state, epoch=epoch, detail=replay.detail)
            claim.give_back(claimed, replay)
        raise _too_fast(replay)


def _committed(site: Site, place: SwapPlace, epoch: Epoch) -> bool:
    """Make a generation that is claimed the table; say whether the live one was not faster."""
    replay = place.replay
    failpoints.hit(failpoints.REPLAY_AFTER_CLAIM)
    folder = generation_name(replay.name, replay.generation)
    try:
        publish(
            place.stable,
            place.built,
            folder=folder.removeprefix(f"projection/{replay.name}/"),
            old=live_app(replay.name, replay.base),
            new=Cursor(app_id=live_app(replay.name, replay.generation), epoch=epoch),
            generation=replay.generation,
        )
    except LeaseLost:
        return False
    except Unavailable:
        # The storage may have lost its answer, and not the commit.
        if not is_the_table(site, replay):
            raise
    return True


def _restored(site: Site, book: ReplayBook, replay: Replay) -> Epoch:
    path = site.lake.path(f"projection/{replay.name}")
    new = live_app(replay.name, replay.generation)
    old = live_app(replay.name, replay.base)
    with claiming(site, book, State.ROLLING_BACK) as claim:
        for _ in range(ATTEMPTS):
            stable = DeltaTable(path)
            if stable.transaction_version(new) == CLOSED:
                return Epoch(stable.transaction_version(old) or 0)
            before = _before(stable, path, replay)
            epoch = Epoch(before.transaction_version(old) or 0)
            # The query of before comes back with its sink, which another projection may have since,
            # and without columns that another one may read since: the claim looks.
            claimed = claim.take(replay)
            failpoints.hit(failpoints.REPLAY_AFTER_CLAIM)
            with claim.unless(partial(is_taken_back, site, replay), claimed, replay):
                refuse_going(site, before, replay)
                if _taken_back(site, stable, before, replay):
                    site.tables.forget(path)
                    return epoch
            claim.give_back(claimed, replay)
        raise _too_fast(replay)


def _taken_back(site: Site, stable: DeltaTable, before: DeltaTable, replay: Replay) -> bool:
    """Make a table what it was before; say whether the live one was not faster."""
    old = live_app(replay.name, replay.base)
    try:
        put_back(
            stable,
            DeltaVersion(before.version()),
            old=Cursor(app_id=old, epoch=Epoch(before.transaction_version(old) or 0)),
            new=live_app(replay.name, replay.generation),
            generation=replay.base,
        )
    except LeaseLost:
        return False
    except Unavailable:
        # As with a swap.
        if not is_taken_back(site, replay):
            raise
    return True


def _before(stable: DeltaTable, path: str, replay: Replay) -> DeltaTable:
    """Return the table as it was before the swap."""
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


def _refuse_another(entry: Entry, replay: Replay) -> None:
    if entry.generation not in (replay.generation, replay.base):
        raise Conflict(
            f"generation {entry.generation} of {entry.name} is live, not {replay.generation}",
            remedy=f"penstock replay status {entry.name}",
        )


def _go_live(site: Site, replay: Replay, *, generation: int, text: str, include_late: bool) -> None:
    """Deploy one of the two generations of a swap.

    Raises `Conflict` where another one is deployed since, or the table was taken back from this
    one: whoever comes here may have slept. Both are looked at anew for each attempt. Who takes the
    table back closes the generation before the catalog names another one: so it is seen here, or
    the attempt fails.
    """

    def deployed() -> list[Entry]:
        entry = entry_of(site, replay.name)
        _refuse_another(entry, replay)
        over = claims_over(site, replay.name)
        if entry.generation == generation:
            return over
        stable = DeltaTable(site.lake.path(f"projection/{replay.name}"))
        refuse_taken_back(stable, replay, generation)
        deploy = replace(entry, generation=generation, text=text, include_late=include_late)
        return [deploy, *over]

    for attempt in range(ATTEMPTS):
        try:
            site.deployed.decide(deployed)
        except LeaseLost:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return


def _too_fast(replay: Replay) -> Conflict:
    return Conflict(
        f"the live generation of {replay.name} committed during each of {ATTEMPTS} attempts",
        remedy=f"penstock projection pause {replay.name}, the same command again, then "
        f"penstock projection resume {replay.name}",
    )
