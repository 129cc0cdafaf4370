"""What generations leave behind is removed after the retention, and nothing that somebody needs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path

import pytest

from apps.pipeline.upkeep import upkeep_of
from apps.settings import DEFAULTS, Setting, Settings
from kernel import failpoints
from kernel.errors import Conflict, NotFound
from kernel.positions import Epoch
from lake import storage
from lake.layout import Lake
from lake.removals import Removals
from lake.savepoints import SavepointBook
from lake.tables import Tables
from projections.run.catalog import DROPPED
from projections.serve.savepoints import create
from replay.bases import Base
from replay.book import CLAIM, Replay, ReplayBook, State
from replay.cancel import cancel
from replay.generation_files import remove_leftovers
from replay.slices import SlicedBuild, Slicing
from tests.support.lake.swapped_report import NAME, STABLE, SwappedReport
from tests.support.lake.swaps import rollback, swap

DAY = timedelta(days=1)
SOON, LATER = timedelta(minutes=1), 2 * DAY


@pytest.fixture
def report(tmp_path: Path) -> SwappedReport:
    return SwappedReport(Lake.at(str(tmp_path / "lake")))


def swapped(report: SwappedReport) -> None:
    """Swap a generation in that was brought forward before, and lies in two files."""
    report.build()
    report.epochs(live=True)
    swap(report.site, NAME, report.catch_up)


def swapped_at_once(report: SwappedReport) -> None:
    """Swap one in on top of the files that the one before was swapped in with."""
    report.build()
    swap(report.site, NAME, report.catch_up)


def removed(report: SwappedReport, *, after: timedelta) -> list[int]:
    now = datetime.now(UTC) + after
    found = remove_leftovers(report.site, retention=DAY, now=now)
    assert {name for name, _ in found} <= {NAME}
    return [generation for _, generation in found]


def removed_since(report: SwappedReport, moment: datetime) -> list[int]:
    now = datetime.now(UTC)
    found = remove_leftovers(report.site, retention=now - moment, now=now)
    return [generation for _, generation in found]


def folder(report: SwappedReport, generation: int) -> Path:
    return Path(report.lake.path(STABLE), "_gen", str(generation))


def files(report: SwappedReport, generation: int) -> set[Path]:
    return {*folder(report, generation).glob("*.parquet")}


def words_of(report: SwappedReport) -> set[str]:
    return set(report.stable.to_pyarrow_table()["word"].to_pylist())


def newest(report: SwappedReport) -> Replay:
    return ReplayBook(report.lake, Tables()).of(NAME)[-1]


def test_files_of_a_generation_that_no_kept_version_names_go(report: SwappedReport) -> None:
    swapped(report)
    assert len(files(report, 2)) == 2
    assert removed(report, after=LATER) == [2], "the file that the table never had"
    assert len(files(report, 2)) == 1
    report.epochs(live=True)
    assert removed(report, after=SOON) == []
    assert len(files(report, 2)) == 1
    assert removed(report, after=LATER) == [2]
    assert not folder(report, 2).exists()
    assert words_of(report) == {"of 2"}
    assert removed(report, after=LATER) == []
    report.epochs(live=True)
    swapped(report)
    assert words_of(report) == {"of 3"}


def test_what_a_rollback_needs_stays_for_the_retention(report: SwappedReport) -> None:
    swapped(report)
    moment = datetime.now(UTC)
    swapped_at_once(report)
    assert removed_since(report, moment) == [2], "the file that the table never had"
    assert removed_since(report, moment) == []
    assert rollback(report.site, NAME).generation == 2
    assert words_of(report) == {"of 2"}


def test_what_was_the_table_between_two_rollbacks_stays_for_the_retention(
    report: SwappedReport,
) -> None:
    """Neither the newest version nor the one of then names it."""
    swapped(report)
    swapped_at_once(report)
    report.epochs(live=True)
    moment = datetime.now(UTC)
    rollback(report.site, NAME)
    swapped_at_once(report)
    removed_since(report, moment)
    assert files(report, 2)
    assert rollback(report.site, NAME).generation == 2
    assert words_of(report) == {"of 2"}


def test_after_the_retention_a_rollback_is_refused(report: SwappedReport) -> None:
    swapped(report)
    swapped_at_once(report)
    assert removed(report, after=LATER) == [2]
    with pytest.raises(NotFound, match="before generation 3 is not kept any more"):
        rollback(report.site, NAME)
    assert words_of(report) == {"of 3"}


def test_a_log_whose_beginning_is_gone_tells_enough(report: SwappedReport) -> None:
    swapped(report)
    report.stable.create_checkpoint()
    commits = Path(report.lake.path(STABLE), "_delta_log").glob("*.json")
    for commit in sorted(commits)[:-1]:
        commit.unlink()
    moment = datetime.now(UTC)
    report.epochs(live=True)
    assert removed(report, after=SOON) == []
    removed_since(report, moment)
    assert len(files(report, 2)) == 1, "the first version that can be read names it"
    assert removed(report, after=LATER) == [2]
    assert words_of(report) == {"of 2"}


def test_what_a_savepoint_holds_stays(report: SwappedReport) -> None:
    swapped(report)
    kept = create(report.lake, "kept", epoch=Epoch(report.head)).savepoint
    report.epochs(live=True)
    removed(report, after=LATER)
    book = SavepointBook(report.lake, Tables())
    (table,) = book.tables_of(kept, [STABLE])
    assert set(table.rows(report.lake).to_table()["word"].to_pylist()) == {"of 2"}
    book.drop(kept)
    removed(report, after=LATER)
    assert not folder(report, 2).exists()


def test_a_savepoint_that_is_dropped_takes_nothing_from_a_rollback(report: SwappedReport) -> None:
    swapped(report)
    kept = create(report.lake, "kept", epoch=Epoch(report.head)).savepoint
    swapped_at_once(report)
    SavepointBook(report.lake, Tables()).drop(kept)
    assert rollback(report.site, NAME).generation == 2
    assert words_of(report) == {"of 2"}


@pytest.mark.parametrize(
    "state",
    [
        State.BUILDING,
        State.PAUSED,
        State.STOPPED,
        State.BUILT,
        State.VERIFIED,
        State.DIFFERS,
        State.SWAPPING,
    ],
)
def test_a_build_that_may_still_be_swapped_or_compared_stays(
    report: SwappedReport, state: State
) -> None:
    report.build()
    ReplayBook(report.lake, Tables()).record(newest(report).now(state, detail={CLAIM: "me"}))
    assert removed(report, after=LATER) == []
    assert newest(report).state is state
    assert files(report, 2)


def test_what_a_build_that_rests_begins_with_stays(report: SwappedReport) -> None:
    swapped(report)
    base = Base(
        asked="epoch 2",
        epoch=Epoch(report.head),
        version=report.stable.version(),
        rows=report.head,
        bytes=1,
        savepoint=None,
        named=None,
        ended_us=None,
    )
    report.epochs(live=True)
    report.build()
    build = SlicedBuild(
        claim="me",
        up_to=Epoch(report.head),
        slicing=Slicing(columns=("id",), slices=1),
        done=0,
        rows=1,
        later=0,
        seconds=(),
        fingerprint="",
        rate=None,
        base=base,
    )
    paused = newest(report).now(State.PAUSED, detail=build.detail)
    ReplayBook(report.lake, Tables()).record(paused)
    assert removed(report, after=LATER) == [2], "the file that the table never had"
    assert files(report, 2)
    cancel(report.site, NAME)
    assert removed(report, after=LATER) == [2]
    assert not folder(report, 2).exists()


def test_a_build_whose_place_was_taken_goes_once_no_rollback_brings_it_back(
    report: SwappedReport,
) -> None:
    report.build()
    report.build()
    swap(report.site, NAME, report.catch_up, generation=2)
    assert removed(report, after=SOON) == []
    rollback(report.site, NAME)
    assert removed(report, after=LATER) == [2], "the live one is what it was built to replace"
    assert swap(report.site, NAME, report.catch_up, generation=3).generation == 3


def test_a_build_whose_place_was_taken_goes_after_the_retention(report: SwappedReport) -> None:
    report.build()
    report.build()
    swap(report.site, NAME, report.catch_up, generation=2)
    assert removed(report, after=LATER) == [3]
    assert not folder(report, 3).exists()
    assert newest(report).state is State.CANCELLED
    assert words_of(report) == {"of 2"}
    with pytest.raises(NotFound):
        swap(report.site, NAME, report.catch_up, generation=3)


def test_a_build_that_is_gone_on_with_meanwhile_is_left_alone(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.build()
    report.build()
    swap(report.site, NAME, report.catch_up, generation=2)

    def moved(*_: object, **__: object) -> None:
        raise Conflict("it moved on")

    monkeypatch.setattr(ReplayBook, "record", moved)
    assert removed(report, after=LATER) == []
    assert files(report, 3)


def test_files_of_a_cancelled_build_that_died_go(report: SwappedReport) -> None:
    report.build()
    ReplayBook(report.lake, Tables()).record(newest(report).now(State.BUILDING))
    cancel(report.site, NAME)
    assert removed(report, after=timedelta(0)) == [], "its process may be alive"
    assert removed(report, after=SOON) == [2]
    assert not folder(report, 2).exists()


def test_generations_of_what_was_dropped_go_too(report: SwappedReport) -> None:
    swapped(report)
    report.epochs(live=True)
    report.made.deployed.set_status(NAME, DROPPED)
    assert removed(report, after=LATER) == [2]
    assert words_of(report) == {"of 2"}


def test_p10_a_rollback_that_came_before_the_announcement_loses_no_file(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped(report)
    swapped_at_once(report)
    announced, met = Removals.announced, list[int]()

    def slept(self: Removals, root: str, paths: list[str]) -> AbstractContextManager[None]:
        if not met:
            met.append(rollback(report.site, NAME).generation)
        return announced(self, root, paths)

    monkeypatch.setattr(Removals, "announced", slept)
    assert removed(report, after=LATER) == []
    assert met == [2]
    assert words_of(report) == {"of 2"}


def test_p10_a_rollback_that_comes_behind_the_announcement_is_refused(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped(report)
    swapped_at_once(report)
    held, met = SavepointBook.held_in, list[str]()

    def amid(self: SavepointBook, root: str) -> frozenset[str]:
        if not met:
            with pytest.raises(NotFound, match="before generation 3 are being removed") as refused:
                rollback(report.site, NAME)
            met.append(refused.value.remedy)
        return held(self, root)

    monkeypatch.setattr(SavepointBook, "held_in", amid)
    assert removed(report, after=LATER) == [2]
    assert f"penstock replay apply {NAME} --sql FILE" in met[0]
    assert newest(report).state is State.SWAPPED, "its claim was given back"
    assert words_of(report) == {"of 3"}


def rollback_dies(report: SwappedReport) -> None:
    failpoints.arm(failpoints.REPLAY_AFTER_CLAIM)
    with pytest.raises(failpoints.Crash):
        rollback(report.site, NAME)
    failpoints.disarm()
    assert newest(report).state is State.ROLLING_BACK


def test_what_a_rollback_that_died_needs_stays_until_it_is_given_up(report: SwappedReport) -> None:
    swapped(report)
    swapped_at_once(report)
    rollback_dies(report)
    report.epochs(live=True)
    assert removed(report, after=LATER) == [2], "the file that the table never had"
    assert files(report, 2)
    assert rollback(report.site, NAME).generation == 2
    assert words_of(report) == {"of 2"}


def test_a_removal_whose_process_was_killed_is_gone_on_with(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped(report)
    report.epochs(live=True)
    remove, gone = storage.remove_file, list[str]()

    def dying(uri: str, path: str) -> None:
        if gone:
            raise failpoints.Crash(path)
        gone.append(path)
        remove(uri, path)

    with monkeypatch.context() as patches:
        patches.setattr(storage, "remove_file", dying)
        with pytest.raises(failpoints.Crash):
            removed(report, after=LATER)
    assert len(files(report, 2)) == 1
    assert removed(report, after=LATER) == [2]
    assert not folder(report, 2).exists()
    assert words_of(report) == {"of 2"}


def test_the_pipeline_removes_them_once_an_hour(
    report: SwappedReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.generation_files.datetime", AfterARetention)
    values = {key: Setting(value=value, origin="default") for key, value in DEFAULTS.items()}
    swapped(report)
    report.epochs(live=True)
    upkeep = upkeep_of(Settings(tmp_path, values), report.lake, None)
    upkeep.rest_after(upkeep.leftovers, DAY)
    assert upkeep.troubles == {}
    assert not folder(report, 2).exists()
    assert words_of(report) == {"of 2"}


class AfterARetention(datetime):
    """A clock that is eight days ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> AfterARetention:
        return cls.fromtimestamp(datetime.now(UTC).timestamp(), tz) + timedelta(days=8)
