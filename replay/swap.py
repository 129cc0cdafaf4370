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
from dataclasses import dataclass
from functools import partial

from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import LeaseLost, NotFound, Unavailable
from kernel.positions import CLOSED, DeltaVersion, Epoch
from lake.tables import TableAt
from pipeline.commit.manifest_rows import Projected
from replay.book import READY, REASON, TOGETHER, Replay, ReplayBook, State
from replay.cancel import give_up_rollback
from replay.claims import claiming
from replay.generations import (
    Cursor,
    close_build,
    generation_name,
    live_app,
    publish,
    published_version,
    put_back,
)
from replay.going_live import (
    ATTEMPTS,
    await_input,
    backward,
    before_swap,
    forward,
    go_live,
    meaning,
    refuse_another,
    refuse_part,
    refuse_replaced,
    too_fast,
    with_options,
)
from replay.subject import Site, check_deployable, entry_of, reads_projections
from replay.swap_place import (
    SwapPlace,
    is_taken_back,
    is_the_table,
    lacks_input,
    place_now,
    refuse_going,
)

GOES_ON = (*READY, State.SWAPPING, State.SWAPPED)
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
    refuse_part(site, book, [replay])
    replay = with_options(site, told_why(book, replay, reason))
    if replay.state is not State.SWAPPING:
        # Something may have been deployed since the build that does not go with its query.
        check_deployable(site, name, replay.text)
    replay = _published(site, book, replay, catch_up)
    # Whoever built it may have slept since, and would go on where it was.
    close_build(site.lake, site.tables, name, replay.generation)
    failpoints.hit(failpoints.REPLAY_AFTER_SWAP)
    # Whoever slept here may find that another process finished the swap, and took it back.
    book.refuse_moved(replay, after=GOES_ON)
    version = noted(site, replay)
    go_live(site, [forward(replay)])
    failpoints.hit(failpoints.REPLAY_AFTER_LIVE)
    book.record(swapped(book, replay, version), after=GOES_ON)
    return became_the_table(replay, version)


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
    refuse_another(entry_of(site, name), replay)
    refuse_part(site, book, [replay])
    try:
        epoch = _restored(site, book, replay)
    except NotFound:
        # What died on its way to where nothing is any more would stay on it for ever.
        if replay.state is State.ROLLING_BACK:
            give_up_rollback(site, replay)
        raise
    failpoints.hit(failpoints.REPLAY_AFTER_SWAP)
    version = version_of(site, name, replay.base)
    go_live(site, [backward(book, replay)])
    failpoints.hit(failpoints.REPLAY_AFTER_LIVE)
    book.record(replay.now(State.ROLLED_BACK, detail={"version": version}))
    return Swapped(
        name=name,
        generation=replay.base,
        replaced=replay.generation,
        epoch=epoch,
        version=version,
    )


def became_the_table(replay: Replay, version: DeltaVersion) -> Swapped:
    """Return what a swap did, which made a version of the table."""
    return Swapped(
        name=replay.name,
        generation=replay.generation,
        replaced=replay.base,
        epoch=replay.epoch,
        version=version,
    )


def version_of(site: Site, name: str, generation: int) -> DeltaVersion:
    """Return the version by which a generation became the table. See `published_version`."""
    return published_version(DeltaTable(site.lake.path(f"projection/{name}")), generation)


def told_why(book: ReplayBook, replay: Replay, reason: str | None) -> Replay:
    """Keep why a generation is to be swapped though no comparison speaks for it."""
    if reason is None or replay.state is State.SWAPPING:
        return replay
    told = replay.now(replay.state, detail={**replay.detail, REASON: reason})
    return book.record(told, after=READY)


def noted(site: Site, replay: Replay) -> DeltaVersion:
    """Note in the manifest by which version a generation became the table; return that."""
    table = f"projection/{replay.name}"
    version = version_of(site, replay.name, replay.generation)
    site.manifest.project(
        Projected(
            epoch=replay.epoch,
            name=live_app(replay.name, replay.generation),
            tables={table: TableAt(version=version, as_of_epoch=replay.epoch)},
            meaning=meaning(site, replay),
        )
    )
    return version


def swapped(book: ReplayBook, replay: Replay, version: DeltaVersion) -> Replay:
    """Return the row that says of a generation that it is the table since a version of it."""
    detail: dict[str, object] = {"version": version}
    if replay.together:
        detail[TOGETHER] = replay.together
    if (why := book.reason(replay.name, replay.generation)) is not None:
        detail[REASON] = why
    return replay.now(State.SWAPPED, detail=detail)


def _published(site: Site, book: ReplayBook, replay: Replay, catch_up: CatchUp) -> Replay:
    asked = False
    with claiming(site, book, State.SWAPPING) as claim:
        for _ in range(ATTEMPTS):
            book.refuse_moved(replay, after=GOES_ON)
            refuse_replaced(site, book, replay)
            place = place_now(site, replay)
            replay = place.replay
            if place.swapped:
                return replay  # A swap that was interrupted after its commit.
            # What another projection has changes at the epoch where it stands, too: nothing tells.
            lacks = lacks_input(site, place)
            if lacks:
                await_input(site, replay, place.live)
            if lacks or (not asked and reads_projections(site, replay.name, replay.text)):
                asked, replay = True, catch_up(replay)
            (claimed,) = claim.take([replay])
            with claim.unless(partial(is_the_table, site, replay), [claimed], [replay]):
                # The live one may have come further until it saw the claim.
                place = place_now(site, replay)
                ahead = place.swapped or lacks_input(site, place)
                replay = place.replay
                epoch = Epoch(max(place.live, replay.epoch))
                if not ahead and committed(site, place, epoch):
                    return replay.now(replay.state, epoch=epoch, detail=replay.detail)
            claim.give_back([claimed], [replay])
        raise too_fast(replay)


def committed(site: Site, place: SwapPlace, epoch: Epoch) -> bool:
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
            before = before_swap(stable, path, replay)
            epoch = Epoch(before.transaction_version(old) or 0)
            # The query of before comes back with its sink, which another projection may have since,
            # and without columns that another one may read since: the claim looks.
            (claimed,) = claim.take([replay])
            failpoints.hit(failpoints.REPLAY_AFTER_CLAIM)
            with claim.unless(partial(is_taken_back, site, replay), [claimed], [replay]):
                refuse_going(site, before, replay)
                if taken_back(site, stable, before, replay):
                    site.tables.forget(path)
                    return epoch
            claim.give_back([claimed], [replay])
        raise too_fast(replay)


def taken_back(site: Site, stable: DeltaTable, before: DeltaTable, replay: Replay) -> bool:
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
