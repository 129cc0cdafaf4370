"""Removes what generations leave behind: no vacuum of a table looks beneath it, into `_gen`.

Of a generation that was the table the files go that no version names which anybody may still read:
none that was the newest within the retention, which is how long a rollback is possible, and none
that the newest epoch, a build that is not finished or a savepoint needs. A build that ended, or
whose place another generation took for so long that no rollback brings it back, goes as a whole.
Each file goes by itself, so that what was begun and not finished is gone on with the next time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from deltalake import DeltaTable

from kernel.errors import Conflict, LeaseLost
from lake import storage
from lake.attempts import Attempts
from lake.savepoints import SavepointBook
from lake.table_files import live_files
from replay.book import CLAIMED, OVER, READY, UNFINISHED, Replay, ReplayBook, State
from replay.cancel import ABANDONED_AFTER, is_alive
from replay.deployment import drop_ended_claims
from replay.generations import live_app
from replay.slices import build_of
from replay.subject import Site

_WAS_THE_TABLE = (State.SWAPPED, State.ROLLED_BACK)
_LOG = "_delta_log"


def remove_leftovers(
    site: Site, *, retention: timedelta, now: datetime | None = None
) -> list[tuple[str, int]]:
    """Remove what generations left that nobody needs any more; return which ones had some.

    An error of one projection keeps no other from being looked after, and is raised behind them.
    Where others write faster to the books, the rest is left for the next time.
    """
    now = now or datetime.now(UTC)
    with suppress(LeaseLost):
        drop_ended_claims(site)
    deployed = site.deployed.deployment().generations
    found: dict[str, list[Replay]] = {}
    for replay in ReplayBook(site.lake, site.tables).all():
        found.setdefault(replay.name, []).append(replay)
    removed: list[tuple[str, int]] = []
    attempts = Attempts()
    for name, replays in found.items():
        live = deployed.get(name)
        with attempts.of(f"projection/{name}"), suppress(LeaseLost):
            removed += _Leftovers(site, name, replays, live, now - retention, now).remove()
    for error in attempts.failed.values():
        raise error
    return removed


@dataclass(frozen=True, slots=True)
class _Leftovers:
    """What the generations of one projection left. `live` is None where it is not deployed."""

    site: Site
    name: str
    replays: Sequence[Replay]
    live: int | None
    before: datetime
    now: datetime

    def remove(self) -> list[tuple[str, int]]:
        folders = set(storage.folders_in(f"{self._root}/_gen"))
        there = [each for each in self.replays if str(each.generation) in folders]
        named = self._named() if there else None
        return [
            (self.name, replay.generation)
            for replay in there
            if (named is not None and self._remove_old(replay, named))
            or (self._is_over(replay) and self._remove_whole(replay, named or set()))
        ]

    @property
    def _root(self) -> str:
        return self.site.lake.path(f"projection/{self.name}")

    def _is_over(self, replay: Replay) -> bool:
        """Say whether a generation will never be the table; one that cannot any more is cancelled.

        To swap it, to go on with it and to compare it is refused where it was built to replace
        another one than the live one. A rollback may bring that one back, while it is possible.
        """
        if replay.state in OVER:
            return _is_older(replay, self.now - ABANDONED_AFTER)
        if self.live in (None, replay.base, replay.generation):
            return False
        swaps = (each for each in self.replays if each.state in (*CLAIMED, *_WAS_THE_TABLE))
        rests = replay.state in (*UNFINISHED, *READY) and not is_alive(replay)
        if not rests or not all(_is_older(each, self.before) for each in (replay, *swaps)):
            return False
        detail = {"was": replay.state.value, "why": f"generation {self.live} is live"}
        cancelled = replay.now(State.CANCELLED, detail=detail)
        with suppress(Conflict):
            self._book.record(cancelled, after=(replay.state,))
            return True
        return False

    def _remove_whole(self, replay: Replay, named: set[str]) -> bool:
        """Remove a generation that was never the table."""
        if any(path.startswith(f"{_folder(replay)}/") for path in named):
            return False
        storage.remove(f"{self._root}/{_folder(replay)}")
        return True

    def _remove_old(self, replay: Replay, named: set[str]) -> bool:
        """Remove what no version names of one that was the table; with the last file the folder."""
        if replay.state not in _WAS_THE_TABLE or not _is_older(replay, self.before):
            return False
        left = self._files(replay)
        book = SavepointBook(self.site.lake, self.site.tables)

        def needed() -> set[str]:
            since = self._named_since()
            return left if since is None else since

        removed = book.remove(self._root, sorted(left - named), needed=needed)
        if len(removed) == len(left):
            storage.remove(f"{self._root}/{_folder(replay)}")
        return bool(removed) or not left

    def _files(self, replay: Replay) -> set[str]:
        """Return the files of a generation, by path below the table's root, without its log."""
        place, folder = storage.place_of(self._root)[1], _folder(replay)
        found = storage.files_below(f"{self._root}/{folder}")
        paths = {file.path.removeprefix(f"{place}/") for file in found}
        return {path for path in paths if not path.startswith(f"{folder}/{_LOG}/")}

    def _named_since(self) -> set[str] | None:
        """Return what `_named` does, as it is now; None where a generation moved on since.

        Asked behind an announcement: a rollback that had claimed its place before may be done by
        now, and one that claims it from now on finds the announcement and is refused.
        """
        replays = self._book.of(self.name)
        states = {each.generation: each.state for each in replays}
        if states != {each.generation: each.state for each in self.replays}:
            return None
        return replace(self, replays=replays)._named()

    def _named(self) -> set[str] | None:
        """Return the files that versions name which somebody may read; None where nobody knows.

        Files of a generation come into the table by a swap or a rollback, and each later commit
        only takes some out: what these left within the retention, and the version that it began
        with, name all. A rollback that is not done, however long, needs the one before its swap.
        """
        table = self.site.tables.open(self._root)
        if table is None:
            return None
        first, standing = _versions_of_log(self._root, self.before)
        swaps = [s for s in self._book.swaps(self.name) if not _is_older(s, self.before)]
        backs = [each for each in self.replays if each.state is State.ROLLING_BACK]
        if any("version" not in each.detail for each in (*swaps, *backs)):
            return None
        versions = {table.version(), standing, *self._versions_of_builds()}
        versions |= {int(str(swap.detail["version"])) for swap in swaps}
        versions |= {int(str(back.detail["version"])) - 1 for back in backs}
        if self.live is not None:
            run = self.site.manifest.projected().get(live_app(self.name, self.live))
            at = None if run is None else run.tables.get(f"projection/{self.name}")
            versions |= set() if at is None else {at.version}
        readable = sorted(version for version in versions if version >= first)
        return {p for v in readable for p in live_files(DeltaTable(self._root, version=v))}

    def _versions_of_builds(self) -> set[int]:
        """Return the versions that builds begin with which are not finished."""
        builds = (build_of(each.detail) for each in self.replays if each.state in UNFINISHED)
        bases = (build.base for build in builds if build is not None)
        return {base.version for base in bases if base is not None and base.savepoint is None}

    @property
    def _book(self) -> ReplayBook:
        return ReplayBook(self.site.lake, self.site.tables)


def _is_older(replay: Replay, moment: datetime) -> bool:
    return replay.at is not None and replay.at < moment


def _folder(replay: Replay) -> str:
    return f"_gen/{replay.generation}"


def _versions_of_log(root: str, moment: datetime) -> tuple[int, int]:
    """Return the first version that a table's log still tells, and the newest one at a moment."""
    commits, checkpoints = dict[int, float](), set[int]()
    for file in storage.files_in(f"{root}/{_LOG}"):
        number, _, kind = file.name.partition(".")
        if number.isdigit() and kind == "json":
            commits[int(number)] = file.written
        elif number.isdigit() and kind.startswith("checkpoint"):
            checkpoints.add(int(number))
    first = 0 if 0 in commits else min(checkpoints)
    older = (v for v, at in commits.items() if v >= first and at < moment.timestamp())
    return first, max(older, default=first)
