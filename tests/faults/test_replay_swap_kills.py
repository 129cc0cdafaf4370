"""`penstock replay swap` and `rollback` are killed in their own process, or sleep amid a swap."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import EXIT_CONFLICT
from lake.layout import Lake
from lake.tables import Tables
from replay.book import ReplayBook, State
from replay.subject import Site, entry_of
from replay.swap import rollback, swap
from replay.verify import verify
from tests.faults.test_replay_kills import is_stopped
from tests.support.lake.handmade import HandMade, words
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


def replaying(made: HandMade, command: str, armed: str = "") -> subprocess.Popen[bytes]:
    workspace = str(Path(made.lake.root).parent)
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, "replay", command, NAME, "--workspace", workspace],
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
