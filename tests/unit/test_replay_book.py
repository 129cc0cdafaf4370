"""The book of replays, and ending a generation that is not the table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import Cancelled, Conflict, LeaseLost, NotFound
from kernel.positions import CLOSED, Epoch
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Projected
from projections.run.catalog import Entry
from replay import going_live
from replay import swap as swapping
from replay.book import READY, Replay, ReplayBook, State
from replay.cancel import cancel, remove_files
from replay.generations import generation_name, live_app
from replay.pages import short
from replay.subject import entry_of
from replay.swap_place import refuse_half_swapped
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swaps import rollback, swap
from tests.support.services.waiting import until

NAME = "report"


def a_replay(generation: int = 2, state: State = State.BUILDING) -> Replay:
    return Replay(
        name=NAME,
        generation=generation,
        base=1,
        state=state,
        epoch=Epoch(0),
        include_late=False,
        text="new",
        base_text="old",
    )


def unmoved(replay: Replay) -> Replay:
    return replay


def test_the_newest_row_of_a_generation_counts(lake: Lake) -> None:
    book = ReplayBook(lake, Tables())
    started = book.record(a_replay())
    book.record(a_replay(3))
    book.record(started.now(State.BUILT, epoch=Epoch(7), detail={"rows": 3}))
    found = book.of(NAME)
    assert [(r.generation, r.state, r.epoch) for r in found] == [
        (2, State.BUILT, 7),
        (3, State.BUILDING, 0),
    ]
    assert found[0].detail == {"rows": 3}
    assert (found[0].text, found[0].base_text) == ("new", "old")
    assert book.newest(NAME, *READY).generation == 2
    assert book.newest(NAME, State.BUILDING, generation=3).generation == 3


def test_what_is_not_there_is_named(lake: Lake) -> None:
    book = ReplayBook(lake, Tables())
    book.record(a_replay())
    with pytest.raises(NotFound, match="no generation that is swapped"):
        book.newest(NAME, State.SWAPPED)
    with pytest.raises(NotFound, match="no generation 9"):
        book.newest(NAME, State.BUILDING, generation=9)


def test_rows_of_two_processes_do_not_get_lost(lake: Lake) -> None:
    books = [ReplayBook(lake, Tables()) for _ in range(2)]
    for generation in range(2, 12):
        books[generation % 2].record(a_replay(generation))
    assert [r.generation for r in books[0].of(NAME)] == list(range(2, 12))


@pytest.mark.parametrize("end", [State.CANCELLED, State.FAILED])
def test_a_tick_that_meets_an_end_does_not_undo_it(lake: Lake, end: State) -> None:
    """The builder looked, found nothing, and writes when the end is there."""
    builder, canceller = (ReplayBook(lake, Tables()) for _ in range(2))
    building = builder.record(a_replay())
    canceller.record(building.now(end))
    for state in (State.BUILDING, State.BUILT):
        with pytest.raises(Conflict):
            builder.record(building.now(state))
    assert [r.state for r in canceller.of(NAME)] == [end]


def test_no_row_is_lost_that_meets_another_writers(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that comes between a writer's look and its write makes it look again."""
    first, second = (ReplayBook(lake, Tables()) for _ in range(2))
    first.record(a_replay())
    look = first.of
    met: list[Replay] = []

    def of(name: str) -> list[Replay]:
        found = look(name)
        if not met:
            met.append(second.record(a_replay().now(State.CANCELLED)))
        return found

    monkeypatch.setattr(first, "of", of)
    with pytest.raises(Cancelled):
        first.record(a_replay().now(State.BUILT))
    assert [r.state for r in second.of(NAME)] == [State.CANCELLED]


@pytest.fixture
def made(lake: Lake) -> HandMade:
    handmade = HandMade(lake)
    handmade.deploy(NAME)
    handmade.epoch()
    handmade.run(NAME, words((1, "live")), 1)
    handmade.build(NAME, words((1, "built")), 1)
    return handmade


def test_a_cancelled_generation_leaves_no_files_and_the_live_one_alone(made: HandMade) -> None:
    folder = Path(made.lake.path(generation_name(NAME, 2)))
    assert folder.exists()
    assert cancel(made.site, NAME).state is State.CANCELLED
    assert not folder.exists()
    rows = Tables().read(made.lake.path(f"projection/{NAME}"))
    assert rows is not None
    assert rows["word"].to_pylist() == ["live"]
    with pytest.raises(NotFound):
        cancel(made.site, NAME)


def test_a_build_under_way_removes_its_own_files(made: HandMade) -> None:
    book = ReplayBook(made.lake, made.tables)
    book.record(book.of(NAME)[0].now(State.BUILDING))
    cancel(made.site, NAME)
    assert Path(made.lake.path(generation_name(NAME, 2))).exists()


@pytest.mark.parametrize("state", [s for s in State if s is not State.CANCELLED])
def test_only_what_was_cancelled_loses_its_files(made: HandMade, state: State) -> None:
    """A process that stood still for long does not know what became of its generation."""
    folder = Path(made.lake.path(generation_name(NAME, 2)))
    book = ReplayBook(made.lake, made.tables)
    mine = book.of(NAME)[0]
    book.record(mine.now(state))
    remove_files(made.site, mine)
    assert folder.exists()


def test_what_became_the_table_cannot_be_cancelled(made: HandMade) -> None:
    book = ReplayBook(made.lake, made.tables)
    built = book.of(NAME)[0]
    swap(made.site, NAME, unmoved)
    with pytest.raises(NotFound):
        cancel(made.site, NAME)
    book.record(replace(built, state=State.BUILT))  # as a crash after the commit leaves it
    with pytest.raises(Conflict, match="is the table already"):
        cancel(made.site, NAME)
    rows = Tables().read(made.lake.path(f"projection/{NAME}"))
    assert rows is not None
    assert rows["word"].to_pylist() == ["built"]


def test_a_cancel_that_meets_a_swap_takes_no_files_from_it(made: HandMade) -> None:
    failpoints.arm(failpoints.REPLAY_AFTER_CLAIM, "hold")
    with ThreadPoolExecutor(1) as beside:
        swapping = beside.submit(swap, made.site, NAME, unmoved)
        try:
            book = ReplayBook(made.lake, Tables())
            until(lambda: book.of(NAME)[0].state is State.SWAPPING, "the swap has claimed it")
            with pytest.raises(Conflict, match="is being swapped"):
                cancel(made.site, NAME)
        finally:
            failpoints.disarm()
        assert swapping.result(timeout=60).generation == 2
    rows = Tables().read(made.lake.path(f"projection/{NAME}"))
    assert rows is not None
    assert rows["word"].to_pylist() == ["built"]


def test_a_swap_that_meets_a_cancel_leaves_the_live_table(made: HandMade) -> None:
    handed: list[Replay] = []

    def cancelled_meanwhile(replay: Replay) -> Replay:
        handed.append(replay)
        cancel(made.site, NAME)
        return replay.now(replay.state, epoch=Epoch(2), detail=replay.detail)

    made.epoch()
    made.run(NAME, words((1, "ahead")), 2)
    made.derive({"typed/events.thing.told": words((1, "x"), epoch=2)}, 2)
    with pytest.raises(Cancelled):
        swap(made.site, NAME, cancelled_meanwhile)
    assert handed
    rows = Tables().read(made.lake.path(f"projection/{NAME}"))
    assert rows is not None
    assert rows["word"].to_pylist() == ["ahead"]


def test_a_swap_that_died_behind_its_claim_is_finished_by_the_same_command(made: HandMade) -> None:
    failpoints.arm(failpoints.REPLAY_AFTER_CLAIM)
    with pytest.raises(failpoints.Crash):
        swap(made.site, NAME, unmoved)
    with pytest.raises(Conflict, match="its swap was interrupted") as refused:
        cancel(made.site, NAME)
    assert f"penstock replay swap {NAME} --generation 2" in str(refused.value.remedy)
    assert swap(made.site, NAME, unmoved).generation == 2
    assert rollback(made.site, NAME).generation == 1


@pytest.mark.parametrize("newer", [2, 3])
def test_p10_of_two_generations_the_one_whose_swap_died_is_named_by_what_refuses_the_other(
    made: HandMade, newer: int
) -> None:
    """A name alone stands for the newest one, whichever it was that died."""
    made.build(NAME, words((1, "other")), 1, generation=3)
    died, other = (5 - newer, newer)
    failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
    with pytest.raises(failpoints.Crash):
        swap(made.site, NAME, unmoved, generation=died)
    finish = f"penstock replay swap {NAME} --generation {died}"
    with pytest.raises(Conflict, match=f"replaced by another one than {other}") as refused:
        swap(made.site, NAME, unmoved, generation=other)
    assert refused.value.remedy == f"Finish what was begun: {finish}"
    with pytest.raises(Conflict, match=f"a swap or rollback of {NAME} was interrupted") as refused:
        refuse_half_swapped(made.site, NAME, 1)
    assert refused.value.remedy == f"Finish what was begun: {finish}"
    assert swap(made.site, NAME, unmoved, generation=died).generation == died
    with pytest.raises(Conflict, match=f"generation {died} of {NAME} is live"):
        swap(made.site, NAME, unmoved, generation=other)


@pytest.mark.parametrize("at", [failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP])
def test_why_a_generation_is_swapped_all_the_same_is_kept_though_the_swap_died(
    made: HandMade, at: str
) -> None:
    failpoints.arm(at)
    with pytest.raises(failpoints.Crash):
        swap(made.site, NAME, unmoved, reason="said the auditor")
    swap(made.site, NAME, unmoved)
    (swapped,) = ReplayBook(made.lake, Tables()).of(NAME)
    assert swapped.detail["reason"] == "said the auditor"
    assert short(swapped) == "swapped without a good comparison: said the auditor"


def test_a_reason_from_before_a_good_comparison_counts_no_more(lake: Lake) -> None:
    book = ReplayBook(lake, Tables())
    book.record(a_replay().now(State.BUILT, detail={"reason": "said the auditor"}))
    book.record(a_replay().now(State.BUILT))
    assert book.reason(NAME, 2) == "said the auditor"
    assert book.reason(NAME, 3) is None
    book.record(a_replay().now(State.VERIFIED))
    assert book.reason(NAME, 2) is None


@pytest.mark.parametrize("at", [failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP])
def test_p10_a_swap_that_slept_while_another_made_it_and_took_it_back_changes_nothing(
    made: HandMade, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[str] = []

    def sleeping(name: str) -> None:
        if name == at and not slept:
            slept.append(name)
            assert swap(HandMade(made.lake).site, NAME, unmoved).generation == 2
            assert rollback(HandMade(made.lake).site, NAME).generation == 1

    monkeypatch.setattr(failpoints, "hit", sleeping)
    with pytest.raises(Conflict, match="is rolled back meanwhile"):
        swap(made.site, NAME, unmoved)
    assert slept
    assert ReplayBook(made.lake, Tables()).of(NAME)[0].state is State.ROLLED_BACK
    assert entry_of(made.site, NAME).generation == 1
    rows = Tables().read(made.lake.path(f"projection/{NAME}"))
    assert rows is not None
    assert rows["word"].to_pylist() == ["live"]


def test_p10_a_swap_that_slept_while_a_rollback_was_half_done_commits_no_epoch(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is the old one again, and the book does not tell yet."""
    slept: list[str] = []

    def sleeping(name: str) -> None:
        if name == failpoints.REPLAY_AFTER_CLAIM and not slept:
            slept.append(name)
            swap(HandMade(made.lake).site, NAME, unmoved)
            slept.append("rollback")
            with pytest.raises(failpoints.Crash):
                rollback(HandMade(made.lake).site, NAME)
        elif slept[-1:] == ["rollback"] and name == failpoints.REPLAY_AFTER_SWAP:
            slept.append("died")
            raise failpoints.Crash(name)

    monkeypatch.setattr(failpoints, "hit", sleeping)
    with pytest.raises(Conflict, match="generation 2 of report is rolling back meanwhile"):
        swap(made.site, NAME, unmoved)
    assert slept[-1] == "died"
    last = made.site.manifest.last()
    assert last is not None
    assert last.epoch == 1
    assert rollback(made.site, NAME).generation == 1
    assert swap_is_taken_back(made)


def test_a_generation_is_not_swapped_upon_a_swap_that_died(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were built to replace the first one, whose cursor is closed by now."""
    made.build(NAME, words((1, "also built")), 1, generation=3)
    failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
    with pytest.raises(failpoints.Crash):
        swap(made.site, NAME, unmoved, generation=3)
    monkeypatch.setattr(swapping, "ATTEMPTS", 1)
    with pytest.raises(Conflict, match="generation 1 of report was replaced"):
        swap(made.site, NAME, unmoved, generation=2)
    assert swap(made.site, NAME, unmoved, generation=3).generation == 3
    assert shown(made) == ["also built"]


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("manifest", "generation 2 of report is rolled back meanwhile"),
        ("catalog", "taken back from generation 2 of report"),
    ],
)
def test_p10_a_swap_that_slept_before_it_deployed_does_not_deploy_what_was_taken_back(
    made: HandMade, at: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[str] = []

    def meanwhile() -> None:
        if not slept:
            slept.append(at)
            swap(HandMade(made.lake).site, NAME, unmoved)
            rollback(HandMade(made.lake).site, NAME)

    project, look = Manifest.project, going_live.refuse_another

    def projecting(self: Manifest, done: Projected, *, again: bool = False) -> None:
        project(self, done, again=again)
        meanwhile()

    def looking(entry: Entry, replay: Replay) -> None:
        look(entry, replay)
        meanwhile()

    if at == "manifest":
        monkeypatch.setattr(Manifest, "project", projecting)
    else:
        monkeypatch.setattr(going_live, "refuse_another", looking)
    with pytest.raises(Conflict, match=why):
        swap(made.site, NAME, unmoved)
    assert slept
    assert swap_is_taken_back(made)


def swap_is_taken_back(made: HandMade) -> bool:
    """Say whether book, catalog and table agree that the first generation is the table again."""
    table = DeltaTable(made.lake.path(f"projection/{NAME}"))
    cursors = [table.transaction_version(live_app(NAME, generation)) for generation in (1, 2)]
    state = ReplayBook(made.lake, Tables()).of(NAME)[0].state
    told = (state, entry_of(made.site, NAME).generation, cursors, shown(made))
    return told == (State.ROLLED_BACK, 1, [1, CLOSED], ["live"])


def shown(made: HandMade) -> list[str]:
    rows = Tables().read(made.lake.path(f"projection/{NAME}"))
    assert rows is not None
    return sorted(rows["word"].to_pylist())


def test_a_claim_is_given_back_where_the_live_one_was_faster(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[State] = []

    def faster(*args: object, **settings: object) -> None:
        states.append(ReplayBook(made.lake, Tables()).of(NAME)[0].state)
        if len(states) > 1:
            # The second claim is taken over: it is not this swap's to give back.
            book = ReplayBook(made.lake, Tables())
            book.record(book.of(NAME)[0].now(State.SWAPPING, detail={"claim": "another"}))
        raise LeaseLost("the live one committed")

    monkeypatch.setattr("replay.swap_commits.publish", faster)
    with pytest.raises(Conflict, match="is swapping meanwhile"):
        swap(made.site, NAME, unmoved)
    assert states == [State.SWAPPING] * 2


def test_a_generation_that_was_built_beside_another_is_not_swapped(made: HandMade) -> None:
    made.build(NAME, words((1, "also built")), 1, generation=3)
    swap(made.site, NAME, unmoved, generation=2)
    with pytest.raises(Conflict, match="was built to replace generation 1"):
        swap(made.site, NAME, unmoved, generation=3)


def test_only_a_swap_can_be_rolled_back_and_once(made: HandMade) -> None:
    with pytest.raises(NotFound):
        rollback(made.site, NAME)
    swap(made.site, NAME, unmoved)
    assert rollback(made.site, NAME).generation == 1
    with pytest.raises(NotFound):
        rollback(made.site, NAME)
    generations = {e.name: e.generation for e in made.site.deployed.entries()}
    assert generations == {NAME: 1}


@pytest.mark.parametrize("gone", ["files", "log"])
def test_a_table_that_is_not_kept_is_not_rolled_back_to(made: HandMade, gone: str) -> None:
    swap(made.site, NAME, unmoved)
    path = made.lake.path(f"projection/{NAME}")
    made.run(NAME, words((1, "on")), 2, generation=2)
    table = DeltaTable(path)
    if gone == "files":
        table.vacuum(0, enforce_retention_duration=False, dry_run=False)
    else:
        table.create_checkpoint()
        for entry in Path(path, "_delta_log").glob("*.json"):
            entry.unlink()
    with pytest.raises(NotFound, match="before generation 2 is not kept any more") as raised:
        rollback(made.site, NAME)
    assert raised.value.remedy is not None
    assert f"penstock replay apply {NAME} --sql" in raised.value.remedy
    assert DeltaTable(path).version() == table.version()


def test_a_generation_that_cannot_follow_the_live_one_is_not_swapped(made: HandMade) -> None:
    made.epoch()
    made.run(NAME, words((1, "ahead")), 2)
    calls: list[Replay] = []

    def in_vain(replay: Replay) -> Replay:
        calls.append(replay)
        return replay

    made.derive({"typed/events.thing.told": words((1, "x"), epoch=2)}, 2)
    with pytest.raises(Conflict, match="cannot be brought to epoch 2, which it has to") as refused:
        swap(made.site, NAME, in_vain)
    assert f"penstock projection status {NAME}; then" in refused.value.remedy
    assert len(calls) == 1
    assert ReplayBook(made.lake, Tables()).of(NAME)[0].state is State.BUILT
    assert not made.deployed.deployment().claimed(NAME), "the live one goes on at once"
    rows = Tables().read(made.lake.path(f"projection/{NAME}"))
    assert rows is not None
    assert rows["word"].to_pylist() == ["ahead"]
