"""Two generations beside one another: rows that differ now, and over the epochs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import apps.cli.replay as commands
from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import Guard
from replay.book import READY, Replay, ReplayBook, State
from replay.cancel import cancel
from replay.generations import build_app, generation_name
from replay.side_by_side import comparisons
from tests.support.lake.handmade import HandMade, words

NAME, TOLD = "report", "typed/events.thing.told"


class Versions:
    """A live generation, and a built one in which every word of a multiple of three is another."""

    def __init__(self, made: HandMade) -> None:
        self.made = made
        self.brought: list[int] = []

    def live(self) -> Epoch:
        n = self.made.next_epoch
        self.made.epoch()
        self.made.derive({TOLD: words((n, "w"), epoch=n, _late=[False])}, n)
        self.made.run(NAME, self.rows(n, every=0), n)
        return n

    def rows(self, n: int, *, every: int) -> pa.Table:
        odd = [(i, "other" if every and i % every == 0 else f"w{i}") for i in range(1, n + 1)]
        return words(*odd, epoch=n)

    def catch_up(self, epoch: Epoch) -> Callable[[Replay], Replay]:
        def bring(replay: Replay) -> Replay:
            self.brought.append(int(epoch))
            path = self.made.lake.path(generation_name(NAME, replay.generation))
            guard = Guard(build_app(NAME, replay.generation), epoch)
            self.made.writer.overwrite(path, self.rows(int(epoch), every=3), guard)
            now = replay.now(replay.state, epoch=epoch, detail=replay.detail)
            return ReplayBook(self.made.lake, self.made.tables).record(now, after=READY)

        return bring


@pytest.fixture
def versions(lake: Lake) -> Versions:
    made = HandMade(lake)
    made.deploy(NAME)
    found = Versions(made)
    found.live()
    made.build(NAME, found.rows(1, every=3), 1)
    return found


def test_every_epoch_of_the_live_one_is_compared_once_until_it_ends(versions: Versions) -> None:
    looks = iter([versions.live, versions.live, lambda: None, versions.live, versions.live])

    def go_on() -> bool:
        look = next(looks, None)
        if look is not None:
            look()
        return look is not None

    site = versions.made.site
    found = [*comparisons(site, NAME, versions.catch_up, go_on=go_on)]
    assert [(c.epoch, c.rows.differing) for c in found] == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
    assert versions.brought == [2, 3, 4, 5]
    book = ReplayBook(site.lake, site.tables)
    assert [r.detail["differing"] for r in book.compared(NAME, 2)] == [0, 0, 1, 1, 1]
    assert book.newest(NAME, State.DIFFERS).epoch == 5
    cancel(site, NAME)
    with pytest.raises(NotFound, match="no generation that is built"):
        next(comparisons(site, NAME, versions.catch_up))


def test_the_command_shows_the_drift_of_before_and_now(
    versions: Versions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Built:
        def catch_up(self, replay: Replay, epoch: Epoch) -> Replay:
            return versions.catch_up(epoch)(replay)

    monkeypatch.setenv("PENSTOCK_LAKE_PATH", versions.made.lake.root)
    monkeypatch.setattr(commands, "builder_of", lambda *_: Built())
    commands.compare_(NAME, workspace=tmp_path)
    assert "1" in capsys.readouterr().out.splitlines()[-1]
    for _ in range(5):
        versions.live()
    commands.compare_(NAME, workspace=tmp_path, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert [(each["epoch"], each["differing"]) for each in told["drift"]] == [(1, 0), (6, 2)]
    assert told["drift"][-1]["columns"] == {"word": 2}
