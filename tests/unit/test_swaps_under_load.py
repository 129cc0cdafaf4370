"""A swap or a rollback while new epochs come without a pause: the live runner holds still for it.

The pipeline's own loop runs, without Spark, and gets a turn wherever it could come between.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from kernel import failpoints
from kernel.errors import Conflict, Unavailable
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from projections.run.catalog import CLAIM, CLAIMED_FOR, DROPPED, DeployedCatalog, Deployment
from projections.run.derived_tables import DerivedTables
from projections.run.projector import Projector
from replay import going_live, swap_commits
from replay.book import READY, Replay, ReplayBook, State
from replay.deployment import hold_places
from replay.generation_files import remove_leftovers
from replay.subject import Site, entry_of, generation_target, reachable, subject_of
from tests.support.lake.handmade import NoSpark
from tests.support.lake.swaps import rollback, swap
from tests.unit.test_projection_rounds import DOUBLED, PERSONS, SHAPES, Rounds

NAME = "persons"


class Load(Rounds):
    """Each turn of the loop finds a new epoch. `late`: turns that began before they saw a claim."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(place)
        self.patches = monkeypatch
        self.visits: Counter[str] = Counter()
        self.caught_up = 0
        self.commits = 0
        self.late = 1
        self.turn()
        self.projector = Projector(NoSpark(), self.lake, Tables(), self.made.manifest)

    def turn(self) -> None:
        self.visits.update("ab")
        self.seen("ab")
        self.step()

    def turn_amid_a_commit(self) -> None:
        self.commits += 1
        with self.patches.context() as patches:
            if self.commits <= self.late:
                patches.setattr(Deployment, "claimed", lambda *_: False)
            self.turn()

    def build(self) -> None:
        epoch = self.projecting.states[NAME].epoch
        rows = [{"person": p, "n": 2 * n, "_epoch": epoch} for p, n in self.visits.items()]
        built = pa.Table.from_pylist(rows, SHAPES[NAME])
        self.made.build(NAME, built, epoch, text=DOUBLED, base_text=PERSONS)

    def catch_up(self, replay: Replay) -> Replay:
        self.caught_up += 1
        site = self.made.site
        subject = subject_of(site, NAME, DOUBLED)
        up_to = reachable(site, subject)
        target = generation_target(site, subject, replay.generation, up_to, include_late=False)
        self.projector.run(subject.plan, target, subject.catalog, up_to)
        self.turn()
        now = replay.now(replay.state, epoch=up_to, detail=replay.detail)
        after = READY if replay.state in READY else None
        return ReplayBook(self.lake, Tables()).record(now, after=after)

    def state(self) -> State:
        return ReplayBook(self.lake, Tables()).of(NAME)[-1].state

    def doubled(self) -> bool:
        return self.rows(NAME) == {person: 2 * n for person, n in self.visits.items()}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    found = Load(tmp_path, monkeypatch)
    for commit in ("publish", "put_back"):
        monkeypatch.setattr(swap_commits, commit, amid(found, getattr(swap_commits, commit)))
    found.build()
    return found


def hold(site: Site, generation: int) -> None:
    hold_places(site, [replace(entry_of(site, NAME), generation=generation)])


def amid(load: Load, commit: Callable[..., None]) -> Callable[..., None]:
    def committing(*arguments: object, **settings: object) -> None:
        load.turn_amid_a_commit()
        commit(*arguments, **settings)

    return committing


def test_p10_three_attempts_are_enough_under_a_steady_load(load: Load) -> None:
    """The live one moves on while the first one catches up, and amid the commit of the second."""
    load.turn()
    done = swap(load.made.site, NAME, load.catch_up)
    assert (done.generation, load.caught_up, load.commits) == (2, 3, 2)
    load.turn()
    assert load.error(NAME) is None
    assert load.doubled()
    assert load.fits()
    assert not load.made.deployed.deployment().claimed(NAME)


def test_p10_a_rollback_holds_the_live_one_still_too(load: Load) -> None:
    load.late = 0
    swap(load.made.site, NAME, load.catch_up)
    load.turn()
    load.commits, load.late = 0, 1
    assert rollback(load.made.site, NAME).generation == 1
    assert (load.commits, load.state()) == (2, State.ROLLED_BACK)
    load.turn()
    assert load.error(NAME) is None
    assert load.rows(NAME) == load.visits
    assert load.fits()


def test_a_live_one_that_does_not_hold_still_ends_the_third_attempt(load: Load) -> None:
    load.late = 99
    with pytest.raises(Conflict, match="committed during each of 3 attempts") as refused:
        swap(load.made.site, NAME, load.catch_up)
    assert f"penstock projection pause {NAME}, the same command again" in refused.value.remedy
    assert (load.commits, load.state()) == (3, State.BUILT)
    load.turn()
    assert load.rows(NAME) == load.visits, "it goes on at once"
    assert entry_of(load.made.site, NAME).generation == 1


def without_notes(load: Load) -> None:
    """Have the loop write the rows of an epoch, and storage refuse the notes of its round."""

    def lost(*_: object) -> None:
        raise Unavailable("no answer")

    load.late = 0
    load.visits.update("ab")
    load.seen("ab", noted=False)
    with load.patches.context() as patches:
        patches.setattr(Manifest, "project_all", lost)
        with pytest.raises(Unavailable):
            load.step()


def test_a_swap_waits_for_the_notes_of_the_round_whose_rows_are_there(load: Load) -> None:
    without_notes(load)
    # Not the module's own `sleep`: other threads of the test run have that, too.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: load.step())
    load.patches.setattr(going_live, "time", clock)
    swap(load.made.site, NAME, load.catch_up)
    load.turn()
    assert load.doubled()
    assert load.fits()


def test_a_swap_tells_that_a_round_ended_without_its_notes(load: Load) -> None:
    """Nobody moves: to pause the projection would not help."""
    without_notes(load)
    load.patches.setattr(going_live, "NOTED_WITHIN_S", 0.0)
    with pytest.raises(Conflict, match="has not noted its typed tables") as refused:
        swap(load.made.site, NAME, load.catch_up)
    assert "See that the pipeline runs" in refused.value.remedy
    assert load.state() is State.BUILT
    load.step()
    swap(load.made.site, NAME, load.catch_up)
    load.turn()
    assert load.doubled()


class Later(datetime):
    """A clock that is behind the end of every claim."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Later:
        return cls.fromtimestamp(datetime.now(UTC).timestamp(), tz) + CLAIMED_FOR


@pytest.mark.parametrize("command", ["swap", "rollback"])
def test_p10_the_live_one_goes_on_a_minute_after_the_command_died(
    load: Load, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load.late = 0
    if command == "rollback":
        swap(load.made.site, NAME, load.catch_up)
        load.turn()

    def given() -> None:
        if command == "swap":
            swap(load.made.site, NAME, load.catch_up)
        else:
            rollback(load.made.site, NAME)

    failpoints.arm(failpoints.REPLAY_AFTER_CLAIM)
    with pytest.raises(failpoints.Crash):
        given()
    before = load.version(NAME)
    load.turn()
    assert load.version(NAME) == before
    assert (load.error(NAME), load.error("numbers")) == (None, None)
    with monkeypatch.context() as patches:
        patches.setattr("projections.run.catalog.datetime", Later)
        load.turn()
    assert load.version(NAME) > before
    assert load.fits()
    given()
    assert load.state() is (State.SWAPPED if command == "swap" else State.ROLLED_BACK)
    load.turn()
    assert load.fits()
    assert load.doubled() is (command == "swap")


def test_a_claim_by_a_wrong_clock_holds_nothing_for_long(load: Load) -> None:
    until = datetime.now(UTC) + timedelta(hours=3)
    deployment = load.made.deployed.deployment()
    for at, holds in ((until, False), (datetime.now(UTC) + CLAIMED_FOR, True)):
        deployment.claims[NAME] = at
        assert deployment.claimed(NAME) is holds


def test_claims_that_are_over_are_dropped_from_the_catalog(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions read no catalog that has one, whatever its time."""
    site = load.made.site
    hold(site, 2)
    remove_leftovers(site, retention=timedelta(days=1))
    assert site.deployed.deployment().claimed(NAME)
    with monkeypatch.context() as patches:
        patches.setattr("projections.run.catalog.datetime", Later)
        remove_leftovers(site, retention=timedelta(days=1))
    assert [e.status for e in site.deployed.entries() if e.kind == CLAIM] == [DROPPED]
    assert site.deployed.deployment().claims == {}
    version = site.deployed.version()
    remove_leftovers(site, retention=timedelta(days=1))
    assert site.deployed.version() == version


def test_a_claim_makes_nobody_else_due(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(DerivedTables, "try_now", lambda _: tried.append(1))
    load.projecting.step()
    states = {name: (s.epoch, s.due_at) for name, s in load.projecting.states.items()}
    hold(load.made.site, 2)
    load.projecting.step()
    assert {name: (s.epoch, s.due_at) for name, s in load.projecting.states.items()} == states
    assert not tried
    hold(load.made.site, 2)
    DeployedCatalog(load.lake, Tables()).try_again("typed/shop.a")
    load.projecting.step()
    assert tried, "whoever asks for a held table's retry is heard, also beside a claim"
