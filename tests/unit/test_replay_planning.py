"""What a plan says of a change, of time and of disk, and when it is stale."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import apps.cli.replay_builds as commands
from apps.cli import build
from apps.cli.commands import CommandCall
from apps.cli.output import table
from kernel.errors import Conflict, InvalidRequest, StorageFull
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from pipeline.ddl.held_tables import NO_ORDER, Hold
from pipeline.executor import Executor
from projections.run.catalog import LIVE, PROJECTION, Entry
from replay.book import Replay, ReplayBook, State
from replay.build import Builder
from replay.build_requests import read_plan
from replay.pages import plan_page
from replay.planning import ReplayChange, ReplayPlan, plan_replay, refuse_changed, refuse_full
from replay.rates import FAST_ROWS_PER_S, RatesOf
from replay.subject import anything_new, reachable, subject_of
from tests.support.lake.handmade import SQL, HandMade, NoSpark, words
from tests.support.lake.swaps import swap

NAME = "report"
TOLD = "typed/events.thing.told"


@pytest.fixture
def made(lake: Lake) -> HandMade:
    """A projection that is live up to epoch 1, and a row that came after that."""
    handmade = HandMade(lake)
    handmade.deploy(NAME)
    for epoch, count in ((1, 3), (2, 1)):
        handmade.epoch()
        rows = [(number, "w") for number in range(count)]
        handmade.derive({TOLD: words(*rows, epoch=epoch, _late=[False] * count)}, epoch)
    handmade.run(NAME, words((1, "w"), (2, "w")), 1)
    return handmade


def took(made: HandMade, name: str, rows: int, seconds: float, *, generation: int) -> None:
    built = Replay(
        name=name,
        generation=generation,
        base=1,
        state=State.BUILT,
        epoch=Epoch(1),
        include_late=False,
        text="",
        base_text="",
        detail={"rows": rows, "seconds": seconds},
    )
    book = ReplayBook(made.lake, Tables())
    book.record(built)
    book.record(built.now(State.VERIFIED, detail={"equal": True}))


def document(plan: ReplayPlan) -> Mapping[str, Any]:
    """Return a plan as another process reads it from a file."""
    found: Mapping[str, Any] = json.loads(json.dumps(asdict(plan)))
    return found


def test_an_unchanged_query_is_computed_again_over_what_the_live_one_has(made: HandMade) -> None:
    plan = plan_replay(made.site, NAME)
    assert (plan.change, plan.types, plan.text) == (ReplayChange.NONE, (), None)
    assert (plan.epochs, plan.rows, plan.later) == ((1, 1), 3, 1)
    assert (plan.generation, plan.live_generation, plan.slices) == (2, 1, 1)
    assert plan.go_back == f"penstock replay rollback {NAME}"
    again = replace(plan_replay(made.site, NAME), free_bytes=plan.free_bytes)
    assert document(again) == document(plan), "what did not change reads the same"


def test_a_plan_has_the_slices_of_who_makes_them(
    made: HandMade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors take smaller ones, so that the time left is known early."""
    monkeypatch.setattr("replay.slices.LEAST_ROWS", 1)
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", made.lake.root)
    monkeypatch.chdir(tmp_path)
    slices = {}
    for executor in Executor:
        monkeypatch.setenv("PENSTOCK_PIPELINE_EXECUTOR", executor.value)
        told = CliRunner().invoke(build(), ["replay", "plan", NAME, "--json"])
        slices[executor] = json.loads(told.stdout)["slices"]
    assert slices == {Executor.AUTO: 1, Executor.DRIVER: 1, Executor.SPARK: 3}


@pytest.mark.parametrize(
    ("old", "new", "change", "why", "types"),
    [
        ("WITH (", "WITH (freshness = '9 seconds', ", ReplayChange.COMPATIBLE, "rows stay", ()),
        ("id, word", "id,  word", ReplayChange.NONE, "computed again", ()),
        ("id, word", "id, upper(word) AS word", ReplayChange.NEW_GENERATION, "another one", ()),
        (
            "id, word",
            "id, id + 1 AS more",
            ReplayChange.NEW_GENERATION,
            "another one",
            (("word", "STRING", None), ("more", None, "BIGINT")),
        ),
        ("key = 'id'", "key = 'word'", ReplayChange.NEW_GENERATION, "key was id and is word", ()),
    ],
)
def test_the_kind_of_change_is_told_with_its_reason(
    made: HandMade,
    old: str,
    new: str,
    change: ReplayChange,
    why: str,
    types: tuple[tuple[str, str | None, str | None], ...],
) -> None:
    text = SQL.format(name=NAME, key="id").replace(old, new)
    plan = plan_replay(made.site, NAME, text=text)
    assert plan.change is change
    assert why in plan.why
    assert tuple((t.name, t.live, t.built) for t in plan.types) == types


def test_p5_nothing_is_built_past_what_an_input_lacks(made: HandMade) -> None:
    """Rows of a held table come under the epochs that it missed."""
    for epoch in (3, 4):
        made.epoch()
        rows = words((epoch, "o"), epoch=epoch)
        made.derive({TOLD: rows, "typed/events.thing.other": rows}, epoch)
    made.deploy("new")
    assert plan_replay(made.site, "new").epochs == (1, 4)
    made.epoch()
    hold = Hold(order=NO_ORDER, reason="no space left", from_epoch=3)
    later = replace(hold, from_epoch=4)
    made.note("typed", {TOLD: 2}, 5, held={"typed/events.thing.other": replace(hold, from_epoch=2)})
    assert plan_replay(made.site, "new").epochs == (1, 5), "it does not read that one"
    made.epoch()
    made.note("typed", {}, 6, held={"typed/events": later, TOLD: hold})
    assert plan_replay(made.site, "new").epochs == (1, 2)
    assert reachable(made.site, subject_of(made.site, NAME)) == 2
    assert plan_replay(made.site, NAME).epochs == (1, 1), "not beyond the live one"
    assert anything_new(made.site, subject_of(made.site, NAME), Epoch(6)), "there may be"
    built = made.build(NAME, words((1, "w")), 2)
    with pytest.raises(Conflict, match=f"generation 2 of {NAME} waits for .* held since") as held:
        Builder(NoSpark(), made.site, lambda _: None).catch_up(built, Epoch(6))
    assert str(held.value.remedy).startswith("penstock table retry typed/events")


def test_a_table_that_is_held_from_its_first_epoch_on_is_named(made: HandMade) -> None:
    """As where nobody has the schema of any of its rows: waiting would not help."""
    made.deploy("new")
    made.epoch()
    lost = Hold(order=NO_ORDER, reason="no schema with id 7", from_epoch=1)
    made.note("typed", {TOLD: 2}, 3, held={TOLD: lost})
    (held,) = plan_replay(made.site, "new").held
    assert (held.name, held.from_epoch, held.reason) == (TOLD, 1, lost.reason)
    with pytest.raises(Conflict, match=f"generation 2 of new waits for {TOLD}, held") as refused:
        Builder(NoSpark(), made.site, lambda _: None).build("new")
    assert refused.value.remedy == held.fix == f"penstock table retry {TOLD}"


def test_late_rows_make_a_new_generation(made: HandMade) -> None:
    plan = plan_replay(made.site, NAME, include_late=True)
    assert (plan.change, plan.why) == (ReplayChange.NEW_GENERATION, "late rows are taken in")


def test_time_is_taken_from_builds_that_were_measured(made: HandMade) -> None:
    assert plan_replay(made.site, NAME).rates.of is RatesOf.ASSUMED
    assert plan_replay(made.site, NAME).rates.fastest == FAST_ROWS_PER_S
    took(made, NAME, 10, 5.0, generation=2)
    assert plan_replay(made.site, NAME).rates.of is RatesOf.ASSUMED, "too small to say anything"
    took(made, "other", 1_000_000, 10.0, generation=2)
    others = plan_replay(made.site, NAME).rates
    assert (others.of, others.slowest, others.fastest) == (RatesOf.OTHERS, 100_000, 100_000)
    took(made, NAME, 1_000_000, 20.0, generation=3)
    took(made, NAME, 1_000_000, 40.0, generation=4)
    own = plan_replay(made.site, NAME).rates
    assert (own.of, own.slowest, own.fastest) == (RatesOf.THIS, 25_000, 50_000)
    low, high = own.seconds(1_000_000)
    assert (low, high) == (28, 56)


def test_projections_that_read_it_are_named(made: HandMade) -> None:
    assert plan_replay(made.site, NAME).downstream == ()
    made.deploy("other")
    (other,) = (e for e in made.deployed.entries() if e.name == "other")
    text = other.text.replace("STREAM events.thing.told", NAME)
    made.deployed.put([replace(other, text=text)])
    assert plan_replay(made.site, NAME).downstream == ("other",)


def test_a_generation_that_finds_no_room_is_refused(made: HandMade) -> None:
    plan = plan_replay(made.site, NAME)
    assert plan.fits
    refuse_full(plan)
    full = replace(plan, free_bytes=plan.needed_bytes - 1)
    with pytest.raises(StorageFull, match=f"needs {plan.needed_bytes:,} bytes and"):
        refuse_full(full)
    refuse_full(replace(plan, free_bytes=None))
    refuse_full(replace(plan, free_bytes=plan.needed_bytes + 7, reserve_bytes=7))
    kept = replace(plan, free_bytes=plan.needed_bytes + 6, reserve_bytes=7)
    assert "(7 stay in reserve): too few" in plan_page(kept, table)
    with pytest.raises(StorageFull, match="are free, 7 of which stay in reserve"):
        refuse_full(kept)


def test_a_plan_holds_while_the_log_goes_on_and_not_when_the_query_changed(made: HandMade) -> None:
    plan = document(plan_replay(made.site, NAME))
    made.epoch()
    made.derive({TOLD: words((9, "x"), epoch=3, _late=[False])}, 3)
    made.run(NAME, words((1, "w")), 3)
    refuse_changed(plan, plan_replay(made.site, NAME))
    text = SQL.format(name=NAME, key="id").replace("word", "upper(word) AS word")
    with pytest.raises(Conflict, match=r"stale: query was \w+, is \w+$"):
        refuse_changed(plan, plan_replay(made.site, NAME, text=text))
    (entry,) = made.deployed.entries()
    made.deployed.put([replace(entry, generation=4, text=text)])
    with pytest.raises(Conflict, match="live generation was 1, is 4, generation was 2, is 5, live"):
        refuse_changed(plan, plan_replay(made.site, NAME))
    with pytest.raises(InvalidRequest, match="is no plan"):
        refuse_changed({}, plan_replay(made.site, NAME))


def test_a_plan_is_looked_at_before_an_unfinished_build_of_it_is_gone_on_with(
    made: HandMade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a build of the very query: what it was to replace may be another one by now."""
    (plan := tmp_path / "plan.json").write_text(json.dumps(document(plan_replay(made.site, NAME))))
    text = SQL.format(name=NAME, key="id")
    begun = ReplayBook(made.lake, Tables()).record(
        Replay(
            name=NAME,
            generation=2,
            base=1,
            state=State.STOPPED,
            epoch=Epoch(0),
            include_late=False,
            text=text,
            base_text=text,
        )
    )
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", made.lake.root)
    built: list[str] = []

    class Built:
        def build(self, name: str, **options: object) -> Replay:
            built.append(name)
            return begun

    monkeypatch.setattr(commands, "builder_of", lambda *_: Built())
    commands.apply(CommandCall(tmp_path), [NAME], planned=plan)
    assert built == [NAME]
    (entry,) = made.deployed.entries()
    made.deployed.put([replace(entry, generation=4)])
    with pytest.raises(Conflict, match=r"stale: live generation was 1, is 4$"):
        commands.apply(CommandCall(tmp_path), [NAME], planned=plan)
    assert built == [NAME]


def test_a_swap_of_what_is_read_between_the_look_at_a_plan_and_the_build_is_seen(
    made: HandMade, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = SQL.format(name="reader", key="id").replace("STREAM events.thing.told", NAME)
    made.deployed.put([Entry(kind=PROJECTION, name="reader", generation=1, status=LIVE, text=text)])
    planned = document(plan_replay(made.site, "reader"))
    assert planned["basis"]["inputs"] == {NAME: 1}
    (plan := tmp_path / "plan.json").write_text(json.dumps(planned))
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", made.lake.root)

    def begun(*_: object) -> Builder:
        made.build(NAME, words((1, "w")), 1)
        swap(made.site, NAME, catch_up=lambda replay: replay)
        return Builder(NoSpark(), made.site, lambda _: None)

    monkeypatch.setattr(commands, "builder_of", begun)
    with pytest.raises(Conflict, match=r"stale: inputs was .'report': 1., is .'report': 2."):
        commands.apply(CommandCall(tmp_path), ["reader"], planned=plan)
    assert ReplayBook(made.lake, Tables()).of("reader") == [], "nothing was begun"
    earlier = {name: value for name, value in planned["basis"].items() if name != "inputs"}
    with pytest.raises(Conflict, match="inputs was None"):
        refuse_changed({"basis": earlier}, plan_replay(made.site, "reader"))


def test_a_build_that_is_gone_on_with_asks_for_no_room_and_takes_the_rate(
    made: HandMade,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    query = "id, row_number() OVER (PARTITION BY word ORDER BY occurred_at) AS place"
    text = SQL.format(name=NAME, key="id").replace("id, word", query)
    (entry,) = made.deployed.entries()
    made.deployed.put([replace(entry, text=text)])
    begun = replace(made.build(NAME, words((1, "w")), 1, text=text), state=State.STOPPED)
    rates: list[object] = []

    class Built:
        def build(self, name: str, **options: object) -> Replay:
            rates.append(options["rate"])
            return begun

    monkeypatch.setenv("PENSTOCK_LAKE_PATH", made.lake.root)
    monkeypatch.setattr(commands, "builder_of", lambda *_: Built())
    monkeypatch.setattr("replay.planning.storage.free_bytes", lambda _: 0)
    with pytest.raises(StorageFull):
        commands.apply(CommandCall(tmp_path), [NAME], rate=5.0)
    ReplayBook(made.lake, Tables()).record(begun)
    commands.apply(CommandCall(tmp_path), [NAME], rate=5.0)
    assert rates == [5.0]
    assert "report is built in one slice: --rate has no effect" in capsys.readouterr().err
    commands.apply(CommandCall(tmp_path), [NAME])
    assert not capsys.readouterr().err
    plan = plan_replay(made.site, NAME)
    assert "it is one slice, however large: --rate has no effect" in plan_page(plan, table)
    sliced = plan_replay(made.site, NAME, text=SQL.format(name=NAME, key="id"))
    assert "--rate" not in plan_page(sliced, table)


@pytest.mark.parametrize(
    ("text", "given", "complaint"),
    [
        ('{"name": "report"}', False, "it lacks basis, include_late, text"),
        ('{"name": "other"}', False, "is no plan for report"),
        ("[", False, "is no plan"),
        ("[" * 100_000, False, "is no plan"),
        (
            '{"name": "report", "basis": {}, "include_late": 1, "text": "x"}',
            False,
            "its query is none",
        ),
        (
            '{"name": "report", "basis": {}, "include_late": false, "text": 1}',
            False,
            "its query is none",
        ),
        ("{}", True, "give nothing beside it"),
    ],
)
def test_a_file_that_is_no_plan_or_has_another_beside_it_is_refused(
    tmp_path: Path, text: str, given: bool, complaint: str
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=complaint):
        read_plan(file, "report", given=given)


def test_a_plan_names_what_stays_silent_up_to_which_position(made: HandMade) -> None:
    plan = plan_replay(made.site, NAME)
    assert [each.what for each in plan.silent] == ["the change feed"]
    made.epoch(head=41)
    text = SQL.format(name=NAME, key="id").replace("WITH (", "WITH (sink = 'topic:told', ")
    silent = plan_replay(made.site, NAME, text=text).silent
    assert [each.what for each in silent] == ["the change feed", "sink topic:told"]
    assert {each.epoch for each in silent} == {1}, "what the live one gave out, not what came since"
    assert {*silent[0].positions.values()} == {0}
    made.run(NAME, words((1, "w")), 3)
    made.derive({TOLD: words((9, "w"), epoch=3, _late=[False])}, 3)
    (feed,) = plan_replay(made.site, NAME).silent
    assert (feed.epoch, [*feed.positions.values()]) == (3, [41])
    told = document(plan_replay(made.site, NAME))
    again = replace(plan_replay(made.site, NAME), free_bytes=told["free_bytes"])
    assert document(again) == told


def test_a_plan_names_what_readers_of_the_result_must_know(made: HandMade) -> None:
    assert plan_replay(made.site, NAME).new_features == ()
    ntz = "CAST('2013-01-01' AS TIMESTAMP_NTZ) AS word FROM"
    text = SQL.format(name=NAME, key="id").replace("word FROM", ntz)
    assert plan_replay(made.site, NAME, text=text).new_features == ("timestampNtz",)
