"""A query goes live, or comes back, only where the projections that read it can go on with it."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from kernel.errors import Conflict
from lake.layout import Lake
from projections.run.catalog import DROPPED, LIVE, PROJECTION, Entry
from replay.planning import plan_replay
from replay.swap import rollback, swap
from tests.support.lake.handmade import SQL, HandMade, told, words

NAME = "report"
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
