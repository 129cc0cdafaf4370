"""Members of a set that is swapped or taken back: dropped, deployed anew, taken back meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from apps.cli import build as commands
from kernel import failpoints
from kernel.errors import Conflict
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import DROPPED, LIVE, PROJECTION, Entry
from projections.run.projector import Projector
from replay import swap as swapping
from replay.book import CLAIM, TOGETHER, Replay, State
from replay.build import Builder
from replay.planning import next_generation
from replay.subject import Site, typed_head
from replay.swap import rollback_set, swap_set
from replay.swap_commits import noted as swap_noted
from tests.support.lake.handmade import SQL, HandMade, NoSpark
from tests.support.lake.swapped_pair import PAIR, SwappedPair

Become = Callable[[SwappedPair, str], None]
Replays = Callable[..., int]


@pytest.fixture
def pair(tmp_path: Path) -> SwappedPair:
    found = SwappedPair(Lake.at(tmp_path / "lake"))
    for name in PAIR:
        found.build(name)
    return found


@pytest.fixture
def replays(pair: SwappedPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Replays:
    """Give a command of `penstock replay`; return its exit code."""
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", pair.lake.root)
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(commands(), ["replay", *words]).exit_code


def dropped(pair: SwappedPair, name: str) -> None:
    HandMade(pair.lake).deployed.set_status(name, DROPPED)


def deployed_anew(pair: SwappedPair, name: str) -> None:
    dropped(pair, name)
    text, number = SQL.format(name=name, key="id"), next_generation(pair.site, name)
    entry = Entry(kind=PROJECTION, name=name, generation=number, status=LIVE, text=text)
    HandMade(pair.lake).deployed.put([entry])


@pytest.mark.parametrize("become", [dropped, deployed_anew])
def test_what_was_swapped_with_one_that_is_dropped_since_is_taken_back_alone(
    pair: SwappedPair, replays: Replays, become: Become
) -> None:
    swap_set(pair.site, pair.members(), pair.bring)
    become(pair, "second")
    assert replays("rollback", "first") == 0
    assert (pair.live("first"), pair.words("first")) == (1, {"of 1"})


@pytest.mark.parametrize("how", ["swap", "rollback"])
@pytest.mark.parametrize("place", [failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP])
@pytest.mark.parametrize("become", [dropped, deployed_anew])
def test_p10_a_swap_that_died_ends_though_one_is_dropped_since(
    pair: SwappedPair, replays: Replays, how: str, place: str, become: Become
) -> None:
    failpoints.arm(place)
    with pytest.raises(failpoints.Crash):
        swap_set(pair.site, pair.members(), pair.bring)
    become(pair, "second")
    anew = pair.live("second")
    assert replays(how, "first") == 0
    assert pair.live("first") == (2 if how == "swap" else 1)
    assert pair.live("second") == (anew if become is deployed_anew else pair.live("first"))
    assert not {State.SWAPPING, State.ROLLING_BACK} & {*pair.states().values()}
    pair.epochs("first")
    assert pair.words("first") == {f"of {pair.live('first')}"}


@pytest.mark.parametrize("place", [failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP])
def test_p10_a_rollback_that_died_ends_though_one_is_deployed_anew_since(
    pair: SwappedPair, replays: Replays, place: str
) -> None:
    swap_set(pair.site, pair.members(), pair.bring)
    failpoints.arm(place)
    with pytest.raises(failpoints.Crash):
        rollback_set(pair.site, pair.swapped_ones())
    deployed_anew(pair, "first")
    assert replays("rollback", "second") == 0
    assert (pair.live("second"), pair.words("second")) == (1, {"of 1"})
    assert pair.states()["first"] is State.SWAPPED


def test_p10_a_rollback_amid_a_swap_that_goes_on_takes_back_both(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap slept between its two tables, and finds that it was taken back."""

    def noted(site: Site, replay: Replay) -> int:
        version = swap_noted(site, replay)
        monkeypatch.undo()
        rollback_set(pair.site, pair.swapped_ones())
        return version

    monkeypatch.setattr(swapping, "noted", noted)
    with pytest.raises(Conflict, match="generation 2 of first is rolled back meanwhile"):
        swap_set(pair.site, pair.members(), pair.bring)
    assert pair.states() == {"first": State.ROLLED_BACK, "second": State.BUILT}
    pair.epochs(*PAIR)
    assert [pair.words(name) for name in PAIR] == [{"of 1"}, {"of 1"}]


def test_who_was_taken_back_while_it_was_brought_is_not_claimed_again(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = dict.fromkeys(PAIR, 2)
    built = pair.book.newest("first", State.VERIFIED)
    detail = {CLAIM: "mine", TOGETHER: together}
    claimed = pair.book.record(built.now(State.SWAPPING, detail=detail))
    pair.epochs("second")

    def run(*_: object, **__: object) -> None:
        pair.book.record(claimed.now(State.BUILT))

    monkeypatch.setattr(Projector, "run", run)
    builder = Builder(
        cast("SparkSession", NoSpark()), Site(lake=pair.lake, tables=Tables()), lambda _: None
    )
    with pytest.raises(Conflict, match="generation 2 of first is built meanwhile"):
        builder.catch_up(claimed, typed_head(pair.site))
    assert pair.book.of("first")[-1].state is State.BUILT
