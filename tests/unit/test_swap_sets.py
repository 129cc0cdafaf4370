"""Projections that belong together: readers by name see both new or both old, whatever dies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from apps.cli import build as commands
from kernel import failpoints
from kernel.errors import (
    EXIT_NEEDS_CONFIRMATION,
    Conflict,
    Incompatible,
    InvalidRequest,
    NotFound,
)
from kernel.positions import CLOSED, Epoch
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import DeployedCatalog, Deployment, Entry
from projections.serve.lookups import Lookups
from projections.serve.query import ask
from replay import swap as swapping
from replay.book import READY, Replay, ReplayBook, State
from replay.build import Builder
from replay.cancel import cancel
from replay.generations import live_app
from replay.subject import Site
from replay.swap import rollback_set, swap_set
from tests.support.lake.handmade import SQL, HandMade, NoSpark
from tests.support.lake.swapped_pair import PAIR, SwappedPair
from tests.support.lake.swaps import rollback, swap
from tests.unit.test_projection_rounds import DOUBLED, NUMBERS, PERSONS, SHAPES, Rounds

APART = """
CREATE PROJECTION numbers WITH (key = 'n', freshness = '1 second') AS
SELECT n, COUNT(*) AS persons
FROM (SELECT CAST(LENGTH(person) AS BIGINT) AS n FROM STREAM events.visit) v GROUP BY n;
"""
BOTH = "SELECT (SELECT max(word) FROM first) AS f, (SELECT max(word) FROM second) AS s"
PLACES = [
    pytest.param(failpoints.REPLAY_AFTER_CLAIM, 1, marks=pytest.mark.matrix),
    pytest.param(failpoints.REPLAY_AFTER_CLAIM, 2, marks=pytest.mark.matrix),
    (failpoints.REPLAY_AFTER_SWAP, 1),
    pytest.param(failpoints.REPLAY_AFTER_SWAP, 2, marks=pytest.mark.matrix),
    (failpoints.REPLAY_AFTER_LIVE, 1),
]


@pytest.fixture
def pair(tmp_path: Path) -> SwappedPair:
    return SwappedPair(Lake.at(tmp_path / "lake"))


def built(pair: SwappedPair) -> None:
    for name in PAIR:
        pair.build(name)


def by_name(pair: SwappedPair) -> tuple[str, str]:
    """Return the words of both as a reader by name gets them, all of one generation each."""
    (row,) = ask(pair.lake, BOTH).rows.to_pylist()
    return row["f"], row["s"]


def over_http(pair: SwappedPair) -> tuple[int, int]:
    """Return the generations of both as one look of the service finds them."""
    found = Lookups(pair.lake, most_bytes=0).look().projections
    return found["first"].generation, found["second"].generation


def both(pair: SwappedPair, generation: int) -> bool:
    word = f"of {generation}"
    return by_name(pair) == (word, word) and over_http(pair) == (generation, generation)


def swap_both(pair: SwappedPair) -> None:
    swap_set(pair.site, pair.members(), pair.bring)


def rollback_both(pair: SwappedPair) -> None:
    rollback_set(pair.site, pair.swapped_ones())


def test_a_set_waits_for_the_notes_of_a_round_whose_rows_are_there(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(pair)
    pair.epochs("second")
    awaited: list[tuple[str, int]] = []
    monkeypatch.setattr(
        swapping, "await_input", lambda _, replay, live: awaited.append((replay.name, int(live)))
    )
    swap_both(pair)
    assert awaited == [("first", pair.head), ("second", pair.head)]
    assert both(pair, 2)


@pytest.mark.parametrize("swaps", [3, pytest.param(20, marks=pytest.mark.matrix)])
def test_p10_swaps_of_two_that_belong_together_are_never_seen_by_half(
    pair: SwappedPair, swaps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two is behind the other one before each swap, in turn.

    A reader looks again and again, and another one behind each commit of the catalog.
    """
    seen: list[tuple[str, str]] = []
    looked: list[tuple[int, int]] = []
    failed: list[BaseException] = []
    over = threading.Event()
    lookups = threading.local()

    def look() -> None:
        seen.append(by_name(pair))
        if not hasattr(lookups, "kept"):
            lookups.kept = Lookups(pair.lake, most_bytes=0)
        found = lookups.kept.look().projections
        looked.append((found["first"].generation, found["second"].generation))

    def read() -> None:
        try:
            while not over.wait(0.1):
                look()
        except BaseException as error:
            failed.append(error)

    def deciding(self: DeployedCatalog, decided: Callable[[], Sequence[Entry]]) -> None:
        decide(self, decided)
        look()

    decide = DeployedCatalog.decide
    monkeypatch.setattr(DeployedCatalog, "decide", deciding)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(swaps):
            if number % 3 == 0:
                pair.epochs(PAIR[number % 2])
            built(pair)
            if number % 5 == 1:
                pair.epochs(*PAIR)
            swap_both(pair)
            if number % 7 == 2:
                rollback_both(pair)
    finally:
        over.set()
        reader.join()
    assert not failed
    assert {first == second for first, second in seen} == {True}
    assert {first == second for first, second in looked} == {True}
    assert len(set(looked)) > 2
    assert both(pair, pair.live("first"))


def test_both_have_one_epoch_and_older_ones_stay_what_they_were(pair: SwappedPair) -> None:
    pair.epochs("first")
    built(pair)
    done = swap_set(pair.site, pair.members(), pair.bring)
    assert [(each.name, each.generation, each.epoch) for each in done] == [
        ("first", 2, 2),
        ("second", 2, 2),
    ]
    assert both(pair, 2)
    rows = ask(pair.lake, BOTH, epoch=Epoch(1)).rows.to_pylist()
    assert rows == [{"f": "of 1", "s": "of 1"}]
    pair.epochs(*PAIR)
    assert both(pair, 2)
    rollback_both(pair)
    assert both(pair, 1)
    assert pair.states() == dict.fromkeys(PAIR, State.ROLLED_BACK)
    pair.epochs(*PAIR)
    assert both(pair, 1)


@pytest.mark.parametrize(("place", "nth"), PLACES)
def test_p10_a_swap_that_dies_is_finished_by_the_next_command_for_either(
    pair: SwappedPair, place: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the live ones that were let go went on, each as far as it can."""
    built(pair)
    failpoints.arm(place, hit=nth)
    with pytest.raises(failpoints.Crash):
        swap_both(pair)
    assert pair.states() == dict.fromkeys(PAIR, State.SWAPPING)
    live = 2 if place == failpoints.REPLAY_AFTER_LIVE else 1
    assert both(pair, live)
    with monkeypatch.context() as patches:
        patches.setattr(Deployment, "claimed", lambda *_: False)
        pair.epochs(*PAIR)
    assert both(pair, live)
    done = swap_set(pair.site, pair.members("second"), pair.bring)
    assert len({each.epoch for each in done}) == 1
    assert pair.states() == dict.fromkeys(PAIR, State.SWAPPED)
    assert both(pair, 2)
    pair.epochs(*PAIR)
    assert both(pair, 2)
    assert (pair.words("first"), pair.words("second")) == ({"of 2"}, {"of 2"})


@pytest.mark.parametrize(("place", "nth"), PLACES)
def test_p10_a_swap_that_dies_can_be_taken_back(pair: SwappedPair, place: str, nth: int) -> None:
    built(pair)
    failpoints.arm(place, hit=nth)
    with pytest.raises(failpoints.Crash):
        swap_both(pair)
    rollback_set(pair.site, pair.swapped_ones("first"))
    assert both(pair, 1)
    assert set(pair.states().values()) <= {State.BUILT, State.ROLLED_BACK}
    pair.epochs(*PAIR)
    assert both(pair, 1)
    assert (pair.words("first"), pair.words("second")) == ({"of 1"}, {"of 1"})


@pytest.mark.parametrize(("place", "nth"), PLACES)
def test_p10_a_rollback_that_dies_is_finished_by_the_next_command_for_either(
    pair: SwappedPair, place: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(pair)
    swap_both(pair)
    failpoints.arm(place, hit=nth)
    with pytest.raises(failpoints.Crash):
        rollback_both(pair)
    live = 1 if place == failpoints.REPLAY_AFTER_LIVE else 2
    assert both(pair, live)
    with monkeypatch.context() as patches:
        patches.setattr(Deployment, "claimed", lambda *_: False)
        pair.epochs(*PAIR)
    assert both(pair, live)
    rollback_set(pair.site, pair.swapped_ones("second"))
    assert pair.states() == dict.fromkeys(PAIR, State.ROLLED_BACK)
    assert both(pair, 1)
    pair.epochs(*PAIR)
    assert both(pair, 1)


def test_an_error_before_the_first_table_leaves_both_as_they_were(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(pair)

    def refused(*_: object, **__: object) -> None:
        raise Conflict("no room")

    monkeypatch.setattr("replay.swap_commits.publish", refused)
    before = DeltaTable(pair.lake.path("replays")).version()
    with pytest.raises(Conflict, match="no room"):
        swap_both(pair)
    told = DeltaTable(pair.lake.path("replays")).version() - before
    assert told == 2, "the claims are made by one commit, and given back by one"
    assert pair.states() == dict.fromkeys(PAIR, State.VERIFIED)
    assert not pair.site.deployed.deployment().claimed("second")
    assert both(pair, 1)


def test_an_error_between_the_tables_leaves_what_the_next_command_finishes(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(pair)
    calls: list[str] = []

    def hit(name: str) -> None:
        calls.append(name)
        if calls.count(failpoints.REPLAY_AFTER_CLAIM) == 2:
            raise Conflict("between")

    with monkeypatch.context() as patches:
        patches.setattr(failpoints, "hit", hit)
        with pytest.raises(Conflict, match="between"):
            swap_both(pair)
    assert pair.states() == dict.fromkeys(PAIR, State.SWAPPING)
    assert both(pair, 1)
    swap_both(pair)
    assert both(pair, 2)


def test_live_ones_that_are_faster_are_caught_up_with(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one commits amid the swap, behind the commit that made the first one new."""
    built(pair)
    hits: list[str] = []

    def hit(name: str) -> None:
        hits.append(name)
        if hits == [failpoints.REPLAY_AFTER_CLAIM, failpoints.REPLAY_AFTER_SWAP, *hits[:1]]:
            with monkeypatch.context() as patches:
                patches.setattr(Deployment, "claimed", lambda *_: False)
                pair.epochs("second")
            assert both(pair, 1)

    monkeypatch.setattr(failpoints, "hit", hit)
    done = swap_set(pair.site, pair.members(), pair.bring)
    assert [each.epoch for each in done] == [2, 2]
    assert both(pair, 2)


def test_who_is_swapped_with_others_goes_neither_on_nor_back_alone(pair: SwappedPair) -> None:
    built(pair)
    failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
    with pytest.raises(failpoints.Crash):
        swap_both(pair)
    with pytest.raises(Conflict, match="is swapping together with generation 2 of second") as told:
        swap(pair.site, "first", lambda replay: replay)
    assert "penstock replay swap first second" in told.value.remedy
    with pytest.raises(Conflict, match="is swapping together with second") as told:
        cancel(pair.site, "first")
    assert "penstock replay rollback first second" in told.value.remedy
    pair.build("second")
    with pytest.raises(Conflict, match="generation 2 of second is swapping together with first"):
        swap(pair.site, "second", lambda replay: replay, generation=3)
    swap_set(pair.site, pair.members("first"), pair.bring)
    with pytest.raises(Conflict, match="was swapped together with generation 2 of second") as told:
        rollback(pair.site, "first")
    assert "penstock replay rollback first second" in told.value.remedy
    assert both(pair, 2)


def test_a_command_names_none_beside_a_set_that_was_begun(pair: SwappedPair) -> None:
    built(pair)
    failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
    with pytest.raises(failpoints.Crash):
        swap_both(pair)
    HandMade(pair.lake).deploy("third")
    pair.run("third")
    pair.build("third")
    with pytest.raises(Conflict, match="is swapping together with"):
        pair.members("first", "third")


def test_who_reads_another_one_goes_behind_it_and_sees_its_new_rows(pair: SwappedPair) -> None:
    """The one that reads is brought to what the other one will be, before it is the table."""
    text = SQL.format(name="first", key="id").replace("STREAM events.thing.told", "second")
    first = pair.build("first")
    pair.book.record(replace(first, text=text))
    pair.build("second")
    brought: list[tuple[str, int, bool]] = []

    def bring(seen: Site, replay: Replay, epoch: Epoch, live: bool) -> Replay:
        generations = seen.deployed.deployment().generations
        brought.append((replay.name, generations["second"], live))
        return pair.bring(seen, replay, epoch, live)

    done = swap_set(pair.site, pair.members(), bring)
    assert [each.name for each in done] == ["second", "first"]
    assert brought == [("first", 2, False)]
    assert pair.site.deployed.published()["second"] == [2, 1]


def test_who_reads_one_that_stays_is_asked_once_more_at_its_epoch(pair: SwappedPair) -> None:
    """Rows of another projection may have changed at the epoch where they stand; nothing tells."""
    HandMade(pair.lake).deploy("third")
    pair.run("third")
    text = SQL.format(name="first", key="id").replace("STREAM events.thing.told", "third")
    pair.book.record(replace(pair.build("first"), text=text))
    pair.build("second")
    brought: list[str] = []

    def bring(seen: Site, replay: Replay, epoch: Epoch, live: bool) -> Replay:
        brought.append(replay.name)
        return pair.bring(seen, replay, epoch, live)

    swap_set(pair.site, pair.members(), bring)
    assert brought == ["first"]


def test_of_two_that_take_a_set_back_at_once_none_is_refused(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(pair)
    swap_both(pair)

    def hit(name: str) -> None:
        if name == failpoints.REPLAY_AFTER_LIVE:
            monkeypatch.undo()
            rollback_both(pair)

    monkeypatch.setattr(failpoints, "hit", hit)
    rollback_both(pair)
    assert pair.states() == dict.fromkeys(PAIR, State.ROLLED_BACK)
    assert both(pair, 1)


def test_where_one_cannot_come_to_the_epoch_of_the_others_nothing_changes(
    pair: SwappedPair,
) -> None:
    pair.epochs("first")
    built(pair)
    with pytest.raises(Conflict, match="cannot be brought to epoch 2, which it has to have"):
        swap_set(pair.site, pair.members(), lambda _, replay, __, ___: replay)
    assert pair.states() == dict.fromkeys(PAIR, State.VERIFIED)
    assert both(pair, 1)


def test_the_commands_take_several_names(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", pair.lake.root)
    monkeypatch.chdir(tmp_path)
    pair.build("first")
    pair.build("second", State.BUILT)

    def given(*words: str) -> tuple[int, str]:
        answer = CliRunner().invoke(commands(), ["replay", *words, *PAIR, "--json"])
        return answer.exit_code, answer.stdout

    code, text = given("swap")
    assert (code, json.loads(text)["needs"]) == (EXIT_NEEDS_CONFIRMATION, "--yes")
    assert "generation 2 of second was not compared" in text
    assert given("swap", "--yes")[0] == EXIT_NEEDS_CONFIRMATION
    assert both(pair, 1)
    code, text = given("swap", "--yes", "--reason", "it is known")
    assert code == 0
    assert [(e["name"], e["generation"], e["epoch"]) for e in json.loads(text)] == [
        ("first", 2, 1),
        ("second", 2, 1),
    ]
    assert both(pair, 2)
    assert [pair.book.reason(name, 2) for name in PAIR] == [None, "it is known"]
    code, text = given("rollback")
    assert (code, [each["generation"] for each in json.loads(text)]) == (0, [1, 1])
    assert both(pair, 1)


def test_several_are_compared_by_one_command(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", pair.lake.root)
    monkeypatch.chdir(tmp_path)
    for name in PAIR:
        pair.build(name, State.BUILT)

    def verified(*words: str) -> tuple[int, str]:
        answer = CliRunner().invoke(commands(), ["replay", "verify", *PAIR, *words, "--json"])
        return answer.exit_code, answer.stdout

    code, text = verified()
    assert (code, [each["verdict"] for each in json.loads(text)]) == (1, ["rows differ"] * 2)
    assert pair.states() == dict.fromkeys(PAIR, State.DIFFERS)
    code, text = verified("--expect", "built.word = 'of 2'")
    assert (code, [each["name"] for each in json.loads(text)]) == (0, [*PAIR])
    assert pair.states() == dict.fromkeys(PAIR, State.VERIFIED)
    for given in (["--generation", "2"], ["--report", "told.json"]):
        answer = CliRunner().invoke(commands(), ["replay", "verify", *PAIR, *given])
        assert isinstance(answer.exception, InvalidRequest)
    assert not Path("told.json").exists()


def test_what_is_known_of_the_first_ones_is_told_where_a_later_one_cannot_be_compared(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", pair.lake.root)
    monkeypatch.chdir(tmp_path)
    built(pair)
    second = pair.book.newest("second", *READY)
    pair.book.record(replace(second, text=SQL.format(name="second", key="other")))
    answer = CliRunner().invoke(commands(), ["replay", "verify", *PAIR, "--json"])
    assert isinstance(answer.exception, Incompatible)
    assert [(e["name"], e["verdict"]) for e in json.loads(answer.stdout)] == [
        ("first", "rows differ")
    ]


def test_a_rollback_to_what_is_not_kept_changes_neither(
    pair: SwappedPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(pair)
    swap_both(pair)
    real = swapping.before_swap

    def before(table: DeltaTable, path: str, replay: Replay) -> DeltaTable:
        if path.endswith("first"):
            raise NotFound("not kept any more")
        return real(table, path, replay)

    monkeypatch.setattr(swapping, "before_swap", before)
    with pytest.raises(NotFound):
        rollback_both(pair)
    assert pair.states() == dict.fromkeys(PAIR, State.SWAPPED)
    assert both(pair, 2)
    for name in PAIR:
        table = Tables().open(pair.lake.path(f"projection/{name}"))
        assert table is not None
        assert table.transaction_version(live_app(name, 1)) == CLOSED


class RoundsWithBuilds:
    """A loop over real queries, and generations of both its projections that a builder brings."""

    def __init__(self, place: Path, numbers: str) -> None:
        self.rounds = Rounds(place, numbers=numbers)
        self.rounds.seen("aab")
        self.rounds.step()
        self.rounds.projecting.states["persons"].due_at = 0.0
        self.rounds.step()
        epoch = self.rounds.projecting.states["persons"].epoch
        for name, text, base in (("persons", DOUBLED, PERSONS), ("numbers", numbers, numbers)):
            table = DeltaTable(self.rounds.lake.path(f"projection/{name}"))
            found = table.to_pyarrow_table(columns=SHAPES[name].names).to_pylist()
            factor = 2 if name == "persons" else 1
            rows = pa.Table.from_pylist(
                [{**row, "n": factor * row["n"]} for row in found], SHAPES[name]
            )
            self.rounds.made.build(name, rows, epoch, text=text, base_text=base)

    def bring(self, seen: Site, replay: Replay, up_to: Epoch, live: bool) -> Replay:
        return Builder(NoSpark(), seen, lambda _: None).catch_up(replay, up_to, live=live)

    def swap(self) -> list[str]:
        book = ReplayBook(self.rounds.lake, Tables())
        members = book.set_of(["persons", "numbers"], *READY, State.SWAPPING)
        done = swap_set(self.rounds.made.site, members, self.bring, reason="known")
        assert len({each.epoch for each in done}) == 1
        return [each.name for each in done]

    def dies(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the swap die between the tables, and the pipeline go on behind it."""
        failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
        with pytest.raises(failpoints.Crash):
            self.swap()
        self.rounds.seen("bbd")
        with monkeypatch.context() as patches:
            patches.setattr(Deployment, "claimed", lambda *_: False)
            self.rounds.step()

    def count(self, sql: str) -> list[object]:
        return list(ask(self.rounds.lake, sql).rows["c"].to_pylist())


@pytest.mark.parametrize("dies", [False, True])
def test_p5_who_reads_another_one_of_the_set_fits_it_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    made = RoundsWithBuilds(tmp_path, NUMBERS)
    rounds = made.rounds
    counted = "SELECT n, count(*) AS persons FROM persons GROUP BY n"
    differ = f"SELECT count(*) AS c FROM ({counted} EXCEPT SELECT n, persons FROM numbers) d"
    rounds.seen("ac")
    rounds.step()
    if dies:
        made.dies(monkeypatch)
    assert made.swap() == ["persons", "numbers"]
    assert rounds.rows("persons") == {"a": 6, "b": 2, "c": 2}
    assert rounds.fits()
    assert made.count(differ) == [0]
    rounds.seen("a")
    rounds.step()
    assert (rounds.error("persons"), rounds.error("numbers")) == (None, None)
    assert rounds.rows("persons")["a"] == 8
    assert rounds.fits()


def test_p10_a_table_that_was_new_when_the_swap_died_is_brought_to_where_the_other_one_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RoundsWithBuilds(tmp_path, APART)
    rounds = made.rounds
    made.dies(monkeypatch)
    assert rounds.rows("persons") == {"a": 4, "b": 2}
    assert rounds.rows("numbers") == {1: 6}
    assert made.swap() == ["persons", "numbers"]
    assert rounds.rows("persons") == {"a": 4, "b": 6, "d": 2}
    both_sums = "SELECT (SELECT sum(n) FROM persons) - 2 * (SELECT sum(persons) FROM numbers) AS c"
    assert made.count(both_sums) == [0]
    rounds.seen("a")
    rounds.projecting.states["persons"].due_at = 0.0
    rounds.step()
    assert (rounds.error("persons"), rounds.error("numbers")) == (None, None)
    assert rounds.rows("persons")["a"] == 6
    assert made.count(both_sums) == [0]
