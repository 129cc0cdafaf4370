"""A swap that died is taken back, or given up; whoever slept meanwhile changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apps.cli import build
from kernel import failpoints
from kernel.errors import Conflict, NotFound
from lake.layout import Lake
from lake.tables import Tables
from projections.sql.statements.parse import parse_script
from replay import swap as swap_module
from replay.book import ReplayBook, State
from replay.cancel import cancel
from replay.deployment import apply
from replay.swap import rollback_set, swap_set
from tests.support.lake.swapped_pair import PAIR, SwappedPair
from tests.support.lake.swapped_report import NAME, SwappedReport
from tests.support.lake.swaps import rollback, swap, taken_back

CLAIMED, COMMITTED = failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP


@pytest.fixture
def report(tmp_path: Path) -> SwappedReport:
    return SwappedReport(Lake.at(str(tmp_path / "lake")))


def another_one(report: SwappedReport) -> None:
    report.build()
    swap(report.site, NAME, report.catch_up)


def one_that_dies(report: SwappedReport, at: str) -> None:
    report.build()
    failpoints.arm(at)
    with pytest.raises(failpoints.Crash):
        swap(report.site, NAME, report.catch_up)
    failpoints.disarm()


def states(report: SwappedReport) -> dict[int, State]:
    return {r.generation: r.state for r in ReplayBook(report.lake, Tables()).of(NAME)}


def words_of(report: SwappedReport) -> set[str]:
    return set(report.stable.to_pyarrow_table()["word"].to_pylist())


def at_once(at: str, what: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let something happen while the next one sleeps at a failpoint; return whether it did."""
    slept: list[str] = []

    def hit(name: str) -> None:
        if name == at and not slept:
            slept.append(name)
            what()

    monkeypatch.setattr(failpoints, "hit", hit)
    return slept


@pytest.mark.parametrize(("at", "left"), [(CLAIMED, State.BUILT), (COMMITTED, State.ROLLED_BACK)])
def test_p10_a_rollback_takes_back_the_swap_that_died_and_none_before_it(
    report: SwappedReport, at: str, left: State
) -> None:
    another_one(report)
    report.epochs(live=True)
    one_that_dies(report, at)
    taken_back(report.site, NAME)
    assert states(report) == {2: State.SWAPPED, 3: left}
    assert (report.live, words_of(report)) == (2, {"of 2"})
    report.epochs(live=True)
    assert report.stable.to_pyarrow_table().num_rows == report.head
    reader = "CREATE PROJECTION reader WITH (key = 'id') AS SELECT id, word FROM report"
    apply(report.site, [], parse_script(reader).projections)
    assert rollback(report.site, NAME).generation == 1
    assert words_of(report) == {"of 1"}


def test_p10_a_swap_that_another_one_overtook_stands_in_the_way_of_no_rollback(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who swaps gives it up, but may die before; the version before did not."""
    one_that_dies(report, CLAIMED)
    report.epochs(live=True)
    monkeypatch.setattr(swap_module, "overtaken", lambda book, done: None)
    another_one(report)
    assert states(report) == {2: State.SWAPPING, 3: State.SWAPPED}
    monkeypatch.undo()
    book = ReplayBook(report.lake, Tables())
    (dead,) = (each for each in book.of(NAME) if each.generation == 2)
    with pytest.raises(Conflict, match="which is given up") as refused:
        rollback_set(report.site, [dead])
    assert "penstock replay rollback report" in refused.value.remedy
    assert states(report) == {2: State.BUILT, 3: State.SWAPPED}
    assert rollback(report.site, NAME).generation == 1
    assert words_of(report) == {"of 1"}


def test_a_swap_that_was_given_up_can_be_made_again(report: SwappedReport) -> None:
    one_that_dies(report, CLAIMED)
    with pytest.raises(Conflict, match="its swap was interrupted") as refused:
        cancel(report.site, NAME)
    assert f"or give it up: penstock replay rollback {NAME}" in refused.value.remedy
    assert taken_back(report.site, NAME) == []
    report.epochs(live=True)
    assert swap(report.site, NAME, report.catch_up).generation == 2
    assert rollback(report.site, NAME).generation == 1
    one_that_dies(report, CLAIMED)
    assert taken_back(report.site, NAME) == []
    assert cancel(report.site, NAME).state is State.CANCELLED
    assert words_of(report) == {"of 1"}


def test_the_command_says_that_a_swap_was_given_up(report: SwappedReport) -> None:
    one_that_dies(report, CLAIMED)
    words = ["replay", "rollback", NAME, "--workspace", str(Path(report.lake.root).parent)]
    told = CliRunner().invoke(build(), words)
    assert told.exit_code == 0, told.output
    assert "generation 2 of report did not become the table: its swap is given up" in told.stdout
    one_that_dies(report, CLAIMED)
    told = CliRunner().invoke(build(), [*words, "--json"])
    assert json.loads(told.stdout)["state"] == "built"


def test_p10_a_swap_that_slept_while_it_was_given_up_changes_nothing(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.build()

    def given_up() -> None:
        assert taken_back(report.site, NAME) == []

    slept = at_once(CLAIMED, given_up, monkeypatch)
    with pytest.raises(Conflict, match="generation 2 of report is built meanwhile"):
        swap(report.site, NAME, report.catch_up)
    assert slept
    assert (states(report), report.live, words_of(report)) == ({2: State.BUILT}, 1, {"of 1"})


def test_p10_a_swap_of_two_that_slept_while_it_was_given_up_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = SwappedPair(Lake.at(tmp_path / "lake"))
    for name in PAIR:
        pair.build(name)

    def given_up() -> None:
        members = pair.book.set_of(PAIR, State.SWAPPED, State.ROLLING_BACK)
        assert rollback_set(pair.site, members) == []

    slept = at_once(CLAIMED, given_up, monkeypatch)
    with pytest.raises(Conflict, match="is built meanwhile"):
        swap_set(pair.site, pair.members(), pair.bring)
    assert slept
    assert pair.states() == dict.fromkeys(PAIR, State.BUILT)
    assert [(pair.live(name), pair.words(name)) for name in PAIR] == [(1, {"of 1"})] * 2


def test_p10_a_rollback_that_slept_while_another_generation_went_live_changes_nothing(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    another_one(report)

    def meanwhile() -> None:
        assert rollback(report.site, NAME).generation == 1
        report.epochs(live=True)
        another_one(report)
        report.epochs(live=True)

    slept = at_once(CLAIMED, meanwhile, monkeypatch)
    with pytest.raises(Conflict):
        rollback(report.site, NAME)
    assert slept
    assert states(report) == {2: State.ROLLED_BACK, 3: State.SWAPPED}
    assert (report.live, words_of(report)) == (3, {"of 3"})
    report.epochs(live=True)
    assert report.stable.to_pyarrow_table().num_rows == report.head


def test_a_swap_that_died_is_over_once_another_generation_is_the_table(
    report: SwappedReport,
) -> None:
    report.build()
    one_that_dies(report, CLAIMED)  # The third one; the second one was built beside it.
    assert swap(report.site, NAME, report.catch_up, generation=2).generation == 2
    assert states(report) == {2: State.SWAPPED, 3: State.BUILT}
    assert rollback(report.site, NAME).generation == 1
    with pytest.raises(NotFound):
        rollback(report.site, NAME)


def test_a_swap_whose_giving_up_died_is_given_up_by_the_same_command(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_that_dies(report, CLAIMED)

    def dies() -> None:
        raise failpoints.Crash(failpoints.REPLAY_AFTER_LIVE)

    with monkeypatch.context() as patch:
        assert not at_once(failpoints.REPLAY_AFTER_LIVE, dies, patch)
        with pytest.raises(failpoints.Crash):
            taken_back(report.site, NAME)
    assert states(report) == {2: State.ROLLING_BACK}
    with pytest.raises(Conflict, match="is being given up") as refused:
        cancel(report.site, NAME)
    assert refused.value.remedy == f"Finish it: penstock replay rollback {NAME}"
    assert taken_back(report.site, NAME) == []
    assert (states(report), report.live, words_of(report)) == ({2: State.BUILT}, 1, {"of 1"})
