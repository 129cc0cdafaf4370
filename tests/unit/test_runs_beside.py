"""Projections that take long are computed beside the rounds: the others go on, and all fit."""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel.errors import BeyondThisProcess, InvalidRequest, Unavailable
from projections.run import whole_tables
from projections.run.catalog import DROPPED, PAUSED
from projections.run.projection_rounds import Projecting
from projections.run.projector import Projector
from projections.run.runs_beside import RunsBeside
from schemas.registry import MemoryRegistry
from tests.support.lake.handmade import NoSpark
from tests.unit.test_projection_rounds import PERSONS, SHAPES, Rounds

OTHER = PERSONS.replace("persons", "other").replace("'1 hour'", "'1 second'")


class Beside(Rounds):
    """`numbers` reads `persons`, and `other` is by itself; what takes long leaves the rounds."""

    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.deploy("other", OTHER)
        self.made.run("other", SHAPES["persons"].empty_table(), 0)
        self.projecting = self.started()

    def started(self) -> Projecting:
        # No clock decides, unless a test says so.
        self.beside = RunsBeside(slow_ms=math.inf)
        return Projecting(
            NoSpark(), self.lake, MemoryRegistry(), on_run=lambda *_: None, beside=self.beside
        )

    def step(self) -> None:
        for state in self.projecting.states.values():
            state.due_at = 0.0
        self.projecting.step()

    def settled(self) -> bool:
        """Step until every projection has the newest epoch; say whether none has an error."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.step()
            states = self.projecting.states.values()
            if all(state.epoch == self.made.next_epoch - 1 for state in states):
                return all(state.error is None for state in states)
            for group in self.beside._groups:
                group.ended.wait(10)
        return False

    def epoch(self, name: str) -> int:
        return self.projecting.states[name].epoch


@pytest.fixture
def rounds(tmp_path: Path) -> Beside:
    return Beside(tmp_path)


class Gate:
    """Makes runs of one projection take long: beside the rounds they wait until it is open."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.entered = threading.Event()
        run = Projector.run

        def slow(own: Projector, plan: object, *more: object) -> object:
            if plan.name == name and own._brief:
                raise BeyondThisProcess("it takes long")
            if plan.name == name:
                self.entered.set()
                assert self.open.wait(60)
            return run(own, plan, *more)

        monkeypatch.setattr(Projector, "run", slow)


@pytest.fixture
def slow_persons(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate("persons", monkeypatch)
    yield gate
    gate.open.set()


def test_a_slow_projection_delays_no_other(rounds: Beside, slow_persons: Gate) -> None:
    for persons in ("ab", "a", "c"):
        epoch = rounds.seen(persons)
        rounds.step()
        assert slow_persons.entered.wait(60)
        assert rounds.epoch("other") == epoch
        assert rounds.rows("other")["a"] == (1 if persons == "ab" else 2)
    assert rounds.rows("persons") == {}
    assert rounds.projecting.documents()["persons"]["beside_s"] > 0
    assert rounds.projecting.documents()["other"]["beside_s"] is None
    assert rounds.error("persons") is rounds.error("numbers") is None, "nothing is wrong"
    assert rounds.projecting.step() is False, "nothing is left to do until it has ended"
    slow_persons.open.set()
    assert rounds.settled()
    assert rounds.rows("persons") == {"a": 2, "b": 1, "c": 1}
    assert rounds.fits()


def test_p5_who_reads_a_slow_one_is_computed_with_it(rounds: Beside, slow_persons: Gate) -> None:
    first = rounds.seen("aab")
    rounds.step()
    assert slow_persons.entered.wait(60)
    rounds.seen("ccc")
    rounds.step()
    slow_persons.open.set()
    (group,) = rounds.beside._groups
    assert group.ended.wait(60)
    assert group.names == {"persons", "numbers"}
    assert rounds.rows("persons") == {"a": 2, "b": 1}, "as of the round that they left"
    assert rounds.fits()
    for name in group.names:
        runs = rounds.made.manifest.history_of(f"projection/{name}/g1")
        assert runs[-1].epoch == first
    assert rounds.settled()
    assert rounds.rows("numbers") == {1: 1, 2: 1, 3: 1}


def test_p5_what_a_slow_one_reads_is_as_of_the_round_that_it_left(
    rounds: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate("numbers", monkeypatch)
    rounds.seen("aab")
    rounds.step()
    assert gate.entered.wait(60)
    rounds.seen("bbb")
    rounds.step()
    assert rounds.rows("persons") == {"a": 2, "b": 4}, "it goes on meanwhile"
    gate.open.set()
    (group,) = rounds.beside._groups
    assert group.ended.wait(60)
    assert rounds.rows("numbers") == {1: 1, 2: 1}
    assert rounds.settled()
    assert rounds.fits()


def test_an_error_beside_is_its_own(rounds: Beside, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Projector.run

    def failing(own: Projector, plan: object, *more: object) -> object:
        if plan.name == "persons":
            raise (
                BeyondThisProcess("it takes long")
                if own._brief
                else InvalidRequest("cannot go on", remedy="Look.")
            )
        return run(own, plan, *more)

    monkeypatch.setattr(Projector, "run", failing)
    for persons in ("ab", "c"):
        epoch = rounds.seen(persons)
        rounds.step()
        for group in rounds.beside._groups:
            assert group.ended.wait(60)
        rounds.step()
    assert rounds.error("persons") == "cannot go on | fix: Look."
    assert rounds.epoch("other") == epoch
    monkeypatch.setattr(Projector, "run", run)
    assert rounds.settled()
    assert rounds.fits()


def test_state_of_many_rows_is_made_beside_and_taken_back(
    rounds: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`persons` is kept by its operators: what they hold comes back with it."""
    monkeypatch.setattr(whole_tables, "SMALL_BYTES", 0)
    rounds.seen("ab")
    assert rounds.settled()
    held = rounds.projecting._projector._regions._held
    app = "projection/persons/g1"
    assert app in held
    state = held[app]
    rounds.seen("aa")
    rounds.step()
    assert not rounds.beside._groups, "what is held is brought forward in the round"
    assert rounds.rows("persons") == {"a": 3, "b": 1}
    assert held[app] is state


@pytest.mark.parametrize("status", [PAUSED, DROPPED])
def test_one_that_is_gone_meanwhile_is_forgotten(
    rounds: Beside, slow_persons: Gate, status: str
) -> None:
    rounds.seen("ab")
    rounds.step()
    assert slow_persons.entered.wait(60)
    if status == DROPPED:
        rounds.made.deployed.set_status("numbers", DROPPED)
    rounds.made.deployed.set_status("persons", status)
    slow_persons.open.set()
    (group,) = rounds.beside._groups
    assert group.ended.wait(60)
    epoch = rounds.seen("b")
    rounds.step()
    assert not rounds.beside._groups
    assert "projection/persons/g1" not in rounds.projecting._projector._regions._held
    assert rounds.epoch("other") == epoch


def test_a_run_that_took_long_leaves_the_next_round(rounds: Beside) -> None:
    rounds.beside.slow_ms = 0.0
    rounds.seen("ab")
    rounds.step()
    assert not rounds.beside._groups
    rounds.beside.slow_ms = math.inf
    rounds.projecting.states["other"].slow = False
    rounds.seen("a")
    rounds.step()
    (group,) = rounds.beside._groups
    assert group.names == {"persons", "numbers"}
    assert rounds.settled()
    assert rounds.fits()


def test_of_more_than_fit_none_waits_for_ever(
    rounds: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Projector.run

    def beyond(own: Projector, plan: object, *more: object) -> object:
        if own._brief:
            raise BeyondThisProcess("it takes long")
        return run(own, plan, *more)

    monkeypatch.setattr(Projector, "run", beyond)
    rounds.beside.most = 1
    began: list[str] = []
    for _ in range(4):
        rounds.seen("a")
        rounds.step()
        (group,) = rounds.beside._groups
        began.append(max(group.names))
        assert group.ended.wait(60)
    assert Counter(began) == {"persons": 2, "other": 2}
    assert rounds.settled()


@pytest.mark.parametrize("place", ["preparation", "thread"])
def test_a_group_that_cannot_begin_says_so_and_is_tried_again(
    rounds: Beside, slow_persons: Gate, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    broken, started = threading.Event(), threading.Event()
    slow_persons.open.set()

    def begins() -> None:
        started.set()
        if broken.is_set():
            raise Unavailable("the engine is away", remedy="Wait.")

    def start(own: threading.Thread) -> None:
        if broken.is_set() and own.name.startswith("projections beside"):
            raise RuntimeError("can't start new thread")
        own_start(own)

    own_start = threading.Thread.start
    if place == "thread":
        monkeypatch.setattr(threading.Thread, "start", start)
    else:
        monkeypatch.setattr(rounds.beside, "_begins", begins)
    broken.set()
    epoch = rounds.seen("ab")
    rounds.step()
    for group in rounds.beside._groups:
        assert group.ended.wait(60)
    rounds.step()
    said = {"preparation": "the engine is away | fix: Wait.", "thread": "can't start new thread"}
    assert said[place] in (rounds.error("persons") or "")
    assert rounds.epoch("other") == epoch
    broken.clear()
    assert rounds.settled()
    assert rounds.fits()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.matrix) for n in (1, 2))])
def test_p6_whoever_leaves_when_the_tables_are_the_same(
    rounds: Beside, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    draw, run = random.Random(seed), Projector.run

    def at_times(own: Projector, plan: object, *more: object) -> object:
        if own._brief and draw.random() < 0.4:
            raise BeyondThisProcess("it takes long")
        return run(own, plan, *more)

    monkeypatch.setattr(Projector, "run", at_times)
    seen: Counter[str] = Counter()
    for _ in range(8):
        persons = "".join(draw.choices("abc", k=draw.randint(0, 4)))
        seen.update(persons)
        rounds.seen(persons)
        rounds.step()
    assert rounds.settled()
    assert rounds.rows("persons") == rounds.rows("other") == dict(seen)
    assert rounds.fits()
