"""A batch that is too large for the driver at once is made into epochs that are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernel.positions import Epoch, Offsets
from pipeline.commit.manifest_rows import Bound
from pipeline.executor import FIRST_GUESS_BYTES, MOST_PARTS, Executor, ExecutorChoice
from pipeline.read.batch_plan import has_messages, next_part
from pipeline.read.kafka_records import records_between

FITS = 100
TOLD = partial(has_messages, prefix="w.", owners={"sensors.message": "sensors"})
Places = Mapping[str, Mapping[str, tuple[int, int]]]
places = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(
        st.sampled_from(["0", "1", "2"]),
        st.tuples(st.integers(0, 10**6), st.integers(0, 3_000)),
        min_size=1,
    ),
    min_size=1,
)


def choice(asked: Executor = Executor.AUTO, most_parts: int = MOST_PARTS) -> ExecutorChoice:
    return ExecutorChoice(asked=asked, driver_bytes=FITS * FIRST_GUESS_BYTES, most_parts=most_parts)


def batch(of: Places) -> Bound:
    """Return an epoch of partitions by their first offset and how many records they have."""
    start = {topic: {p: first for p, (first, _) in own.items()} for topic, own in of.items()}
    end = {topic: {p: sum(both) for p, both in own.items()} for topic, own in of.items()}
    return Bound(epoch=Epoch(1), run_id="t", batch_id=0, start=start, end=end)


def parts(whole: Bound, using: ExecutorChoice) -> list[Bound]:
    """Return all epochs that a batch is made into."""
    made = [next_part(whole, using.at_once, TOLD)]
    while made[-1].end != whole.end:
        assert len(made) < 10_000
        made.append(next_part(replace(whole, start=made[-1].end), using.at_once, TOLD))
    return made


@given(places, st.integers(1, 500), st.integers(2, MOST_PARTS))
def test_parts_are_the_batch_each_record_once(of: Places, fits: int, most_parts: int) -> None:
    whole, using = batch(of), choice(most_parts=most_parts)
    using.record_bytes = using.driver_bytes / fits
    seen: Offsets = whole.start
    for part in parts(whole, using):
        assert part.start == seen
        assert part.end.keys() == whole.end.keys()
        for topic, ends in part.end.items():
            for place, last in ends.items():
                assert seen[topic][place] <= last <= whole.end[topic][place]
        assert records_between(part.start, part.end) or not records_between(whole.start, whole.end)
        seen = part.end
    assert seen == whole.end


def test_each_part_is_the_drivers_and_has_its_share_of_each_topic() -> None:
    whole, using = batch({"rows": {"0": (7, 300)}, "ends": {"0": (40, 30), "1": (0, 0)}}), choice()
    made = parts(whole, using)
    assert [records_between(each.start, each.end) for each in made] == [84, 83, 83, 80]
    assert {using.of(records_between(each.start, each.end)) for each in made} == {Executor.DRIVER}
    assert made[0].end == {"rows": {"0": 83}, "ends": {"0": 48, "1": 0}}
    assert made[0].batch_id == whole.batch_id


@pytest.mark.parametrize(
    ("topic", "whole"),
    [
        ("w.shop.message", True),
        ("w.shop.public.message", False),
        ("w.events.message", False),
        ("sensors.message", False),
    ],
)
def test_messages_are_not_parted_and_what_is_only_called_so_is(topic: str, whole: bool) -> None:
    """Heartbeats gather while nothing else happens, and may be passed by as a whole."""
    assert (len(parts(batch({topic: {"0": (0, 3 * FITS)}}), choice())) == 1) is whole


@pytest.mark.parametrize(
    "using",
    [
        pytest.param(choice(most_parts=1), id="executors have other cores"),
        pytest.param(choice(Executor.SPARK), id="executors are asked for"),
        pytest.param(choice(Executor.DRIVER), id="the driver is asked for"),
    ],
)
def test_a_batch_stays_whole(using: ExecutorChoice) -> None:
    assert using.at_once(5 * FITS) == 5 * FITS


def test_a_batch_of_another_size_goes_to_executors_as_a_whole() -> None:
    using = choice()
    assert using.at_once(FITS) == FITS
    assert using.at_once(FITS + 1) == 51
    assert using.at_once(7 * FITS) == 88
    assert using.at_once(8 * FITS) == 8 * FITS
    using.refused(50)
    assert using.at_once(FITS) == 34
