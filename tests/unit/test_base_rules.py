"""What a build may begin with: rows that a build from the beginning would give, and no others."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from apps.cli.output import table
from kernel import failpoints
from kernel.errors import Conflict, InvalidRequest, NotFound, PenstockError
from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import Guard
from projections.run.catalog import LIVE, SOURCE, DeployedCatalog, Entry
from projections.run.meanings import MIXED, meaning_of
from projections.serve.savepoints import create, drop
from replay.bases import PART_BYTES, Base, base_of, parts_of, rows_of
from replay.book import State
from replay.build import Builder
from replay.build_requests import asked_start, start_of
from replay.cancel import cancel
from replay.chosen_keys import refuse_condition
from replay.pages import plan_page
from replay.planning import plan_replay, refuse_changed
from replay.starts import Start
from replay.subject import subject_of
from tests.support.lake.handmade import SQL, HandMade, NoSpark, words
from tests.support.oracles.sql_world import planned
from tests.unit.test_replay_planning import document

NAME = "report"
TOLD = "typed/events.thing.told"
KEPT = Start(savepoint="kept")
KEPT_THEN = Start(savepoint="then")


def lived(lake: Lake, *, meanings: tuple[str | None, ...] = (None, None, None)) -> HandMade:
    """Make three epochs, events up to position ten times the epoch; the projection has each."""
    made = HandMade(lake)
    made.deploy(NAME)
    for epoch, meaning in enumerate(meanings, 1):
        made.epoch(head=10 * epoch)
        made.derive({TOLD: words((epoch, "w"), epoch=epoch, _late=[False])}, epoch)
        ours = meaning_of(subject_of(made.site, NAME).plan, include_late=False)
        rows = words(*((n, "w") for n in range(1, epoch + 1)), epoch=epoch)
        made.run(NAME, rows, epoch, meaning=ours if meaning is None else meaning)
    return made


def base(
    made: HandMade, start: Start, *, up_to: int = 3, text: str | None = None, late: bool = False
) -> Base | None:
    site = made.site
    return base_of(site, subject_of(site, NAME, text), start, up_to=Epoch(up_to), include_late=late)


@pytest.mark.parametrize(
    ("start", "epoch"),
    [
        (Start(position=30), 3),
        (Start(position=29), 2),
        (Start(position=10), 1),
        (Start(epoch=Epoch(2)), 2),
    ],
)
def test_p6_a_position_or_time_begins_with_the_last_epoch_that_has_nothing_beyond_it(
    lake: Lake, start: Start, epoch: int
) -> None:
    made = lived(lake)
    found = base(made, start)
    assert found is not None
    assert (found.epoch, found.rows, found.savepoint) == (epoch, epoch, None)
    (part,) = parts_of(made.site, NAME, found)
    assert rows_of(made.lake, part)["id"].to_pylist() == [*range(1, epoch + 1)]


def test_p6_a_time_begins_with_what_was_committed_by_then_and_one_to_come_is_refused(
    lake: Lake,
) -> None:
    made = lived(lake)
    found = base(made, Start(at=datetime.now(UTC)))
    assert found is not None
    assert (found.epoch, found.rows) == (3, 3)
    with pytest.raises(NotFound, match=r"is to come: it is .* the newest epoch, 3, was committed"):
        base(made, Start(at=datetime.now(UTC) + timedelta(days=1)))


def test_a_plan_with_nothing_to_take_in_says_so(lake: Lake) -> None:
    made = lived(lake)
    told = plan_page(plan_replay(made.site, NAME, start=Start(epoch=Epoch(3))), table)
    assert told.startswith("report: generation 2 beside 1, nothing came after epoch 3\n")
    told = plan_page(plan_replay(made.site, NAME, start=Start(epoch=Epoch(2))), table)
    assert told.startswith("report: generation 2 beside 1, epochs 3 to 3\n")


def test_p6_a_base_is_not_newer_than_the_build_though_the_projection_went_on(lake: Lake) -> None:
    found = base(lived(lake), Start(position=30), up_to=2)
    assert found is not None
    assert (found.epoch, found.rows) == (2, 2)


def test_a_range_beyond_the_log_is_refused(lake: Lake) -> None:
    made = lived(lake)
    with pytest.raises(NotFound, match=r"position 31 is beyond the log, whose last event .* 30"):
        base(made, Start(position=31))
    before = "is before the first epoch that is known, 1, which "
    with pytest.raises(NotFound, match=f"^position 9 {before}has the events up to position 10"):
        base(made, Start(position=9))
    with pytest.raises(NotFound, match=f"{before}was committed at"):
        base(made, Start(at=datetime(2013, 1, 1, tzinfo=UTC)))
    for epoch in (0, 4):
        with pytest.raises(NotFound, match=f"^epoch {epoch} is not among .* known, 1 to 3$"):
            base(made, Start(epoch=Epoch(epoch)))


def test_a_position_is_refused_where_there_are_only_changes_of_tables(lake: Lake) -> None:
    made = HandMade(lake)
    made.deploy(NAME)
    made.epoch()
    made.derive({TOLD: words((1, "w"), epoch=1, _late=[False])}, 1)
    with pytest.raises(InvalidRequest, match="nothing has position 5") as refused:
        base(made, Start(position=5))
    assert "--from epoch:12" in str(refused.value.remedy)


def test_a_place_of_the_log_is_read_as_users_write_it() -> None:
    at = datetime(2026, 11, 1, 12, 30, tzinfo=UTC)
    for text, start in (
        ("12", Start(position=12)),
        ("position:12", Start(position=12)),
        ("epoch:12", Start(epoch=Epoch(12))),
        ("savepoint:then", KEPT_THEN),
        ("2026-11-01T12:30", Start(at=at)),
    ):
        assert asked_start(None, text) == start
    assert asked_start("then", None) == KEPT_THEN
    assert asked_start(None, None).is_beginning
    for text in ("-5", "epoch:-1", "epoch:", "position:then", "savepoint:", "lane:5", "then"):
        with pytest.raises(InvalidRequest) as refused:
            asked_start(None, text)
        assert "--from epoch:12" in str(refused.value.remedy)
    with pytest.raises(InvalidRequest, match="exclude each other"):
        asked_start("then", "12")


def test_a_projection_that_no_reader_was_given_is_refused(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the catalog lost it while the build began."""
    made = lived(lake)
    monkeypatch.setattr(DeployedCatalog, "published", lambda _: {})
    assert "had not taken in anything by epoch 3" in refusal(made, Start(epoch=Epoch(3)))


def test_the_beginning_has_no_base(lake: Lake) -> None:
    assert base(lived(lake), Start()) is None


def refusal(made: HandMade, start: Start, **options: Any) -> str:
    with pytest.raises(PenstockError) as caught:
        base(made, start, **options)
    assert "from the beginning" in (caught.value.remedy or "")
    return caught.value.message


def test_p6_rows_that_another_meaning_made_are_refused(lake: Lake) -> None:
    made = lived(lake)
    create(made.lake, "kept")
    for start in (KEPT, Start(position=30)):
        assert base(made, start) is not None
        other = SQL.format(name=NAME, key="id").replace("word FROM", "upper(word) AS word FROM")
        assert "mean something else since epoch 3" in refusal(made, start, text=other)
        assert "mean something else" in refusal(made, start, late=True)
    assert "is of epoch 3, the build of 2" in refusal(made, KEPT, up_to=2)


def test_p6_rows_of_which_nobody_knows_what_made_them_are_refused(lake: Lake) -> None:
    made = lived(lake, meanings=(None, MIXED, None))
    assert "made by several queries" in refusal(made, Start(epoch=Epoch(2)))


def test_a_savepoint_of_an_earlier_version_tells_nothing_of_its_rows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = lived(lake)
    monkeypatch.setattr("projections.serve.savepoints._noted", lambda *_: None)
    create(made.lake, "kept")
    assert "nothing tells what made the rows of savepoint kept" in refusal(made, KEPT)


def test_a_savepoint_without_the_projection_is_refused(lake: Lake) -> None:
    made = lived(lake)
    create(made.lake, "kept", without=[f"projection/{NAME}"])
    with pytest.raises(NotFound, match=f"savepoint kept does not have projection/{NAME}"):
        base(made, KEPT)


def test_p5_a_savepoint_is_begun_with_when_its_version_is_gone(lake: Lake) -> None:
    made = lived(lake)
    create(made.lake, "kept", epoch=Epoch(2))
    then = Start(epoch=Epoch(2))
    found = base(made, KEPT)
    assert found is not None
    assert base(made, then) is not None
    root = Path(made.lake.path(f"projection/{NAME}"))
    for log in sorted((root / "_delta_log").glob("*.json"))[:-1]:
        DeltaTable(str(root)).create_checkpoint()
        log.unlink()
    assert "are not kept any more" in refusal(made, then)
    assert (found.epoch, found.named) == (2, "kept")
    (part,) = parts_of(made.site, NAME, found)
    assert rows_of(made.lake, part).num_rows == 2
    for file in part.sizes:
        (root / file).unlink()
    assert "are not kept any more" in refusal(made, KEPT)
    with pytest.raises(NotFound, match=f"the rows that {NAME} had in version") as told:
        rows_of(made.lake, part)
    assert f"penstock replay apply {NAME}." in told.value.remedy


@pytest.mark.parametrize("command", ["resume", "build"])
def test_a_build_whose_savepoint_was_dropped_tells_the_way_out(lake: Lake, command: str) -> None:
    made = lived(lake)
    create(made.lake, "kept", epoch=Epoch(2))

    def build(name: str) -> object:
        builder = Builder(NoSpark(), made.site, lambda _: None, abandoned_after=timedelta(0))
        return builder.build(NAME, start=KEPT) if name == "build" else builder.resume(NAME)

    failpoints.arm(failpoints.REPLAY_AFTER_SLICE)
    with pytest.raises(failpoints.Crash):
        build("build")
    drop(made.lake, "kept")
    with pytest.raises(Conflict, match=r"2 of report cannot be gone on with: .*kept") as told:
        build(command)
    way_out = f"penstock replay cancel {NAME}, then penstock replay apply {NAME}"
    assert told.value.remedy == way_out
    assert cancel(made.site, NAME).state is State.CANCELLED


def test_a_base_is_cut_into_parts_that_fit(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    made = lived(lake)
    root = made.lake.path(f"projection/{NAME}")
    for n in range(3):
        made.writer.append(root, words((90 + n, "w"), epoch=3), Guard(f"more{n}", Epoch(1)))
    made.epoch(head=40)
    made.note(
        f"projection/{NAME}/g1",
        {f"projection/{NAME}": DeltaTable(root).version()},
        4,
        meaning=meaning_of(subject_of(made.site, NAME).plan, include_late=False),
    )
    found = base(made, Start(epoch=Epoch(4)), up_to=4)
    assert found is not None
    assert found.bytes < PART_BYTES
    assert len(parts_of(made.site, NAME, found)) == 1
    monkeypatch.setattr("replay.bases.PART_BYTES", found.bytes // 3)
    parts = parts_of(made.site, NAME, found)
    assert len(parts) > 1
    rows = [n for part in parts for n in rows_of(made.lake, part)["id"].to_pylist()]
    assert sorted(rows) == [1, 2, 3, 90, 91, 92]
    assert [p.sizes for p in parts_of(made.site, NAME, found)] == [p.sizes for p in parts]


def test_a_plan_from_the_last_position_holds_while_the_log_goes_on(lake: Lake) -> None:
    """Also with epochs that bring changes alone, and so are no further."""
    made = lived(lake)
    last = Start(position=30)
    told = document(plan_replay(made.site, NAME, start=last))
    ours = meaning_of(subject_of(made.site, NAME).plan, include_late=False)
    for epoch, head in ((4, 30), (5, 50)):
        made.epoch(head=head)
        made.derive({TOLD: words((epoch, "w"), epoch=epoch, _late=[False])}, epoch)
        made.run(NAME, words((epoch, "w"), epoch=epoch), epoch, meaning=ours)
        now = plan_replay(made.site, NAME, start=start_of(told))
        assert now.base is not None
        assert now.base.epoch == 4
        refuse_changed(told, now)
    with pytest.raises(Conflict, match="is stale: base was position 30, is position 29"):
        refuse_changed(told, plan_replay(made.site, NAME, start=Start(position=29)))


def test_a_plan_from_a_savepoint_is_stale_when_that_is_another_one(lake: Lake) -> None:
    made = lived(lake)
    create(made.lake, "kept", epoch=Epoch(2))
    plan = plan_replay(made.site, NAME, start=KEPT)
    assert plan.base is not None
    assert (plan.epochs, plan.rows, plan.base.rows, plan.slices) == ((3, 3), 1, 2, 1)
    told = document(plan)
    assert start_of(told) == KEPT
    refuse_changed(told, plan_replay(made.site, NAME, start=KEPT))
    drop(made.lake, "kept")
    create(made.lake, "kept", epoch=Epoch(3))
    with pytest.raises(Conflict, match="is stale: base was"):
        refuse_changed(told, plan_replay(made.site, NAME, start=KEPT))
    at = Start(at=datetime(2026, 1, 1, tzinfo=UTC))
    assert start_of({"start": {"at": "2026-01-01 00:00:00+00:00"}}) == at
    with pytest.raises(InvalidRequest, match="is no plan"):
        start_of({"start": {"where": 1}})
    for given in ({"position": "1"}, {"position": True}, {"at": 3}, {"at": "then"}, {"epoch": 1.5}):
        with pytest.raises(InvalidRequest):
            start_of({"start": given})
    assert start_of({"start": {"at": "2026-01-01"}}) == at, "without a zone it is UTC"
    assert replace(plan.start, savepoint=None).is_beginning


def test_chosen_keys_are_computed_beside_the_newest_rows_of_all_others(lake: Lake) -> None:
    made = lived(lake)
    chosen = Start(where="id = 2 OR id > 7")
    plan = plan_replay(made.site, NAME, start=chosen)
    assert plan.base is not None
    assert (plan.base.epoch, plan.base.rows, plan.base.where) == (3, 3, chosen.where)
    assert (plan.epochs, plan.rows, plan.slices) == ((1, 3), 3, 2)
    told = document(plan)
    assert start_of(told) == chosen
    refuse_changed(told, plan_replay(made.site, NAME, start=start_of(told)))
    with pytest.raises(Conflict, match="is stale: base was the keys where id = 2 OR id > 7, is"):
        refuse_changed(told, plan_replay(made.site, NAME, start=Start(where="id = 2")))
    assert "computes again: the keys where id = 2 OR id > 7; copies" in plan_page(plan, table)
    assert asked_start(None, None, "id = 2") == Start(where="id = 2")
    with pytest.raises(InvalidRequest, match="--from and --where exclude each other"):
        asked_start(None, "12", "id = 2")


def test_p6_chosen_keys_are_refused_where_other_rows_would_be_of_another_query(lake: Lake) -> None:
    made = lived(lake)
    chosen = Start(where="id = 2")
    other = SQL.format(name=NAME, key="id").replace("word FROM", "upper(word) AS word FROM")
    assert "mean something else since epoch 3" in refusal(made, chosen, text=other)
    assert "mean something else" in refusal(made, chosen, late=True)
    assert "of its epochs up to 4 it is known how it was at 3" in refusal(made, chosen, up_to=4)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("delay = 1", "delay is no column of the key of p, which is carrier, often"),
        ("p.carrier = 1", "p.carrier is no column of the key"),
        ("often = 1", "often is not carried through"),
        ("carrier IN (SELECT 1)", "(SELECT 1) is something else"),
        ("rand() > 0.5 AND carrier = 1", "RAND() is something else"),
        ("carrier > CURRENT_DATE", "CURRENT_DATE is something else"),
        ("abs(carrier) = 1", "ABS(carrier) is something else"),
        ("true", "names no column of the key"),
        ("", "is no condition"),
        ("carrier =", "is no condition"),
        ("carrier = 1; carrier = 2", "is no condition"),
        pytest.param("carrier = " + "(" * 50_000, "is no condition", id="nested"),
    ],
)
def test_a_condition_compares_columns_of_the_key_with_values(where: str, why: str) -> None:
    plan = planned(
        "CREATE PROJECTION p WITH (key = 'carrier, often') AS SELECT carrier, often, COUNT(*) AS n "
        "FROM (SELECT carrier, flight, COUNT(*) AS often FROM STREAM events.flight.departed "
        "GROUP BY carrier, flight) GROUP BY carrier, often"
    )
    for good in (
        "carrier = 1",
        "CARRIER BETWEEN -1 AND 3 AND NOT `carrier` % 2 = CAST('0' AS INT)",
    ):
        refuse_condition(plan, good)
    with pytest.raises(InvalidRequest, match=re.escape(why)):
        refuse_condition(plan, where)


DECLARED = (
    "CREATE SOURCE s (id BIGINT, word STRING, gone BOOLEAN) "
    "WITH (topic = 't', format = json{more});"
)


@pytest.mark.parametrize(
    ("stream", "more"),
    [
        ("s", ", key = id"),
        ("s", ", key = id, deleted = 'gone'"),
        ("s", ", sequence = id"),
        ("topics.s", ", identity = word"),
    ],
)
def test_p6_rows_of_another_declaration_of_a_source_are_refused(
    lake: Lake, stream: str, more: str
) -> None:
    made = lived(lake)
    (entry,) = made.deployed.entries()
    text = entry.text.replace("events.thing.told", stream)
    source = Entry(kind=SOURCE, name="s", generation=1, status=LIVE, text="")
    made.deployed.put([replace(source, text=DECLARED.format(more=more)), replace(entry, text=text)])
    made.epoch()
    made.derive({"typed/topics.s": words((4, "w"), epoch=4, _late=[False])}, 4)
    ours = meaning_of(subject_of(made.site, NAME).plan, include_late=False)
    made.run(NAME, words((4, "w")), 4, meaning=ours)
    create(made.lake, "kept")
    assert base(made, KEPT, up_to=4) is not None
    made.deployed.put([replace(source, text=DECLARED.format(more=""))])
    assert "mean something else since epoch 4" in refusal(made, KEPT, up_to=4)
