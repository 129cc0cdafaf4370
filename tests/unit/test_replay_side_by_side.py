"""Two generations beside one another: rows that differ now, and over the epochs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import apps.cli.replay as commands
from apps.cli.commands import CommandCall
from apps.cli.output import table
from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import Guard
from replay.book import READY, Replay, ReplayBook, State
from replay.cancel import cancel
from replay.generations import build_app, generation_name
from replay.pages import drift_line, drift_of, drift_page
from replay.resumption import slice_failed
from replay.side_by_side import comparisons
from replay.verify import Expectation, verify
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swaps import swap

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
    with pytest.raises(
        NotFound, match=r"no generation that is built .*; generation 2 is cancelled"
    ):
        next(comparisons(site, NAME, versions.catch_up))


def test_who_looks_on_does_not_take_back_what_was_accepted(versions: Versions) -> None:
    site, odd = versions.made.site, Expectation(rows="built.word = 'other'")
    for _ in range(2):
        versions.live()
    book = ReplayBook(site.lake, site.tables)
    versions.catch_up(Epoch(3))(book.newest(NAME, *READY))
    assert verify(site, NAME, expectation=odd).rows.expected == 1
    versions.live()
    (found,) = comparisons(site, NAME, versions.catch_up)
    assert (found.epoch, found.expectation) == (4, odd)
    assert book.newest(NAME, *READY).state is State.VERIFIED
    versions.live()
    (found,) = comparisons(site, NAME, versions.catch_up, expectation=Expectation())
    assert book.newest(NAME, *READY).state is State.DIFFERS


def test_who_watches_sees_the_version_become_the_table(versions: Versions) -> None:
    """A swap that is under way may still be given up: it is waited for."""
    site, looks = versions.made.site, []

    def go_on() -> bool:
        looks.append(book.of(NAME)[-1].state)
        if len(looks) == 1:
            book.record(built.now(State.SWAPPING, detail={"claim": "another's"}))
        elif len(looks) == 2:
            book.record(built.now(State.BUILT))
        elif len(looks) == 3:
            swap(site, NAME, lambda replay: replay)
        return True

    book = ReplayBook(site.lake, site.tables)
    built = book.newest(NAME, *READY)
    found = [*comparisons(site, NAME, versions.catch_up, go_on=go_on)]
    assert [each.epoch for each in found] == [1]
    assert looks == [State.VERIFIED, State.SWAPPING, State.BUILT]


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
    commands.compare_(CommandCall(tmp_path), NAME)
    assert "1" in capsys.readouterr().out.splitlines()[-1]
    for _ in range(5):
        versions.live()
    commands.compare_(CommandCall(tmp_path, as_json=True), NAME)
    told = json.loads(capsys.readouterr().out)
    assert [(each["epoch"], each["differing"]) for each in told["drift"]] == [(1, 0), (6, 2)]
    assert told["drift"][-1]["columns"] == {"word": 2}


def test_the_drift_of_a_number_says_by_how_much() -> None:
    def compared(epoch: int, most: float | None) -> Replay:
        drift = {"name": "total", "rows": 500 * epoch, "greatest": most}
        counts = dict.fromkeys(("live_rows", "built_rows", "differing"), 500 * epoch)
        detail = {**counts, "missing": 0, "extra": 0, "drift": [drift]}
        return replay_row(Epoch(epoch), detail)

    told = [drift_of(compared(1, 2.5)), drift_of(compared(3, None))]
    assert [each["by_up_to"] for each in told] == [{"total": 2.5}, {}]
    first, then = drift_page(told, table).splitlines()[1:]
    assert first.endswith("total in 500 rows by up to 2.5")
    assert then.endswith("total in 1,500 rows")
    assert drift_line(told[0]).endswith("differing 500 of 500: total in 500 rows by up to 2.5")


def replay_row(epoch: Epoch, detail: dict[str, object]) -> Replay:
    """Return a comparison's row of the book."""
    return Replay(
        name=NAME,
        generation=2,
        base=1,
        state=State.DIFFERS,
        epoch=epoch,
        text="",
        base_text="",
        include_late=False,
        detail=detail,
        at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_a_failing_row_is_told_without_a_setting_that_is_refused() -> None:
    said = '[DIVIDE_BY_ZERO] Division by zero. If necessary set "spark.sql.ansi.enabled" to "false"'
    error = slice_failed(
        replay_row(Epoch(0), {}), 3, "id = 7", ValueError(f"{said} to bypass this error. SQLSTATE")
    )
    assert error.message.endswith("row of id = 7: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE")
