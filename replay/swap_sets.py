"""Makes generations that belong together the tables at once, and takes all of them back at once.

Readers by name, over HTTP too, follow the catalog: it names all of them by one commit, and until
then each reader gets the versions of before. The steps of `replay.swap`, for several:
0. the claims: all of them by one commit of the book, and by one of the catalog. Each row of the
   book names all that go together, so that who finds one of them after a crash knows the others;
1. for each, behind those that it reads: it is brought to the epoch that all are to have, with what
   those will be that it reads, and becomes the table by a commit of its own. Its note in the
   manifest is of a generation that is not live, which readers pass over;
2. the catalog: all of them by one commit;
3. the book: the same.
All have one epoch, or a reader of several at an older one would find this one new and that one old.
Where the live runners were let go after a crash, they went on: tables that are new already are
brought forward where they are, by whoever finishes the swap. A swap that was begun can also be
taken back by a rollback, whether it came to any table or not.

Whoever reads a table by its path has no catalog: each table is whole at any moment, and between
the commits of step 1 there are new ones beside old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import Conflict, NotFound
from kernel.positions import CLOSED, Epoch
from projections.run.catalog import Entry
from projections.sql.lineage import in_order, readers_of, reads_of
from replay.book import TOGETHER, Replay, ReplayBook, State
from replay.cancel import give_up_rollback
from replay.claims import PlaceClaim, claiming
from replay.generations import close_build, live_app, published_version
from replay.going_live import (
    ATTEMPTS,
    await_input,
    backward,
    before_swap,
    forward,
    go_live,
    refuse_another,
    refuse_part,
    refuse_replaced,
    still_placed,
    too_fast,
    with_options,
)
from replay.subject import Site, declaration, entry_of
from replay.swap import (
    GOES_ON,
    Swapped,
    became_the_table,
    committed,
    noted,
    swapped,
    taken_back,
    told_why,
    version_of,
)
from replay.swap_place import (
    SwapPlace,
    is_taken_back,
    is_the_table,
    lacks_input,
    place_now,
    refuse_going,
)

Bring = Callable[[Site, Replay, Epoch, bool], Replay]
"""Brings a generation to an epoch, as a site sees the others; True: where it is the table."""


def swap_set(
    site: Site, members: Sequence[Replay], bring: Bring, *, reason: str | None = None
) -> list[Swapped]:
    """Make built generations of several projections the tables, at once for readers by name.

    `reason`: why those are swapped for which no comparison speaks. Raises what `swap` raises; where
    nothing was changed by then all are as before, else the same command, or a rollback, goes on.
    """
    book = ReplayBook(site.lake, site.tables)
    members = still_placed(site, book, members)
    refuse_part(site, book, members)
    first = [with_options(site, _told(site, book, each, reason)) for each in _ordered(members)]
    with claiming(site, book, State.SWAPPING) as claim:
        done = _attempts(site, book, claim, first, bring)
    for each in done:
        close_build(site.lake, site.tables, each.name, each.generation)
    for each in done:
        book.refuse_moved(each, after=GOES_ON)
    go_live(site, [forward(each) for each in done])
    failpoints.hit(failpoints.REPLAY_AFTER_LIVE)
    versions = {each.name: version_of(site, each.name, each.generation) for each in done}
    book.record_all([(swapped(book, each, versions[each.name]), GOES_ON) for each in done])
    return [became_the_table(each, versions[each.name]) for each in done]


def rollback_set(site: Site, members: Sequence[Replay]) -> list[Swapped]:
    """Take generations of several projections back, at once for readers by name.

    They may be such as a swap that was interrupted has claimed: those that became no table are
    built ones again. Raises what `rollback` raises, before anything was changed.
    """
    book = ReplayBook(site.lake, site.tables)
    members = still_placed(site, book, members)
    refuse_part(site, book, members)
    replays = _ordered(members)[::-1]  # Who reads others goes before these.
    for each in replays:
        refuse_another(entry_of(site, each.name), each)
    try:
        with claiming(site, book, State.ROLLING_BACK) as claim:
            _take_back(site, claim, replays)
    except NotFound:
        # What died on its way to where nothing is any more would stay on it for ever.
        for each in [] if _any_taken_back(site, replays) else replays:
            if each.state is State.ROLLING_BACK and is_the_table(site, each):
                give_up_rollback(site, each)
        raise
    go_live(site, [backward(book, each) for each in replays])
    failpoints.hit(failpoints.REPLAY_AFTER_LIVE)
    ends = [_rolled_back(site, each) for each in replays]
    book.record_all([(each, (State.ROLLING_BACK,)) for each in ends])
    return [_told_back(site, each) for each in replays if is_the_table(site, each)]


def _take_back(site: Site, claim: PlaceClaim, first: Sequence[Replay]) -> None:
    replays = first
    for _ in range(ATTEMPTS):
        claimed = claim.take(replays)
        with claim.unless(lambda: _any_taken_back(site, first), claimed, first):
            befores = _befores(site, replays)
            if all(_restored(site, each, befores.get(each.name)) for each in replays):
                return
        replays = claimed
    if not _any_taken_back(site, first):
        claim.give_back(replays, first)
    raise too_fast(first[0])


def _ordered(replays: Sequence[Replay]) -> list[Replay]:
    """Return generations so that each comes after those that it reads."""
    of = {each.name: each for each in replays}
    reads = reads_of([declaration(each.name, each.text) for each in replays])
    return [of[name] for name in in_order(reads)]


def _told(site: Site, book: ReplayBook, replay: Replay, reason: str | None) -> Replay:
    """Refuse what was replaced; keep the reason of what no comparison speaks for."""
    if replay.state is State.SWAPPING:
        return replay
    refuse_replaced(site, book, replay)
    return replay if replay.state is State.VERIFIED else told_why(book, replay, reason)


def _attempts(
    site: Site, book: ReplayBook, claim: PlaceClaim, first: Sequence[Replay], bring: Bring
) -> list[Replay]:
    """Make all of them the tables; return them as of the epoch that all have."""
    replays = first
    for _ in range(ATTEMPTS):
        for each in replays:
            book.refuse_moved(each, after=GOES_ON)
        claimed = claim.take(_brought(site, replays, bring))
        with claim.unless(lambda: _any_is_table(site, first), claimed, first):
            done = _published(site, claim, claimed, bring)
        if done is not None:
            return done
        replays = claimed
    if not _any_is_table(site, first):
        claim.give_back(replays, first)
    raise too_fast(first[0])


def _brought(site: Site, replays: Sequence[Replay], bring: Bring) -> list[Replay]:
    """Bring all of them to the least epoch that none is beyond, be they built ones or tables."""
    places = [place_now(site, each) for each in replays]
    epoch = _epoch(places)
    coming: dict[str, Entry] = {}
    brought = []
    for place in places:
        replay, seen = place.replay, replace(site, coming=dict(coming))
        if not place.swapped and lacks_input(site, place):
            await_input(site, replay, place.live)
        if replay.epoch < epoch:
            replay = bring(seen, replay, epoch, place.swapped)
        if place.swapped:
            coming[replay.name] = _entry(site, replay)
        brought.append(replay)
    return brought


def _entry(site: Site, replay: Replay) -> Entry:
    """Return what is deployed once a generation is live."""
    return replace(entry_of(site, replay.name), generation=replay.generation, text=replay.text)


def _epoch(places: Sequence[SwapPlace]) -> Epoch:
    """Return the least epoch that no live one has passed, nor any of the new ones."""
    lives = (place.live for place in places if not place.swapped)
    return max([*lives, *(place.replay.epoch for place in places)])


def _published(
    site: Site, claim: PlaceClaim, claimed: Sequence[Replay], bring: Bring
) -> list[Replay] | None:
    """Make all of them the tables as of one epoch; None where a live one was faster."""
    # All of them first: what one cannot reach, none is to be the table at.
    replays = _brought(site, claimed, bring)
    epoch = max(each.epoch for each in replays)
    for each in replays:
        if each.epoch != epoch:
            raise _behind(each, epoch)
    coming: dict[str, Entry] = {}
    for each in replays:
        place = place_now(site, each)
        if not place.swapped:
            decl = declaration(each.name, each.text)
            if any(readers_of(name, [decl]) for name in coming):
                claim.hold(claimed)  # It may take a while.
                bring(replace(site, coming=dict(coming)), each, epoch, False)
                place = place_now(site, each)
            claim.refuse_lost(claimed)
            if place.live > epoch or not committed(site, place, epoch):
                return None
            failpoints.hit(failpoints.REPLAY_AFTER_SWAP)
        noted(site, each)
        coming[each.name] = _entry(site, each)
    return replays


def _behind(replay: Replay, epoch: Epoch) -> Conflict:
    return Conflict(
        f"generation {replay.generation} of {replay.name} cannot be brought to epoch {epoch}, "
        f"where the others are: what it reads is at epoch {replay.epoch}",
        remedy=f"penstock projection status {replay.name}; then, once that has come further, the "
        "same command again",
    )


def _any_is_table(site: Site, replays: Sequence[Replay]) -> bool:
    return any(is_the_table(site, each) for each in replays)


def _any_taken_back(site: Site, replays: Sequence[Replay]) -> bool:
    return any(is_taken_back(site, each) for each in replays)


def _befores(site: Site, replays: Sequence[Replay]) -> Mapping[str, DeltaTable]:
    """Return the tables of before that are to come back. Raises `NotFound` where one is gone."""
    found = {}
    for each in replays:
        if not is_the_table(site, each) or is_taken_back(site, each):
            continue
        path = site.lake.path(f"projection/{each.name}")
        found[each.name] = before_swap(DeltaTable(path), path, each)
        refuse_going(site, found[each.name], each)
    return found


def _restored(site: Site, replay: Replay, before: DeltaTable | None) -> bool:
    """Make a table what it was before, if it is to be; say whether the live one was not faster."""
    if before is None:
        return True
    failpoints.hit(failpoints.REPLAY_AFTER_CLAIM)
    path = site.lake.path(f"projection/{replay.name}")
    if not taken_back(site, DeltaTable(path), before, replay):
        return False
    site.tables.forget(path)
    failpoints.hit(failpoints.REPLAY_AFTER_SWAP)
    return True


def _rolled_back(site: Site, replay: Replay) -> Replay:
    if not is_the_table(site, replay):
        return replay.now(State.BUILT)  # Its swap was given up before it came to its table.
    version = version_of(site, replay.name, replay.base)
    return replay.now(State.ROLLED_BACK, detail={"version": version, TOGETHER: replay.together})


def _told_back(site: Site, replay: Replay) -> Swapped:
    stable = DeltaTable(site.lake.path(f"projection/{replay.name}"))
    cursor = stable.transaction_version(live_app(replay.name, replay.base))
    return Swapped(
        name=replay.name,
        generation=replay.base,
        replaced=replay.generation,
        epoch=Epoch(0 if cursor in (None, CLOSED) else cursor),
        version=published_version(stable, replay.base),
    )
