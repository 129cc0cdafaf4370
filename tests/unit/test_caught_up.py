"""When the tables have everything that was recorded, and what is named until then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel.positions import Lsn
from lake.layout import Lake
from pipeline.position.lag import StoreHeads
from projections.run.catalog import LIVE, PAUSED, PROJECTION, Entry
from replay.subject import entry_of
from service.caught_up import Accounts, Behind, CaughtUpEpoch, Goal, Waiting
from tests.support.lake.handmade import SQL, HandMade, words

TYPED = "typed/events.thing.told"


class FixedHeads:
    """A store that is at position 3."""

    def lag(self, heads: Mapping[str, int]) -> tuple[str, int, float]:
        return "store", 3 - heads.get("store", 0), 1.5


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    return HandMade(Lake.at(tmp_path / "lake"))


def waiting(made: HandMade, *, head: int = 3, cuts: Mapping[str, Lsn] | None = None) -> Waiting:
    heads: StoreHeads = FixedHeads()
    goal = Goal(store="store", head=head, cuts=cuts or {})
    return Waiting(lake=made.lake, accounts=accounts({}), goal=goal, heads=heads)


def accounts(state: Mapping[str, Any]) -> Accounts:
    return Accounts(pipeline=lambda: state, still=list)


def missing(found: CaughtUpEpoch | Behind) -> list[str]:
    assert isinstance(found, Behind)
    return [each.split(":")[0] for each in found.missing]


def test_an_empty_lake_is_behind(made: HandMade) -> None:
    found = waiting(made).look()
    assert missing(found) == ["events"]
    assert isinstance(found, Behind)
    assert (found.events, found.seconds) == (3, 1.5)


def test_where_nothing_was_recorded_there_is_nothing_to_wait_for(made: HandMade) -> None:
    found = waiting(made, head=0).look()
    assert isinstance(found, CaughtUpEpoch)
    assert (found.epoch, found.head) == (0, 0)


def test_every_step_is_waited_for_and_named(made: HandMade) -> None:
    made.deploy("report")
    wait = waiting(made, cuts={"shop": Lsn(150)})
    made.epoch(head=2)
    assert missing(wait.look()) == ["events", "source shop"]
    made.epoch(head=3)
    assert missing(wait.look()) == ["typed tables", "projection report"]
    made.derive({TYPED: words((1, "x"))}, 2)
    assert missing(wait.look()) == ["projection report"]
    made.run("report", words((1, "x")), 2)
    done = wait.look()
    assert isinstance(done, CaughtUpEpoch)
    assert (done.epoch, done.head) == (2, 3)


def test_records_of_an_external_topic_are_waited_for_and_named(made: HandMade) -> None:
    wait = waiting(made, head=0)
    wait.goal = replace(wait.goal, ends={"t": {"0": 7, "1": 2}}, topics={"t": "pings"})
    made.epoch(end={"t": {"0": 4}})
    found = wait.look()
    assert isinstance(found, Behind)
    assert found.missing == ("source pings: 5 records of topic t",)
    made.epoch(end={"t": {"0": 7, "1": 3}})
    made.derive({TYPED: words((1, "x"))}, 2)
    assert isinstance(wait.look(), CaughtUpEpoch)


def test_what_comes_after_the_call_is_not_waited_for(made: HandMade) -> None:
    wait = waiting(made)
    made.epoch(head=3)
    assert missing(wait.look()) == ["typed tables"]
    made.epoch(head=4)
    made.derive({TYPED: words((1, "x"))}, 1)
    assert isinstance(wait.look(), CaughtUpEpoch)


def test_a_paused_projection_is_not_waited_for(made: HandMade) -> None:
    made.deploy("report")
    made.epoch(head=3)
    made.derive({TYPED: words((1, "x"))}, 1)
    wait = waiting(made)
    assert missing(wait.look()) == ["projection report"]
    entry = entry_of(made.site, "report")
    made.deployed.put([replace(entry, status=PAUSED)])
    assert isinstance(wait.look(), CaughtUpEpoch)


def test_a_sink_is_waited_for_and_named_with_what_stops_it(made: HandMade) -> None:
    text = SQL.format(name="report", key="id").replace("'id'", "'id', sink = 'event:told'")
    entry = Entry(kind=PROJECTION, name="report", generation=1, status=LIVE, text=text)
    made.deployed.put([entry])
    made.deploy("sinkless")
    wait = waiting(made)
    state: dict[str, Any] = {}
    wait.accounts = accounts(state)
    epoch = made.epoch(head=3)
    made.derive({TYPED: words((1, "x"))}, epoch)
    made.run("sinkless", words((1, "x")), epoch)
    made.run("report", words((1, "x")), epoch)
    assert missing(wait.look()) == ["sink of report"]  # The pipeline does not tell of it yet.
    state["sinks"] = {
        "report": {
            "target": "event:told",
            "version": None,
            "newest": 1,
            "error": "the service at … does not answer | fix: penstock up",
        }
    }
    found = wait.look()
    assert isinstance(found, Behind)
    assert found.missing == (
        "sink of report, event:told: nothing of 1 sent (the service at … does not answer)",
    )
    made.run("report", words((2, "y")), made.epoch(head=4))  # Later than the call.
    state["sinks"]["report"] |= {"version": 1, "error": None}
    assert isinstance(wait.look(), CaughtUpEpoch)
