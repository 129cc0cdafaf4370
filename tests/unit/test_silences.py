"""Nobody waits for who is silent: an epoch without a row says that a silence has lasted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kernel.clock import micros
from lake.layout import Lake
from pipeline.commit.silences import Silences
from projections.run.watermark import StreamTerms, ended_up_to
from tests.support.lake.noted_epochs import START, committed
from tests.support.lake.timed_flights import Flights
from tests.support.services.waiting import until

SHORT = timedelta(seconds=0.2)


def test_an_epoch_says_that_a_silence_has_lasted_and_then_no_other() -> None:
    times = [timedelta(seconds=30), timedelta(seconds=90)]
    silences = Silences(times)
    assert not silences.due(after(1000)), "nothing came yet"
    silences.note(committed(1, 0, a={"0": 10}))
    silences.note(committed(2, 20, a={"0": 40}))
    assert not silences.due(after(49))
    assert silences.due(after(50))
    silences.note(committed(3, 51, a={"0": 40}))
    assert not silences.due(after(109))
    assert silences.due(after(110)), "for the other source"
    silences.note(committed(4, 111, a={"0": 40}))
    assert not silences.due(after(100_000))
    silences.note(committed(5, 100_001, a={"0": 41}))
    assert silences.due(after(100_031))
    assert not Silences().due(after(1000))


def test_each_input_is_silent_by_itself() -> None:
    silences = Silences([timedelta(seconds=60)])
    silences.note(committed(1, 0, a={"0": 10}))
    silences.note(committed(2, 50, a={"0": 10}, b={"0": 10}))
    assert not silences.due(after(59))
    assert silences.due(after(60)), "nothing of a came for so long"
    silences.note(committed(3, 61, a={"0": 10}, b={"0": 10}))
    assert not silences.due(after(109))
    assert silences.due(after(110)), "and nothing of b"
    silences.note(committed(4, 111, a={"0": 10}, b={"0": 10}))
    assert not silences.due(after(100_000))


def after(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def test_p6_final_rows_of_a_silent_source_wait_no_longer_than_its_timeout(lake: Lake) -> None:
    flights = Flights(lake, idle_timeouts=(SHORT,))
    ahead = {"topic": "events.flight", "partition": 1}
    first = flights.take([START])
    flights.batch = [flights.event(START + timedelta(hours=1)) | ahead]
    end = {"events.flight": {"0": 1, "1": 2}}
    both = flights.between(first.end, end)
    terms = [StreamTerms(name="events.flight", lateness=timedelta(0), idle_timeout=SHORT)]
    assert ended_up_to(flights.manifest, both.epoch, terms) == micros(START)
    until(flights.ingest.undecided, "an epoch is due")
    flights.batch = []
    silent = flights.between(end, end)
    assert ended_up_to(flights.manifest, silent.epoch, terms) == micros(START + timedelta(hours=1))
    until(lambda: datetime.now(UTC) > silent.at + SHORT, "the timeout has passed again")
    assert not flights.ingest.undecided(), "it was said"
