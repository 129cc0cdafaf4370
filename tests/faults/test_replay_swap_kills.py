"""`penstock replay swap` and `rollback` are killed in their own process, or sleep amid a swap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import EXIT_CONFLICT
from lake.layout import Lake
from lake.tables import Tables
from replay.book import ReplayBook, State
from replay.subject import Site, entry_of
from replay.verify import verify
from tests.faults.test_replay_kills import is_stopped
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swapped_pair import PAIR, SwappedPair
from tests.support.lake.swaps import rollback, swap
from tests.support.services.waiting import until
from tests.unit.test_replay_book import unmoved

NAME = "report"
MAIN = "from apps.cli import main; main()"


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """A generation that was compared with the live one, and lies in other files."""
    handmade = HandMade(Lake.at(tmp_path / "lake"))
    handmade.deploy(NAME)
    handmade.epoch()
    handmade.run(NAME, words((1, "one"), (2, "two")), 1)
    handmade.derive({"typed/events.thing.told": words((1, "one"), (2, "two"))}, 1)
    handmade.build(NAME, words((1, "one"), (2, "two")), 1)
    assert verify(handmade.site, NAME).equal
    return handmade


def replaying(
    made: HandMade | SwappedPair, command: str, armed: str = "", names: Sequence[str] = (NAME,)
) -> subprocess.Popen[bytes]:
    workspace = str(Path(made.lake.root).parent)
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "replay", command, *names, "--workspace", workspace],
        env={**os.environ, "PENSTOCK_FAILPOINTS": armed},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def state(made: HandMade) -> State:
    return ReplayBook(made.lake, Tables()).of(NAME)[-1].state


def shown(made: HandMade) -> tuple[list[str], bool]:
    """Return the words of the stable table, and whether they are the built generation's files."""
    table = DeltaTable(made.lake.path(f"projection/{NAME}"))
    built = {"_gen/" in str(path) for path in table.get_add_actions().column("path").to_pylist()}
    assert len(built) == 1, "files of one generation or of the other"
    return sorted(table.to_pyarrow_table()["word"].to_pylist()), built.pop()


@pytest.mark.parametrize(
    ("at", "built"),
    [
        pytest.param(failpoints.REPLAY_AFTER_CLAIM, False, marks=pytest.mark.matrix),
        (failpoints.REPLAY_AFTER_SWAP, True),
    ],
)
def test_p10_a_swap_whose_process_is_killed_is_finished_by_the_same_command(
    made: HandMade, at: str, built: bool
) -> None:
    assert replaying(made, "swap", f"{at}=kill").wait(180) == -signal.SIGKILL
    assert (state(made), shown(made)) == (State.SWAPPING, (["one", "two"], built))
    assert replaying(made, "swap").wait(180) == 0
    assert (state(made), shown(made)) == (State.SWAPPED, (["one", "two"], True))


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("at", "built"), [(failpoints.REPLAY_AFTER_CLAIM, True), (failpoints.REPLAY_AFTER_SWAP, False)]
)
def test_p10_a_rollback_whose_process_is_killed_is_finished_by_the_same_command(
    made: HandMade, at: str, built: bool
) -> None:
    assert replaying(made, "swap").wait(180) == 0
    assert replaying(made, "rollback", f"{at}=kill").wait(180) == -signal.SIGKILL
    assert (state(made), shown(made)) == (State.ROLLING_BACK, (["one", "two"], built))
    assert replaying(made, "rollback").wait(180) == 0
    assert (state(made), shown(made)) == (State.ROLLED_BACK, (["one", "two"], False))


@pytest.mark.matrix
@pytest.mark.parametrize("at", [failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP])
def test_p10_of_two_that_swap_at_once_the_one_that_slept_changes_nothing(
    made: HandMade, at: str
) -> None:
    """The other one finishes the swap and takes it back meanwhile."""
    process = replaying(made, "swap", f"{at}=stop")
    try:
        until(lambda: is_stopped(process.pid), "the process sleeps", deadline_s=60)
        swap(Site(lake=made.lake), NAME, unmoved)
        rollback(Site(lake=made.lake), NAME)
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.wait(180) == EXIT_CONFLICT
    assert (state(made), shown(made)) == (State.ROLLED_BACK, (["one", "two"], False))
    assert entry_of(Site(lake=made.lake), NAME).generation == 1


@pytest.mark.parametrize(
    ("at", "live"),
    [
        pytest.param(f"{failpoints.REPLAY_AFTER_CLAIM}=kill", 1, marks=pytest.mark.matrix),
        (f"{failpoints.REPLAY_AFTER_SWAP}=kill", 1),
        pytest.param(f"{failpoints.REPLAY_AFTER_SWAP}=kill@2", 1, marks=pytest.mark.matrix),
        (f"{failpoints.REPLAY_AFTER_LIVE}=kill", 2),
    ],
)
def test_p10_a_swap_of_two_whose_process_is_killed_is_finished_by_a_command_for_one(
    tmp_path: Path, at: str, live: int
) -> None:
    pair = SwappedPair(Lake.at(tmp_path / "lake"))
    for name in PAIR:
        pair.build(name)
    assert replaying(pair, "swap", at, PAIR).wait(180) == -signal.SIGKILL
    assert pair.states() == dict.fromkeys(PAIR, State.SWAPPING)
    assert [pair.live(name) for name in PAIR] == [live, live]
    assert replaying(pair, "swap", names=PAIR[1:]).wait(180) == 0
    assert pair.states() == dict.fromkeys(PAIR, State.SWAPPED)
    assert [pair.words(name) for name in PAIR] == [{"of 2"}, {"of 2"}]
    assert replaying(pair, "rollback", names=PAIR[:1]).wait(180) == EXIT_CONFLICT
    assert replaying(pair, "rollback", names=PAIR).wait(180) == 0
    assert [pair.words(name) for name in PAIR] == [{"of 1"}, {"of 1"}]
    assert [pair.live(name) for name in PAIR] == [1, 1]
