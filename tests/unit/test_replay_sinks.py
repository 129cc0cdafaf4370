"""A replay's query may bring a sink and inputs: they are looked at as those of a statement are."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import Conflict
from lake.layout import Lake
from projections.run.catalog import LIVE, PROJECTION, Entry
from replay.book import Replay
from replay.planning import plan_replay
from tests.support.lake.handmade import SQL, HandMade, words
from tests.support.lake.swaps import rollback, swap

NAME = "report"
TOLD, RAISED = "typed/events.thing.told", "typed/events.thing.raised"
PLAIN = SQL.format(name=NAME, key="id")


def with_sink(category: str) -> str:
    return PLAIN.replace("WITH (", f"WITH (sink = 'event:{category}', ")


@pytest.fixture
def made(lake: Lake) -> HandMade:
    handmade = HandMade(lake)
    handmade.deploy(NAME)
    handmade.epoch()
    rows = words((1, "w"), epoch=1, _late=[False])
    handmade.derive({TOLD: rows, RAISED: rows}, 1)
    handmade.run(NAME, words((1, "w")), 1)
    return handmade


def deploy_alarms(
    made: HandMade, sink: str = "sink = 'event:alarm'", stream: str = "events.thing.told"
) -> None:
    options = ", ".join(["key = 'id'", *([sink] if sink else [])])
    text = f"CREATE PROJECTION alarms WITH ({options}) AS SELECT id FROM STREAM {stream}"
    entry = Entry(kind=PROJECTION, name="alarms", generation=1, status=LIVE, text=text)
    made.deployed.put([entry])


def test_p10_a_replay_takes_no_sink_that_feeds_its_query_or_that_another_has(
    made: HandMade,
) -> None:
    assert plan_replay(made.site, NAME, text=with_sink("alarm")).text is not None
    with pytest.raises(Conflict, match="rows would go round"):
        plan_replay(made.site, NAME, text=with_sink("thing").replace(".told", ".raised"))
    deploy_alarms(made)
    with pytest.raises(Conflict, match="category alarm is the sink of"):
        plan_replay(made.site, NAME, text=with_sink("alarm"))


def test_p10_a_swap_is_refused_where_another_took_the_sink_since_the_build(
    made: HandMade,
) -> None:
    built = made.build(NAME, words((1, "w")), 1, text=with_sink("alarm"), base_text=PLAIN)
    deploy_alarms(made)
    stable = made.lake.path(f"projection/{NAME}")
    before = DeltaTable(stable).version()
    with pytest.raises(Conflict, match="is the sink of"):
        swap(made.site, NAME, catch_up=lambda *_: built)
    assert DeltaTable(stable).version() == before
    deploy_alarms(made, sink="")
    assert swap(made.site, NAME, catch_up=lambda *_: built).generation == 2


def gave_up_its_sink(made: HandMade) -> Replay:
    before = with_sink("alarm").replace(".told", ".raised")
    made.deployed.put([Entry(kind=PROJECTION, name=NAME, generation=1, status=LIVE, text=before)])
    return made.build(NAME, words((1, "w")), 1, text=PLAIN, base_text=before)


@pytest.mark.parametrize(
    ("sink", "stream", "why"),
    [
        ("sink = 'event:alarm'", "events.thing.told", "is the sink of"),
        ("sink = 'event:thing'", "events.alarm.raised", "rows would go round"),
    ],
)
def test_p10_a_rollback_is_refused_where_the_sink_that_comes_back_is_in_the_way(
    made: HandMade, sink: str, stream: str, why: str
) -> None:
    """The query of before had a sink that the swap gave up, and another took it since."""
    built = gave_up_its_sink(made)
    swap(made.site, NAME, catch_up=lambda *_: built)
    deploy_alarms(made, sink, stream)
    stable = made.lake.path(f"projection/{NAME}")
    before = DeltaTable(stable).version()
    with pytest.raises(Conflict, match=why):
        rollback(made.site, NAME)
    assert DeltaTable(stable).version() == before
    deploy_alarms(made, sink="")
    assert rollback(made.site, NAME).generation == 1


def test_p10_a_rollback_whose_commit_was_made_is_finished_whatever_came_since(
    made: HandMade,
) -> None:
    built = gave_up_its_sink(made)
    swap(made.site, NAME, catch_up=lambda *_: built)
    failpoints.arm(failpoints.REPLAY_AFTER_SWAP)
    try:
        with pytest.raises(failpoints.Crash):
            rollback(made.site, NAME)
    finally:
        failpoints.disarm()
    deploy_alarms(made)
    assert rollback(made.site, NAME).generation == 1
