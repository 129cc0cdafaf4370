"""One pipeline writes a lake; others take over when it ends, dies or is silent for too long."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from kernel.errors import LeaseLost, Unavailable
from lake.layout import Lake
from lake.storage import Stored, files_in
from lake.writer_lease import LeaseRow, WriterLease
from pipeline.process.lease_keeper import LeaseKeeper, holding

TTL_S = 10.0


@dataclass
class Clock:
    """Time as one process has it."""

    s: float = 0.0

    def __call__(self) -> float:
        return self.s


def lease(lake: Lake, holder: str, clock: Clock | None = None) -> WriterLease:
    return WriterLease(
        lake, "pipeline", holder=holder, place=f"at {holder}", ttl_s=TTL_S, now=clock or Clock()
    )


def beats(lake: Lake) -> list[Stored]:
    return [*files_in(f"{lake.root}/_beats")]


def test_the_second_one_stands_by_and_is_told_who_writes(any_lake: Lake) -> None:
    first, second = lease(any_lake, "a"), lease(any_lake, "b")
    assert first.take() is None
    assert second.take() == LeaseRow(1, "a", "at a", free=False)
    assert (first.number, second.number) == (1, None)
    assert first.newest() == second.newest() == LeaseRow(1, "a", "at a", free=False)


def test_a_holder_that_ends_gives_the_lease_to_who_waits(any_lake: Lake) -> None:
    first, second = lease(any_lake, "a"), lease(any_lake, "b")
    first.take()
    first.release()
    assert second.take() is None
    assert second.number == 3, "taken, given back, taken"
    first.release()
    assert second.newest() == LeaseRow(3, "b", "at b", free=False), "what one no longer holds stays"
    second.keep()


def test_one_that_lives_is_waited_for_however_long(any_lake: Lake) -> None:
    clock = Clock()
    first, second = lease(any_lake, "a"), lease(any_lake, "b", clock)
    first.take()
    for _ in range(10):
        clock.s += TTL_S - 1
        first.keep()
        assert second.take() is not None


def test_one_that_is_silent_loses_the_lease_and_learns_of_it(any_lake: Lake) -> None:
    clock = Clock()
    first, second = lease(any_lake, "a"), lease(any_lake, "b", clock)
    first.take()
    assert second.take() is not None, "it has just come, and does not know yet"
    clock.s += TTL_S - 0.1
    assert second.take() is not None
    clock.s += 0.2
    assert second.take() is None
    assert [file.name for file in beats(any_lake)] == ["pipeline.2"]
    with pytest.raises(LeaseLost, match="held by at b now"):
        first.keep()
    assert first.number is None
    first.release()
    second.keep()


def test_the_successor_of_a_dead_process_goes_on_at_once(any_lake: Lake) -> None:
    lease(any_lake, "a").take()
    again = lease(any_lake, "a")
    assert again.take() is None
    assert again.number == 2


def test_of_many_that_take_over_at_once_one_has_it(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "lake")
    lease(lake, "dead").take()
    clocks = [Clock() for _ in range(6)]
    rivals = [lease(lake, f"r{n}", clock) for n, clock in enumerate(clocks)]
    for rival, clock in zip(rivals, clocks, strict=True):
        assert rival.take() is not None
        clock.s = TTL_S
    together = threading.Barrier(len(rivals))
    had: list[LeaseRow | None] = []

    def rush(rival: WriterLease) -> None:
        together.wait()
        had.append(rival.take())

    threads = [threading.Thread(target=rush, args=(rival,)) for rival in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert had.count(None) == 1
    (winner,) = (rival for rival in rivals if rival.number is not None)
    winner.keep()
    assert {told for told in had if told} == {
        LeaseRow(2, winner.holder, f"at {winner.holder}", free=False)
    }


def test_of_two_processes_in_one_workspace_the_later_one_is_somebody_else(tmp_path: Path) -> None:
    with holding(tmp_path) as first, holding(tmp_path) as beside:
        assert beside != first
    with holding(tmp_path) as successor:
        assert successor == first, "the one before is dead"


def test_a_keeper_says_who_holds_the_lease_and_ends_when_it_is_lost(tmp_path: Path) -> None:
    lake, stop = Lake.at(tmp_path / "lake"), threading.Event()
    other = lease(lake, "other")
    other.take()
    said: list[tuple[str, str]] = []

    def waits(state: str, reason: str) -> None:
        said.append((state, reason))
        other.release()

    ended: list[str] = []
    keeper = LeaseKeeper(lease(lake, "own"), ttl_s=0.3, end=ended.append)
    assert keeper.wait(stop, waits)
    assert said == [("standby", "at other writes this lake (lease 1)")]
    lease(lake, "own").take()
    keeper.run(stop)
    assert ended == ["pipeline of this lake is held by at own now"]


@pytest.mark.parametrize("error", [Unavailable("the disk is away"), Exception("a torn file")])
def test_a_keeper_that_does_not_see_the_lake_goes_on(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else sees it either, and what it writes is guarded."""
    held, stop = lease(Lake.at(tmp_path / "lake"), "own"), threading.Event()
    held.take()
    tries: list[None] = []

    def gone() -> None:
        tries.append(None)
        if len(tries) == 3:
            stop.set()
        raise error

    monkeypatch.setattr(held, "keep", gone)
    LeaseKeeper(held, ttl_s=0.03, end=pytest.fail).run(stop)
    assert len(tries) == 3


@pytest.mark.parametrize("error", [OSError("the disk is away"), Exception("the disk is away")])
def test_a_lake_that_cannot_be_seen_is_no_standing_by(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, stop = lease(Lake.at(tmp_path / "lake"), "own"), threading.Event()
    said: list[tuple[str, str]] = []

    def gone() -> None:
        raise error

    def waits(state: str, reason: str) -> None:
        said.append((state, reason))
        stop.set()

    monkeypatch.setattr(own, "take", gone)
    assert not LeaseKeeper(own, ttl_s=0.3).wait(stop, waits)
    ((state, reason),) = said
    assert state == "restarting"
    assert "the disk is away" in reason
