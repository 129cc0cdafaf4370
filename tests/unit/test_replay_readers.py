"""A query goes live, or comes back, only where the projections that read it can go on with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import Conflict, InvalidRequest
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import Guard
from projections.run.catalog import DROPPED, LIVE, PROJECTION, Entry
from projections.sql.statements.parse import parse_script
from replay import deployment
from replay.book import Replay, ReplayBook, State
from replay.generations import build_app, generation_name
from replay.planning import plan_replay
from tests.support.lake.handmade import SQL, HandMade, told, words
from tests.support.lake.swaps import rollback, swap

NAME = "report"
TOLD = "typed/events.thing.told"
PLAIN = SQL.format(name=NAME, key="id")
WIDER = PLAIN.replace("id, word", "id, word, word AS more")
NUMBERS = PLAIN.replace("id, word", "id, id AS word")
READER = "CREATE PROJECTION reader WITH (key = 'id') AS SELECT id, {column} FROM report"
BETWEEN = "CREATE PROJECTION amid WITH (key = 'id') AS SELECT id, word FROM {read}"


@pytest.fixture
def made(lake: Lake) -> HandMade:
    return told(lake)


def deploy(made: HandMade, text: str) -> None:
    name = text.split()[2]
    entry = Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text)
    made.deployed.put([entry])


def build(made: HandMade, text: str, *, live: str) -> None:
    """Deploy one query, and build a generation of another one beside it."""
    deploy(made, live)
    made.run(NAME, words((1, "w")), 1)
    made.build(NAME, words((1, "w")), 1, text=text, base_text=live)


def swap_in(made: HandMade) -> int:
    return swap(made.site, NAME, catch_up=lambda replay: replay).generation


def version(made: HandMade) -> int:
    return int(DeltaTable(made.lake.path(f"projection/{NAME}")).version())


MISSING, RETYPED = "reader reads report, and not with this query", "other types: word was"


@pytest.mark.parametrize(
    ("text", "column", "why"), [(WIDER, "more", MISSING), (NUMBERS, "word", RETYPED)]
)
def test_a_rollback_is_refused_where_a_projection_reads_what_would_go(
    made: HandMade, text: str, column: str, why: str
) -> None:
    build(made, text, live=PLAIN)
    swap_in(made)
    deploy(made, READER.format(column=column))
    before = version(made)
    with pytest.raises(Conflict, match=why) as refused:
        rollback(made.site, NAME)
    assert "penstock projection drop reader --yes" in str(refused.value.remedy)
    assert version(made) == before
    made.deployed.set_status("reader", DROPPED)
    assert rollback(made.site, NAME).generation == 1


def test_a_swap_is_refused_where_a_projection_came_that_reads_what_would_go(
    made: HandMade,
) -> None:
    build(made, PLAIN, live=WIDER)
    deploy(made, READER.format(column="more"))
    before = version(made)
    with pytest.raises(Conflict, match=MISSING):
        swap_in(made)
    assert version(made) == before
    deploy(made, READER.format(column="word"))
    assert swap_in(made) == 2


def test_a_rollback_is_refused_where_projections_would_read_each_other_in_a_circle(
    made: HandMade,
) -> None:
    deploy(made, BETWEEN.format(read="STREAM events.thing.told"))
    build(made, PLAIN, live=PLAIN.replace("STREAM events.thing.told", "amid"))
    swap_in(made)
    made.deployed.set_status("amid", DROPPED)
    deploy(made, BETWEEN.format(read=NAME))
    before = version(made)
    with pytest.raises(Conflict, match=r"amid read report, .* in a circle") as refused:
        rollback(made.site, NAME)
    assert "penstock projection drop amid --yes" in str(refused.value.remedy)
    assert version(made) == before


def test_a_reader_that_stands_still_for_another_reason_keeps_nothing_back(made: HandMade) -> None:
    build(made, WIDER, live=PLAIN)
    swap_in(made)
    waiting = "id, word FROM report JOIN STREAM events.thing.asked USING (id)"
    deploy(made, f"CREATE PROJECTION reader WITH (key = 'id') AS SELECT {waiting}")
    assert plan_replay(made.site, NAME, text=PLAIN).downstream == ("reader",)
    assert rollback(made.site, NAME).generation == 1


def test_a_reader_that_came_while_a_swap_caught_up_is_seen(made: HandMade) -> None:
    build(made, PLAIN, live=WIDER)
    made.epoch()
    made.derive({TOLD: words((2, "w"), epoch=2, _late=[False])}, 2)
    made.run(NAME, words((1, "w"), (2, "w"), epoch=2), 2)
    before = version(made)

    def catch_up(replay: Replay) -> Replay:
        deploy(made, READER.format(column="more"))
        path = made.lake.path(generation_name(NAME, 2))
        rows = words((1, "w"), (2, "w"), epoch=2)
        made.writer.overwrite(path, rows, Guard(build_app(NAME, 2), Epoch(2)))
        return replay.now(replay.state, epoch=Epoch(2), detail=replay.detail)

    with pytest.raises(Conflict, match=MISSING):
        swap(made.site, NAME, catch_up)
    assert version(made) == before
    (left,) = ReplayBook(made.lake, Tables()).of(NAME)
    assert left.state is State.BUILT, "its claim was given back"
    made.deployed.set_status("reader", DROPPED)
    assert swap_in(made) == 2


def test_a_reader_that_was_decided_on_before_a_swap_is_decided_on_anew_behind_its_claim(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The swap dies when its commit is there: the catalog still has the query of before."""
    build(made, PLAIN, live=WIDER)
    reader = parse_script(READER.format(column="more")).projections
    decided, met = deployment._decided, list[int]()

    def amid(*arguments: Any) -> object:
        found = decided(*arguments)
        if not met:
            met.append(version(made))
            failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
            with pytest.raises(failpoints.Crash):
                swap_in(made)
            failpoints.disarm()
        return found

    monkeypatch.setattr(deployment, "_decided", amid)
    with pytest.raises(Conflict, match="reader reads report, whose generation 2 is being") as told:
        deployment.apply(made.site, [], reader)
    assert f"penstock replay swap {NAME} --generation 2" in str(told.value.remedy)
    assert version(made) > met[0]
    assert swap_in(made) == 2
    with pytest.raises(InvalidRequest):
        deployment.apply(made.site, [], reader)
    fitting = parse_script(READER.format(column="word")).projections
    assert deployment.apply(made.site, [], fitting)[0].outcome is deployment.Outcome.CREATED


def test_a_claim_whose_place_was_taken_keeps_nobody_back(made: HandMade) -> None:
    build(made, PLAIN, live=WIDER)
    book = ReplayBook(made.lake, Tables())
    (built,) = book.of(NAME)
    book.record(built.now(State.SWAPPING), after=None)
    reader = parse_script(READER.format(column="word")).projections
    wider = parse_script(READER.format(column="more")).projections
    with pytest.raises(Conflict, match="whose generation 2 is being"):
        deployment.apply(made.site, [], reader)
    (entry,) = (each for each in made.deployed.entries() if each.name == NAME)
    made.deployed.decide(lambda: [replace(entry, generation=3)])
    assert deployment.apply(made.site, [], wider)[0].outcome is deployment.Outcome.CREATED


def test_a_reader_that_was_decided_on_before_a_rollback_is_decided_on_anew_behind_its_claim(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rollback dies when its commit is there: the catalog still has the query that goes."""
    build(made, WIDER, live=PLAIN)
    swap_in(made)
    reader = parse_script(READER.format(column="more")).projections
    decided, met = deployment._decided, list[int]()

    def amid(*arguments: Any) -> object:
        found = decided(*arguments)
        if not met:
            met.append(version(made))
            failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
            with pytest.raises(failpoints.Crash):
                rollback(made.site, NAME)
            failpoints.disarm()
        return found

    monkeypatch.setattr(deployment, "_decided", amid)
    with pytest.raises(Conflict, match="which is being rolled back to generation 1") as told:
        deployment.apply(made.site, [], reader)
    assert f"penstock replay rollback {NAME}" in str(told.value.remedy)
    assert version(made) > met[0]
    (left,) = ReplayBook(made.lake, Tables()).of(NAME)
    assert left.state is State.ROLLING_BACK
    assert rollback(made.site, NAME).generation == 1
    with pytest.raises(InvalidRequest):
        deployment.apply(made.site, [], reader)
