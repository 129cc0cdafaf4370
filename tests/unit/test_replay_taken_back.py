"""Generations that were the table, and what is told of them once they were taken back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import Conflict, LeaseLost, NotFound, Unavailable
from kernel.positions import CLOSED, Epoch
from lake.layout import Lake
from lake.savepoints import SavepointBook
from lake.tables import TableAt, Tables
from lake.upkeep.compaction import vacuum
from lake.writer import ArrowWriter, Guard
from pipeline.commit.retention import derived_names
from projections.run.catalog import CLAIMED_FOR
from projections.run.notes import noted_by
from projections.serve.pinned_epochs import PinnedTables
from projections.serve.savepoints import create
from projections.sql.statements.parse import parse_script
from replay import cancel as cancelling
from replay import swap_commits
from replay.book import ReplayBook, State
from replay.build import Builder
from replay.cancel import cancel, remove_abandoned
from replay.deployment import apply
from replay.generation_files import _Leftovers, remove_leftovers
from replay.generations import build_app, generation_name, live_app
from replay.planning import plan_replay, refuse_changed
from replay.slices import slice_guard
from replay.subject import entry_of
from tests.support.lake.handmade import NoSpark
from tests.support.lake.swapped_report import NAME, STABLE, SwappedReport, rows
from tests.support.lake.swaps import rollback, swap


@pytest.fixture
def report(tmp_path: Path) -> SwappedReport:
    return SwappedReport(Lake.at(str(tmp_path / "lake")))


def swapped(report: SwappedReport) -> None:
    report.build()
    swap(report.site, NAME, report.catch_up)


def words_of(report: SwappedReport) -> set[str]:
    return set(report.stable.to_pyarrow_table()["word"].to_pylist())


def words_at(report: SwappedReport, epoch: int) -> set[str]:
    pinned = PinnedTables(report.lake).at([STABLE], Epoch(epoch), None)
    return set(pinned.frames[STABLE].to_table()["word"].to_pylist())


def test_each_rollback_goes_one_generation_back(report: SwappedReport) -> None:
    swapped(report)
    swapped(report)
    rollback(report.site, NAME)
    assert (report.live, words_of(report)) == (2, {"of 2"})
    rollback(report.site, NAME)
    assert (report.live, words_of(report)) == (1, {"of 1"})
    cursors = [report.stable.transaction_version(live_app(NAME, n)) for n in (1, 2, 3)]
    assert cursors == [1, CLOSED, CLOSED]
    with pytest.raises(NotFound, match="no generation that is swapped"):
        rollback(report.site, NAME)
    report.epochs(live=True)
    assert words_of(report) == {"of 1"}


def test_files_that_are_the_tables_are_not_removed_as_old_ones_of_their_generation(
    report: SwappedReport,
) -> None:
    """Of two operators who swap it, one brings it forward after the other one's commit."""
    report.build()
    (built,) = ReplayBook(report.lake, Tables()).of(NAME)
    place = generation_name(NAME, 2)
    report.made.note(build_app(NAME, 2), {place: 0}, 1)
    assert place in derived_names(report.lake)
    swap(report.site, NAME, report.catch_up)
    report.epochs(live=False)
    report._write(built.now(State.BUILT, epoch=Epoch(report.head)))
    for name in derived_names(report.lake) & {place}:
        version = DeltaTable(report.lake.path(name)).version()
        at = {name: TableAt(version=version, as_of_epoch=report.head)}
        vacuum(report.lake, Tables(), at, retention=timedelta(0))
    assert words_of(report) == {"of 2"}
    rollback(report.site, NAME)
    assert place not in derived_names(report.lake)


def test_an_epoch_stays_what_its_readers_had_whoever_goes_live_later(
    report: SwappedReport,
) -> None:
    swapped(report)
    report.epochs(live=True)
    report.epochs(live=True)
    rollback(report.site, NAME)
    report.run()
    report.epochs(live=True)
    assert [words_at(report, epoch) for epoch in (1, 3, 4)] == [{"of 1"}] * 3
    swapped(report)
    report.epochs(live=True)
    assert [words_at(report, epoch) for epoch in (1, 3)] == [{"of 1"}] * 2
    assert words_at(report, 5) == {"of 3"}
    site = report.site
    published = site.deployed.published()[NAME]
    assert published == [3, 1]
    noted = noted_by(report.lake, site.manifest, NAME, published=published, up_to=Epoch(3))
    assert noted is not None
    assert noted.generation == 1
    kept = create(report.lake, "third", epoch=Epoch(3)).savepoint
    (table,) = SavepointBook(report.lake, Tables()).tables_of(kept, [STABLE])
    assert set(table.rows(report.lake).to_table()["word"].to_pylist()) == {"of 1"}


def with_options(report: SwappedReport) -> str:
    text = entry_of(report.site, NAME).text
    text = text.replace("(key = 'id')", "(key = 'id', freshness = '1 hour')")
    apply(report.site, [], parse_script(text).projections)
    return entry_of(report.site, NAME).text


def test_options_that_were_given_since_the_build_outlive_the_swap_and_its_rollback(
    report: SwappedReport,
) -> None:
    report.build()
    text = with_options(report)
    assert "1 hour" in text
    swap(report.site, NAME, report.catch_up)
    assert entry_of(report.site, NAME).text == text
    rollback(report.site, NAME)
    assert entry_of(report.site, NAME).text == text


def test_a_swap_to_another_query_does_not_undo_options_in_silence(report: SwappedReport) -> None:
    report.build(text=entry_of(report.site, NAME).text.replace("word FROM", "word AS word FROM"))
    with_options(report)
    with pytest.raises(Conflict, match="given other options") as refused:
        swap(report.site, NAME, report.catch_up)
    assert "penstock replay cancel report" in refused.value.remedy
    assert words_of(report) == {"of 1"}


def test_a_second_build_that_begins_at_the_same_moment_is_refused(report: SwappedReport) -> None:
    report.build()
    book = ReplayBook(report.lake, Tables())
    (built,) = book.of(NAME)
    book.record(built.now(State.BUILDING))
    with pytest.raises(Conflict, match="generation 2 of report is building meanwhile"):
        book.begin(replace(built.now(State.BUILDING), generation=3))
    with pytest.raises(Conflict, match="generation 2 of report is building meanwhile"):
        book.begin(built.now(State.BUILDING))
    book.record(built.now(State.CANCELLED))
    assert book.begin(replace(built.now(State.BUILDING), generation=3)).generation == 3


def test_files_of_a_cancelled_build_that_died_are_removed_by_who_comes_next(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.build()
    book = ReplayBook(report.lake, Tables())
    (built,) = book.of(NAME)
    book.record(built.now(State.BUILDING))
    cancel(report.site, NAME)
    files = Path(report.lake.path(generation_name(NAME, 2)))
    assert files.exists(), "its process may be alive, and removes them itself"
    assert remove_abandoned(report.site, NAME) == []
    with pytest.raises(NotFound):
        cancel(report.site, NAME)
    monkeypatch.setattr(cancelling, "ABANDONED_AFTER", timedelta(0))
    assert cancel(report.site, NAME).state is State.CANCELLED
    assert not files.exists()
    with pytest.raises(NotFound):
        cancel(report.site, NAME)


def test_a_plan_is_stale_once_the_meaning_of_its_query_is_another(report: SwappedReport) -> None:
    plan = plan_replay(report.site, NAME)
    refuse_changed({"basis": asdict(plan.basis)}, plan)
    other = asdict(plan.basis) | {"meaning": "of other columns"}
    with pytest.raises(Conflict, match="meaning was of other columns"):
        refuse_changed({"basis": other}, plan)


def test_p10_a_build_that_slept_through_its_swap_writes_nothing_more(
    report: SwappedReport,
) -> None:
    report.build()
    (built,) = ReplayBook(report.lake, Tables()).of(NAME)
    path = report.lake.path(generation_name(NAME, 2))

    class Sleeping(Tables):
        def ensure(self, path: str, schema: Any, **more: Any) -> DeltaTable:
            table = super().ensure(path, schema, **more)
            swap(report.site, NAME, report.catch_up)
            return table

    amid_its_commit = ArrowWriter(Sleeping())
    builder = Builder(NoSpark(), report.site, lambda _: None)
    with pytest.raises(LeaseLost):
        amid_its_commit.append(path, rows(2, 9), Guard(build_app(NAME, 2), Epoch(9)))
    report.epochs(live=True)
    before = DeltaTable(path).version()
    with pytest.raises(LeaseLost):
        builder.catch_up(built, Epoch(report.head))
    ArrowWriter(Tables()).append(path, rows(2, 9), slice_guard(NAME, 2, 7))
    assert DeltaTable(path).version() == before
    assert words_of(report) == {"of 2"}


def rollback_dies(report: SwappedReport, at: str) -> None:
    failpoints.arm(at)
    with pytest.raises(failpoints.Crash):
        rollback(report.site, NAME)
    failpoints.disarm()


def state(report: SwappedReport) -> State:
    return ReplayBook(report.lake, Tables()).of(NAME)[-1].state


def read_by_another(report: SwappedReport) -> None:
    reader = "CREATE PROJECTION reader WITH (key = 'id') AS SELECT id, word FROM report"
    apply(report.site, [], parse_script(reader).projections)


class Later(datetime):
    """A clock that is behind the end of every claim."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Later:
        return cls.fromtimestamp(datetime.now(UTC).timestamp(), tz) + CLAIMED_FOR


def test_a_rollback_that_died_and_is_not_possible_any_more_is_given_up(
    report: SwappedReport,
) -> None:
    swapped(report)
    rollback_dies(report, failpoints.REPLAY_AFTER_CLAIM)
    report.epochs(live=True)
    report.stable.vacuum(0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(Conflict, match="reader reads report, which is being rolled back"):
        read_by_another(report)
    with pytest.raises(NotFound, match="is not kept any more"):
        rollback(report.site, NAME)
    assert state(report) is State.SWAPPED
    read_by_another(report)
    assert words_of(report) == {"of 2"}


def test_a_rollback_that_died_before_its_commit_can_be_cancelled(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped(report)
    rollback_dies(report, failpoints.REPLAY_AFTER_CLAIM)
    with pytest.raises(Conflict) as refused:
        read_by_another(report)
    assert f"penstock replay cancel {NAME} --generation 2" in refused.value.remedy
    with pytest.raises(Conflict, match="is being rolled back"):
        cancel(report.site, NAME)
    monkeypatch.setattr("projections.run.catalog.datetime", Later)
    assert cancel(report.site, NAME, generation=2).state is State.SWAPPED
    read_by_another(report)
    assert words_of(report) == {"of 2"}
    monkeypatch.undo()
    assert rollback(report.site, NAME).generation == 1


def test_a_rollback_that_died_behind_its_commit_cannot_be_cancelled(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped(report)
    rollback_dies(report, failpoints.REPLAY_AFTER_SWAP)
    monkeypatch.setattr("projections.run.catalog.datetime", Later)
    with pytest.raises(Conflict, match="taken back from generation 2 of report already") as refused:
        cancel(report.site, NAME)
    assert refused.value.remedy == f"Finish it: penstock replay rollback {NAME}"
    assert rollback(report.site, NAME).generation == 1


@pytest.mark.parametrize(
    "stop", [Unavailable("the disk"), OSError("the disk"), KeyboardInterrupt()]
)
@pytest.mark.parametrize("command", ["swap", "rollback"])
def test_a_claim_is_given_back_where_the_commit_failed(
    report: SwappedReport, command: str, stop: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def given() -> None:
        if command == "swap":
            swap(report.site, NAME, report.catch_up)
        else:
            rollback(report.site, NAME)

    def failing(*_: object, **__: object) -> None:
        raise stop

    report.build()
    if command == "rollback":
        swap(report.site, NAME, report.catch_up)
    before = state(report)
    with monkeypatch.context() as patches:
        patches.setattr(swap_commits, "publish" if command == "swap" else "put_back", failing)
        with pytest.raises(type(stop)):
            given()
    assert state(report) is before
    assert not report.site.deployed.deployment().claimed(NAME), "the live one goes on at once"
    given()
    assert state(report) is (State.SWAPPED if command == "swap" else State.ROLLED_BACK)


def test_a_commit_whose_answer_was_lost_is_gone_on_with(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def losing(commit: Callable[..., None]) -> Callable[..., None]:
        def committing(*arguments: object, **settings: object) -> None:
            commit(*arguments, **settings)
            raise Unavailable("the storage does not answer")

        return committing

    for commit in ("publish", "put_back"):
        monkeypatch.setattr(swap_commits, commit, losing(getattr(swap_commits, commit)))
    swapped(report)
    assert (state(report), words_of(report)) == (State.SWAPPED, {"of 2"})
    assert rollback(report.site, NAME).generation == 1
    assert (state(report), words_of(report)) == (State.ROLLED_BACK, {"of 1"})


def test_a_rollback_that_is_refused_makes_the_swap_no_younger(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped(report)
    book = ReplayBook(report.lake, Tables())
    (before,) = book.of(NAME)
    assert book.swaps(NAME) == [before]

    def refused(*_: object, looks: bool) -> None:
        raise Conflict("a reader")

    monkeypatch.setattr("replay.claims.hold_places", refused)
    for _ in range(2):
        with pytest.raises(Conflict, match="a reader"):
            rollback(report.site, NAME)
    assert book.of(NAME) == book.swaps(NAME) == [before]


def test_where_others_write_faster_nothing_else_is_skipped(
    report: SwappedReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.build()
    book = ReplayBook(report.lake, Tables())
    (built,) = book.of(NAME)
    book.record(replace(built, name="another"))
    looked: list[str] = []

    def faster(leftovers: _Leftovers) -> list[tuple[str, int]]:
        looked.append(leftovers.name)
        if leftovers.name == "another":
            raise LeaseLost("others were faster")
        return [(leftovers.name, 2)]

    monkeypatch.setattr(_Leftovers, "remove", faster)
    assert remove_leftovers(report.site, retention=timedelta(days=1)) == [(NAME, 2)]
    assert looked == ["another", NAME]
