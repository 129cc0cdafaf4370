"""A replay's query may bring a sink and inputs: they are looked at as those of a statement are."""

from __future__ import annotations

import pytest
from deltalake import DeltaTable

from kernel.errors import Conflict
from lake.layout import Lake
from projections.run.catalog import LIVE, PROJECTION, Entry
from replay.planning import plan_replay
from replay.swap import swap
from tests.support.lake.handmade import SQL, HandMade, words

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


def deploy_alarms(made: HandMade) -> None:
    text = "CREATE PROJECTION alarms WITH (key = 'id', sink = 'event:alarm') AS " + (
        "SELECT id FROM STREAM events.thing.told"
    )
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
    built = made.build(NAME, words((1, "w")), 1, text=with_sink("alarm"))
    deploy_alarms(made)
    stable = made.lake.path(f"projection/{NAME}")
    before = DeltaTable(stable).version()
    with pytest.raises(Conflict, match="is the sink of"):
        swap(made.site, NAME, catch_up=lambda *_: built)
    assert DeltaTable(stable).version() == before
    made.deployed.put(
        [
            Entry(
                kind=PROJECTION,
                name="alarms",
                generation=1,
                status=LIVE,
                text="CREATE PROJECTION alarms WITH (key = 'id') AS "
                "SELECT id FROM STREAM events.thing.told",
            )
        ]
    )
    assert swap(made.site, NAME, catch_up=lambda *_: built).generation == 2
