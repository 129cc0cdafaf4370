"""Makes built generations the tables, one or several that belong together, and takes them back.

Readers by name, over HTTP too, follow the catalog: it names all of them by one commit, and until
then each reader gets the versions of before. Order, and what a crash between the steps leaves:
0. the claims (`replay.claims`): all of them by one commit of the book, so that nobody cancels a
   generation, whose files a commit is about to name. Each row names all that go together, so that
   who finds one of them after a crash knows the others. Behind them the catalog is looked at, by a
   commit: what is deployed since finds the claims, and is refused where it reads a generation; and
   the live runners hold still;
1. for each, behind those that it reads: it is brought to the epoch that all are to have, with what
   those will be that it reads, and becomes the table by one commit: files, schema, the old writer
   closed, the new one at its epoch. From here on the live runner, which does not know it yet,
   refuses to write (its generation is closed). Its note in the manifest is of a generation that is
   not live, which readers pass over. A build that slept is closed next;
2. the catalog: all of them by one commit. The live runners go on with the new generations;
3. the book: the same.
The same command again finishes what is left: every step sees whether it was done. Nothing needs
the live runners to stop: a commit of theirs in the moment of step 1 makes one of the two fail and
look again. One that runs already when the claim is made may commit once more, and then holds still:
so three attempts are enough. Claims are given back before the next one, unless one is a table.

All have one epoch, or a reader of several at an older one would find this one new and that one old.
Where the live runners were let go after a crash, they went on: tables that are new already are
brought forward where they are, by whoever finishes the swap. A swap of several that was begun can
also be taken back by a rollback, whether it came to any table or not.

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
from projections.sql.statements.lineage import in_order, readers_of, reads_of
from replay.book import TOGETHER, Replay, ReplayBook, State
from replay.cancel import give_up_rollback
from replay.claims import PlaceClaim, claiming
from replay.deployment import check_together
from replay.generations import close_build, live_app, published_version
from replay.going_live import (
    ATTEMPTS,
    await_input,
    backward,
    before_swap,
    forward,
    go_live,
    overtaken,
    refuse_another,
    refuse_overtaken,
    refuse_part,
    refuse_replaced,
    still_placed,
    too_fast,
    with_options,
)
from replay.subject import Site, declaration, entry_of
from replay.swap_commits import (
    GOES_ON,
    BeforeSwap,
    Swapped,
    became_the_table,
    committed,
    keep_off,
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
    """Make built generations of projections the tables, at once for readers by name.

    `bring` is called for what lacks input: no table steps back in time. `reason`: why those are
    swapped for which no comparison speaks; it is kept in the book, before anything else. Raises
    `Conflict` when another generation went live since a build, or a live one keeps moving faster
    than the new one follows, where a query does not go with what was deployed meanwhile, and
    `Cancelled` when somebody cancelled one meanwhile. Where nothing was changed by then all are
    as before, else the same command, or a rollback of several, goes on.
    """
    book = ReplayBook(site.lake, site.tables)
    members = still_placed(site, book, members)
    refuse_part(site, book, members)
    first = [with_options(site, _told(site, book, each, reason)) for each in _ordered(members)]
    if all(each.state is not State.SWAPPING for each in first):
        # Something may have been deployed since the builds; to bring them forward takes a while.
        check_together(site, [_entry(site, each) for each in first])
    with claiming(site, book, State.SWAPPING) as claim:
        done = _attempts(site, book, claim, first, bring)
    for each in done:
        # Whoever built it may have slept since, and would go on where it was.
        close_build(site.lake, site.tables, each.name, each.generation)
    for each in done:
        book.refuse_moved(each, after=GOES_ON)
    go_live(site, [forward(each) for each in done])
    failpoints.hit(failpoints.REPLAY_AFTER_LIVE)
    versions = {each.name: version_of(site, each.name, each.generation) for each in done}
    book.record_all([(swapped(book, each, versions[each.name]), GOES_ON) for each in done])
    overtaken(book, done)
    return [became_the_table(each, versions[each.name]) for each in done]


def rollback_set(site: Site, members: Sequence[Replay]) -> list[Swapped]:
    """Take generations of projections back to those before them, at once for readers by name.

    Each table is what it was at the swap; the live runners then bring them up from their own
    epochs. They may be such as a swap that was interrupted has claimed: those that became no table
    are built ones again, and nothing is returned of them. Raises `NotFound` where a table of that
    moment is not kept any more or about to go: a rollback that died before is given up then. Raises
    `Conflict` when a live generation keeps committing, where a query that comes back does not go
    with what was deployed since, and where another process has finished it. Nothing was changed
    then.
    """
    book = ReplayBook(site.lake, site.tables)
    members = still_placed(site, book, members)
    refuse_part(site, book, members)
    replays = _ordered(members)[::-1]  # Who reads others goes before these.
    for each in replays:
        refuse_overtaken(site, book, each)
        refuse_another(entry_of(site, each.name), each)
    try:
        _befores(site, replays)  # What is not kept is refused before anybody holds still for it.
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
    # Another process may have finished it.
    book.record_all([(each, (State.ROLLING_BACK, State.ROLLED_BACK)) for each in ends])
    return [_told_back(site, each) for each in replays if is_the_table(site, each)]


def _take_back(site: Site, claim: PlaceClaim, first: Sequence[Replay]) -> None:
    replays = first
    for _ in range(ATTEMPTS):
        # The query of before comes back with its sink, which another projection may have since,
        # and without columns that another one may read since: the claim looks.
        claimed = claim.take(replays, begun=_any_taken_back(site, first))
        with claim.unless(lambda: _any_taken_back(site, first), claimed, first):
            for each in replays:
                if not is_the_table(site, each):
                    keep_off(site, each)
            befores = _befores(site, replays)
            if all(_restored(site, each, befores.get(each.name)) for each in replays):
                return
        replays = claimed if _any_taken_back(site, first) else claim.give_back(claimed, first)
    raise too_fast(first[0])


def _ordered(replays: Sequence[Replay]) -> list[Replay]:
    """Return generations so that each comes after those that it reads."""
    of = {each.name: each for each in replays}
    reads = reads_of([declaration(each.name, each.text) for each in replays])
    return [of[name] for name in in_order(reads)]


def _told(site: Site, book: ReplayBook, replay: Replay, reason: str | None) -> Replay:
    """Refuse what was replaced; keep the reason of what no comparison speaks for."""
    refuse_replaced(site, book, replay)
    return replay if replay.state is State.VERIFIED else told_why(book, replay, reason)


def _attempts(
    site: Site, book: ReplayBook, claim: PlaceClaim, first: Sequence[Replay], bring: Bring
) -> list[Replay]:
    """Make all of them the tables; return them as of the epoch that all have."""
    replays = first
    for attempt in range(ATTEMPTS):
        for each in replays:
            book.refuse_moved(each, after=GOES_ON)
        claimed = claim.take(_brought(site, replays, bring, asks=attempt == 0))
        with claim.unless(lambda: _any_is_table(site, first), claimed, first):
            done = _published(site, book, claim, claimed, bring)
        if done is not None:
            return done
        replays = claimed if _any_is_table(site, first) else claim.give_back(claimed, first)
    raise too_fast(first[0])


def _brought(
    site: Site, replays: Sequence[Replay], bring: Bring, *, asks: bool = False
) -> list[Replay]:
    """Bring all of them to the least epoch that none is beyond, be they built ones or tables.

    `asks`: where one reads other projections, also if it has that epoch: what these have changes
    at the epoch where they stand, too, and nothing tells. Raises `Conflict` where one cannot be
    brought so far.
    """
    places = [place_now(site, each) for each in replays]
    epoch = _epoch(places)
    coming: dict[str, Entry] = {}
    brought = []
    for place in places:
        replay, seen = place.replay, replace(site, coming=dict(coming))
        lacks = not place.swapped and lacks_input(site, place, epoch)
        if lacks:
            await_input(site, replay, epoch)
        asked = asks and not place.swapped and _reads_others(site, replay, replays)
        if lacks or asked or (place.swapped and replay.epoch < epoch):
            replay = bring(seen, replay, epoch, place.swapped)
        elif replay.epoch < epoch:
            replay = replay.now(replay.state, epoch=epoch, detail=replay.detail)
        if place.swapped:
            coming[replay.name] = _entry(site, replay)
        brought.append(replay)
    most = max(epoch, *(each.epoch for each in brought))
    for each in brought:
        if each.epoch != most:
            raise _behind(each, most)
    return brought


def _reads_others(site: Site, replay: Replay, together: Sequence[Replay]) -> bool:
    """Say whether a query names projections that are deployed, beside those that go with it."""
    decl, names = declaration(replay.name, replay.text), {each.name for each in together}
    declared = site.deployed.deployment().declared
    return any(readers_of(other, [decl]) for other in declared if other not in names)


def _entry(site: Site, replay: Replay) -> Entry:
    """Return what is deployed once a generation is live."""
    return replace(entry_of(site, replay.name), generation=replay.generation, text=replay.text)


def _epoch(places: Sequence[SwapPlace]) -> Epoch:
    """Return the least epoch that no live one has passed, nor any of the new ones."""
    lives = (place.live for place in places if not place.swapped)
    return max([*lives, *(place.replay.epoch for place in places)])


def _published(
    site: Site, book: ReplayBook, claim: PlaceClaim, claimed: Sequence[Replay], bring: Bring
) -> list[Replay] | None:
    """Make all of them the tables as of one epoch; None where a live one was faster."""
    # All of them first: what one cannot reach, none is to be the table at.
    replays = _brought(site, claimed, bring)
    epoch = replays[0].epoch
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
            # Whoever slept here may find that another process finished it, and took it back.
            book.refuse_moved(each, after=GOES_ON)
        noted(site, each)
        coming[each.name] = _entry(site, each)
    return replays


def _behind(replay: Replay, epoch: Epoch) -> Conflict:
    return Conflict(
        f"generation {replay.generation} of {replay.name} cannot be brought to epoch {epoch}, "
        f"which it has to have as the table: what it reads is at epoch {replay.epoch}",
        remedy=f"penstock projection status {replay.name}; then, once that has come further, the "
        "same command again",
    )


def _any_is_table(site: Site, replays: Sequence[Replay]) -> bool:
    return any(is_the_table(site, each) for each in replays)


def _any_taken_back(site: Site, replays: Sequence[Replay]) -> bool:
    return any(is_taken_back(site, each) for each in replays)


def _befores(site: Site, replays: Sequence[Replay]) -> Mapping[str, BeforeSwap]:
    """Return the tables of before that are to come back. Raises `NotFound` where one is gone."""
    found = {}
    for each in replays:
        path = site.lake.path(f"projection/{each.name}")
        stable = DeltaTable(path)
        if stable.transaction_version(live_app(each.name, each.generation)) in (None, CLOSED):
            continue
        before = before_swap(stable, path, each)
        refuse_going(site, before, each)
        found[each.name] = BeforeSwap(stable=stable, before=before)
    return found


def _restored(site: Site, replay: Replay, found: BeforeSwap | None) -> bool:
    """Make a table what it was before, if it is to be; say whether the live one was not faster."""
    if found is None:
        return True
    failpoints.hit(failpoints.REPLAY_AFTER_CLAIM)
    if not taken_back(site, found.stable, found.before, replay):
        return False
    site.tables.forget(site.lake.path(f"projection/{replay.name}"))
    failpoints.hit(failpoints.REPLAY_AFTER_SWAP)
    return True


def _rolled_back(site: Site, replay: Replay) -> Replay:
    if not is_the_table(site, replay):
        return replay.now(State.BUILT)  # Its swap was given up before it came to its table.
    detail: dict[str, object] = {"version": version_of(site, replay.name, replay.base)}
    if replay.together:
        detail[TOGETHER] = replay.together
    return replay.now(State.ROLLED_BACK, detail=detail)


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
