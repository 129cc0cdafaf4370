"""A crash around a transaction of a sink: each change is in the topic once all the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from apps.settings import Settings
from delivery import event_sink
from kernel import failpoints
from lake.layout import Lake
from projections.serve import row_changes, row_values
from projections.sinks import projection_sink
from tests.support.lake.event_sink import EventWorld
from tests.support.lake.handmade import words
from tests.support.lake.topic_sink import SinkWorld
from tests.support.services.http import service_in_thread
from tests.support.services.tier import examples

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
    monkeypatch.setattr(projection_sink, "_MOST_RECORDS", 1)
    monkeypatch.setattr(row_changes, "_BATCH_ROWS", 2)
    monkeypatch.setattr(row_values, "_MOST_ROWS", 2)
    world.made.run("report", words(*((i, f"a{i}") for i in range(6))), world.made.epoch(head=1))
    letters, hits = "abcd"[: examples(2, matrix=4)], 0
    for letter in letters:
        if letter != "a":
            world.run(words(*((i, f"{letter}{i}") for i in range(6))))
        for failpoint in CRASHES:
            failpoints.arm(failpoint, hit=2)
            with pytest.raises(failpoints.Crash):
                world.send()
            world.restart()
            hits += 1
        world.send()
    assert hits == 2 * len(letters)
    first = [("insert", i, f"a{i}") for i in range(6)]
    later = [("update", i, f"{letter}{i}") for letter in letters[1:] for i in range(6)]
    assert world.changes() == [*first, *later]


# What the client makes of a producer that was fenced amid a flush depends on when it hears of it.
@pytest.mark.parametrize("pending", [pytest.param(1, marks=pytest.mark.matrix), 2])
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


@pytest.mark.matrix
def test_p10_a_crash_between_events_and_their_place_repeats_no_event(
    stack: Settings,
    lake: Lake,
    prefix: str,
    postgres_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(projection_sink, "_MOST_RECORDS", 2)
    monkeypatch.setattr(row_changes, "_BATCH_ROWS", 2)
    monkeypatch.setattr(row_values, "_MOST_ROWS", 2)
    monkeypatch.setattr(event_sink, "_MOST_EVENTS", 1)
    with service_in_thread(postgres_dsn) as service:
        world = EventWorld(stack, lake, prefix, service)
        world.deploy()
        world.made.run("report", words(*((i, f"a{i}") for i in range(4))), world.made.epoch(head=1))
        for letter in "abc":
            if letter != "a":
                world.run(words(*((i, f"{letter}{i}") for i in range(4))))
            for failpoint in CRASHES:
                # The first transaction of all has no events, it says where to begin.
                failpoints.arm(failpoint, hit=2 if letter == "a" else 1)
                with pytest.raises(failpoints.Crash):
                    world.send()
                # What another run writes meanwhile changes nothing of what is repeated.
                world.run(words((9, f"{letter}{failpoint}")))
                world.restart()
            world.send()
        world.sinks.close()
        told = [(type_, word) for stream, type_, word, _ in world.told() if stream != "told-9"]
        assert told == [
            (type_, f"{letter}{i}")
            for letter, type_ in (("a", "raised"), ("b", "changed"), ("c", "changed"))
            for i in range(4)
        ]
        nines = [(type_, word) for stream, type_, word, _ in world.told() if stream == "told-9"]
        assert nines == [
            (
                "raised" if (letter, failpoint) == ("a", CRASHES[0]) else "changed",
                f"{letter}{failpoint}",
            )
            for letter in "abc"
            for failpoint in CRASHES
        ]
