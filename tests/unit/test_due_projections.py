"""Each projection is as fresh as it was declared, on a clock of its own; who may be older waits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from kernel.positions import Epoch
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Projected
from projections.run.catalog import PAUSED
from projections.run.due_projections import MOST_EARLY, DueProjections
from projections.run.projection_states import ProjectionState
from tests.unit.test_projection_rounds import NUMBERS, PERSONS, SHAPES, Rounds

EPOCH_S = 0.2
IDLE_S = 0.1


class _Clocked:
    """Rounds that take as long as they are said to; an epoch is committed now and then.

    `seconds` are the freshness of each projection and what one run of it takes.
    """

    def __init__(self, seconds: dict[str, tuple[float, float]], *, round_s: float = 0.05) -> None:
        self.at = 100.0
        self._began = self.at
        self._seconds = seconds
        self._round_s = round_s
        self.states = {name: ProjectionState(name) for name in seconds}
        self.due = DueProjections(self.states, now=lambda: self.at)
        self.freshness = {n: timedelta(seconds=fresh) for n, (fresh, _) in seconds.items()}
        self.latencies: dict[str, list[float]] = {name: [] for name in seconds}
        self.stalls_s = 0.0
        """So much longer the next run takes."""
        self.rounds: list[list[str]] = []
        self._unseen: list[tuple[str, int, int]] = []

    def until(self, seconds: float) -> None:
        """Do rounds as the pipeline does: the next one at once, where one had something to do."""
        end, busy = self.at + seconds, False
        while self.at < end:
            self.due.begin(busy=busy)
            busy = self._round()
            if not busy:
                self.at += max(0.001, self.due.pause_s(IDLE_S))

    def _round(self) -> bool:
        newest = int((self.at - self._began) / EPOCH_S)
        due = {name for name in self.states if self.due.is_due(name)}
        chosen = self.due.chosen(due, Epoch(newest), self.freshness)
        # In the order in which they were declared, as rounds of the pipeline have it.
        runs = [n for n in self.states if n in chosen and self.states[n].epoch < newest]
        if not runs:
            return False
        self.at += self._round_s
        self.rounds.append(sorted(runs))
        first = self.due.first(runs, self.freshness)
        for name in sorted(runs, key=lambda name: name not in first):
            if name not in first:
                self._see()
            self._run(name, newest)
        self._see()
        return True

    def _run(self, name: str, newest: int) -> None:
        state, (_, takes) = self.states[name], self._seconds[name]
        self.due.begun(name, self.freshness[name])
        self.at += takes + self.stalls_s
        self.stalls_s = 0.0
        self._unseen.append((name, state.epoch, newest))
        state.epoch, state.last_ms = newest, takes * 1000

    def _see(self) -> None:
        self.due.seen()
        for name, before, newest in self._unseen:
            commits = (self._began + epoch * EPOCH_S for epoch in range(before + 1, newest + 1))
            self.latencies[name] += [self.at - commit for commit in commits]
        self._unseen.clear()

    def p95(self, name: str) -> float:
        """Return how old a projection was in its worst moments but one in twenty."""
        found = sorted(self.latencies[name])
        return found[int(len(found) * 0.95)]


def test_fifty_projections_keep_two_freshnesses() -> None:
    quick = {f"quick_{n}": (1.0, 0.02) for n in range(10)}
    calm = {f"calm_{n}": (5.0, 0.04) for n in range(40)}
    clocked = _Clocked(calm | quick)
    clocked.until(120)
    late = {
        name: clocked.p95(name)
        for name, (fresh, _) in (quick | calm).items()
        if clocked.p95(name) > fresh
    }
    assert not late


@pytest.mark.parametrize("after_s", [0.5, 1.5, 2.5, 3.5, 4.5])
def test_one_long_run_makes_nobody_late_who_may_be_older(after_s: float) -> None:
    """Those that it held up are run together from then on: they wait for each other, too."""
    quick = {f"quick_{n}": (1.0, 0.02) for n in range(10)}
    calm = {f"calm_{n}": (5.0, 0.025) for n in range(40)}
    clocked = _Clocked(calm | quick)
    clocked.until(15 + after_s)
    clocked.latencies = {name: [] for name in clocked.states}
    clocked.stalls_s = 1.5
    clocked.until(30)
    assert not {name: clocked.p95(name) for name in calm if clocked.p95(name) > 5.0}


def test_one_that_takes_a_while_is_run_so_much_earlier() -> None:
    clocked = _Clocked({"a": (1.0, 0.2)})
    clocked.until(60)
    assert 0.7 < clocked.p95("a") <= 1.0, "as old as it may be, and not run for nothing"


def test_it_is_run_half_of_its_freshness_earlier_at_most() -> None:
    clocked = _Clocked({"a": (1.0, 0.9)}, round_s=0.0)
    clocked.until(60)
    assert len(clocked.rounds) <= 60 / (1 - MOST_EARLY) + 1


@pytest.mark.parametrize("calm_s", [0.04, 0.6])
def test_one_of_a_longer_freshness_is_run_in_each_round_at_least(calm_s: float) -> None:
    calm = {f"calm_{n}": (5.0, calm_s) for n in range(4)}
    clocked = _Clocked({"quick": (0.1, 0.05), **calm})
    clocked.until(30)
    assert all(clocked.latencies[name] for name in calm)
    longest = max(len([n for n in names if n != "quick"]) for names in clocked.rounds[4:])
    assert longest == 1, "the quick one does not wait for all of them"


def test_those_of_one_freshness_are_run_together() -> None:
    clocked = _Clocked({f"p_{n}": (0.1, 0.05) for n in range(8)})
    clocked.until(5)
    assert all(len(names) == 8 for names in clocked.rounds)


def test_what_has_the_epoch_takes_no_room() -> None:
    states = {name: ProjectionState(name, last_ms=100.0) for name in ("quick", "done", "behind")}
    states["done"].epoch, states["behind"].due_at = 7, 1.0
    due = DueProjections(states, now=lambda: 50.0)
    freshness = {"quick": 0.1, "done": 5.0, "behind": 5.0}
    found = due.chosen(
        states, Epoch(7), {name: timedelta(seconds=s) for name, s in freshness.items()}
    )
    assert {"quick", "behind"} <= found


def test_of_those_that_wait_for_equally_long_the_first_by_name_is_run() -> None:
    states = {n: ProjectionState(n, last_ms=100.0) for n in ("quick", *"hgfedcba")}
    due = DueProjections(states, now=lambda: 50.0)
    freshness = {n: timedelta(seconds=0.1 if n == "quick" else 5.0) for n in states}
    assert due.chosen(states, Epoch(7), freshness) == {"quick", "a"}


def test_the_pause_ends_when_one_becomes_due() -> None:
    states = {"a": ProjectionState("a", due_at=50.03), "b": ProjectionState("b", due_at=49.0)}
    due = DueProjections(states, now=lambda: 50.0)
    assert due.pause_s(0.1) == pytest.approx(0.03)
    states["a"].due_at = 51.0
    assert due.pause_s(0.1) == 0.1


def test_those_of_the_shortest_freshness_are_seen_before_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Rounds(tmp_path)
    for name in ("a_calm", "b_calm"):
        rounds.deploy(name, PERSONS.replace("persons", name))
        rounds.made.run(name, SHAPES["persons"].empty_table(), 0)
    rounds.seen("ab")
    rounds.projecting.step()
    noted: list[set[str]] = []
    project_all = Manifest.project_all

    def told(own: Manifest, notes: Sequence[tuple[Projected, bool]]) -> None:
        noted.append({done.name.split("/")[1] for done, _ in notes if "/" in done.name})
        project_all(own, notes)

    monkeypatch.setattr(Manifest, "project_all", told)
    epoch = rounds.seen("c")
    for state in rounds.projecting.states.values():
        state.due_at, state.last_ms = 0.0, 1_000.0
    rounds.projecting.step()
    runs = [names for names in noted if names]
    assert runs[0] == {"persons", "numbers"}, "who is read by one of them is among them"
    assert len(runs[1]) == 1, "both take a second each: there is room for one"
    rounds.projecting.step()
    assert {state.epoch for state in rounds.projecting.states.values()} == {epoch}
    assert rounds.fits()


@pytest.mark.parametrize("rests", ["paused", "triggered", "beside"])
def test_no_room_is_made_for_one_that_rounds_do_not_run(tmp_path: Path, rests: str) -> None:
    rounds = Rounds(tmp_path)
    calm = ("persons", "a_calm", "b_calm")
    for name in calm[1:]:
        rounds.deploy(name, PERSONS.replace("persons", name))
        rounds.made.run(name, SHAPES["persons"].empty_table(), 0)
    if rests == "triggered":
        once = "freshness = '1 second', emit = 'every 1 hour'"
        rounds.deploy("numbers", NUMBERS.replace("freshness = '1 second'", once))
    rounds.seen("ab")
    rounds.projecting.step()
    if rests == "paused":
        rounds.made.deployed.set_status("numbers", PAUSED)
    if rests == "beside":
        rounds.projecting._beside.wanted.add("numbers")
    epoch = rounds.seen("c")
    for name in calm:
        state = rounds.projecting.states[name]
        state.due_at, state.last_ms = 0.0, 1_000.0
    rounds.projecting.step()
    assert [rounds.projecting.states[name].epoch for name in calm] == [epoch] * 3
