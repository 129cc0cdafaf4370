"""A crash around a transaction of a sink: each change is in the topic once all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apps.pipeline import topic_sink
from apps.settings import Settings
from kernel import failpoints
from lake.layout import Lake
from projections.serve import row_changes, row_values
from tests.support.lake.handmade import words
from tests.support.lake.topic_sink import SinkWorld

CRASHES = (failpoints.SINK_BEFORE_COMMIT, failpoints.SINK_AFTER_COMMIT)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture
def world(stack: Settings, lake: Lake, prefix: str) -> Iterator[SinkWorld]:
    made = SinkWorld(stack, lake, prefix)
    made.deploy()
    yield made
    made.sinks.close()


def test_p10_a_crash_around_a_transaction_loses_no_change_and_repeats_none(
    world: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small transactions: each crash is amid the rows of a version, or of the first look.
    monkeypatch.setattr(topic_sink, "_MOST_RECORDS", 1)
    monkeypatch.setattr(row_changes, "_BATCH_ROWS", 2)
    monkeypatch.setattr(row_values, "_MOST_ROWS", 2)
    world.made.run("report", words(*((i, f"a{i}") for i in range(6))), world.made.epoch(head=1))
    hits = 0
    for letter in "abcd":
        if letter != "a":
            world.run(words(*((i, f"{letter}{i}") for i in range(6))))
        for failpoint in CRASHES:
            failpoints.arm(failpoint, hit=2)
            with pytest.raises(failpoints.Crash):
                world.send()
            world.restart()
            hits += 1
        world.send()
    assert hits == 8
    first = [("insert", i, f"a{i}") for i in range(6)]
    later = [("update", i, f"{letter}{i}") for letter in "bcd" for i in range(6)]
    assert world.changes() == [*first, *later]


# What the client makes of a producer that was fenced amid a flush depends on when it hears of it.
@pytest.mark.parametrize("pending", [1, 2])
def test_p10_a_process_that_was_taken_for_dead_sends_nothing_any_more(
    world: SinkWorld, pending: int
) -> None:
    world.first_run()
    world.send()
    stalled = world.sinks
    world.restart()
    world.run(words((3, "c")))
    world.send()
    later = [(4 + i, "d") for i in range(pending)]
    world.run(words(*later))
    stalled.step()
    assert "did not" in (stalled.states["report"].error or "")
    world.send()
    assert world.changes()[2:] == [("insert", 3, "c"), *(("insert", *row) for row in later)]
