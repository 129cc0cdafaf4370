"""The judge of histories: every anomaly that is planted is found, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from eventstore.store import Expected
from kernel.errors import InvalidRequest
from kernel.positions import Version
from tests.support.store.forged import RUN, History, Step, happened
from tests.torture.verification.anomalies import EXAMPLES, Anomaly
from tests.torture.verification.checker import HistoryChecker
from tests.torture.verification.history import (
    CONDITION_FAILED,
    MAX_NUMBER,
    MAX_PROCESS,
    VERSION_CONFLICT,
    Accepted,
    RefusedAppend,
    Seen,
    Unknown,
    author,
    event_id,
)
from tests.torture.verification.ledger import IdSet


def one(
    stream: str, expected: Expected = "any", count: int = 1
) -> tuple[tuple[str, Expected, int]]:
    return ((stream, expected, count),)


def told() -> History:
    """A true history with something of everything; tests name operations by their place."""
    return happened(
        [
            Step(process=0, writes=one("order-1", "no_stream", 3)),  # 0: positions 1-3
            Step(process=1, writes=one("order-1", 2, 2)),  # 1: positions 4-5
            Step(process=0, writes=one("order-1", "no_stream")),  # 2: refused
            Step(process=1, writes=one("seat-1", count=1), tag="seat:1", after=0),  # 3: position 6
            Step(process=0, writes=one("seat-2"), tag="seat:1", after=0),  # 4: refused
            Step(  # 5: positions 7-10
                process=0,
                writes=(*one("order-2", count=2), *one("order-1", 4, 2)),
                known="unknown and done",
            ),
            Step(process=1, writes=one("order-3"), known="unknown and not done"),  # 6
            Step(process=1, writes=one("order-2", "stream_exists", 2)),  # 7: positions 11-12
        ],
        readers=(0, 5, 12),
    )


def renumbered(history: History, at: int, **changes: object) -> None:
    """Change a stored event, and what readers and streams show of it."""
    before = history.stored[at]
    after = before._replace(**changes)
    for events in (history.stored, *history.shown.values(), *history.streams.values()):
        events[:] = [after if event == before else event for event in events]


def dropped(history: History, *positions: int) -> None:
    """Remove events from the store everywhere; what follows moves up without a gap."""
    kept = [event for event in history.stored if event.position not in positions]
    versions: dict[str, int] = {}
    history.stored[:] = []
    for position, event in enumerate(kept, start=1):
        version = versions[event.stream] = versions.get(event.stream, -1) + 1
        history.stored.append(event._replace(position=position, version=version))
    history.shown.clear()
    history.streams.clear()


def swapped(history: History, first: int, second: int) -> None:
    """Let two single events of different streams change positions, in store and answers."""
    stored = history.stored
    a, b = stored[first - 1], stored[second - 1]
    stored[first - 1] = b._replace(position=first, recorded_at_us=a.recorded_at_us)
    stored[second - 1] = a._replace(position=second, recorded_at_us=b.recorded_at_us)
    history.shown.clear()
    history.streams.clear()


def lost(history: History) -> None:
    dropped(history, 11, 12)


def doubled(history: History) -> None:
    event = history.stored[0]
    history.stored.append(event._replace(position=13, version=7, recorded_at_us=99))


def misplaced(history: History) -> None:
    swapped(history, 5, 6)


def told_another_version(history: History) -> None:
    answered = history.operations[1].outcome
    assert isinstance(answered, Accepted)
    answer = replace(answered.answers[0], first_version=Version(4), last_version=Version(5))
    history.operations[1] = replace(history.operations[1], outcome=Accepted(answers=(answer,)))


def phantom(history: History) -> None:
    strange = Seen(13, 2**127 + 5, "order-9", 0, "happened", (), 99)
    history.stored.append(strange)


def beyond_what_was_appended(history: History) -> None:
    made = event_id(RUN, 0, 400).int
    history.stored.append(Seen(13, made, "order-9", 0, "happened", (), 99))


def refused_but_kept(history: History) -> None:
    history.operations[7] = replace(history.operations[7], outcome=RefusedAppend())


def torn(history: History) -> None:
    dropped(history, 9, 10)


def scattered(history: History) -> None:
    swapped(history, 8, 9)


def position_gap(history: History) -> None:
    history.stored[:] = [
        event._replace(position=event.position + (event.position > 10)) for event in history.stored
    ]


def position_repeated(history: History) -> None:
    renumbered(history, 11, position=11)


def version_gap(history: History) -> None:
    renumbered(history, 11, version=5)


def version_repeated(history: History) -> None:
    renumbered(history, 11, version=2)


def time_went_back(history: History) -> None:
    renumbered(history, 11, recorded_at_us=1)


def real_time_order(history: History) -> None:
    # It was answered before the append that has the positions before it began.
    history.operations[7] = replace(history.operations[7], invoked_ns=-9, completed_ns=-8)


def expectation_broken(history: History) -> None:
    (write,) = history.operations[1].writes
    history.operations[1] = replace(history.operations[1], writes=(replace(write, expected=1),))


def new_stream_expectation_broken(history: History) -> None:
    (write,) = history.operations[7].writes
    wanted = replace(write, expected="no_stream")
    history.operations[7] = replace(history.operations[7], writes=(wanted,))


def unknown_but_done_broke_its_expectation(history: History) -> None:
    first, second = history.operations[5].writes
    wanted = replace(first, expected="stream_exists")
    history.operations[5] = replace(history.operations[5], writes=(wanted, second))


def condition_broken(history: History) -> None:
    renumbered(history, 3, tags=("seat:1",))


def condition_of_an_unknown_broken(history: History) -> None:
    condition = history.operations[3].condition
    history.operations[5] = replace(history.operations[5], condition=condition)


def unfounded_refusal(history: History) -> None:
    (write,) = history.operations[2].writes
    history.operations[2] = replace(
        history.operations[2],
        writes=(replace(write, stream="order-7"),),
        outcome=RefusedAppend(by=VERSION_CONFLICT),
    )


def unfounded_condition(history: History) -> None:
    renumbered(history, 5, tags=())


def wrong_answer(history: History) -> None:
    answered = history.operations[0].outcome
    assert isinstance(answered, Accepted)
    answer = replace(answered.answers[0], last_version=Version(7))
    history.operations[0] = replace(history.operations[0], outcome=Accepted(answers=(answer,)))


def answer_missing(history: History) -> None:
    history.operations[0] = replace(history.operations[0], outcome=Accepted(answers=()))


def reader_skipped(history: History) -> None:
    del history.shown["reader 0"][6]


def reader_repeated(history: History) -> None:
    history.shown["reader 1"].insert(3, history.shown["reader 1"][1])


def reader_repeated_under_another_position(history: History) -> None:
    shown = history.shown["reader 0"]
    shown[3] = shown[2]._replace(position=4)


def reader_late(history: History) -> None:
    shown = history.shown["reader 0"]
    shown[4], shown[5] = shown[5], shown[4]


def reader_differs(history: History) -> None:
    shown = history.shown["reader 1"]
    shown[1] = shown[1]._replace(stream="order-8")


def reader_ahead(history: History) -> None:
    extra = Seen(13, event_id(RUN, 0, 500).int, "order-1", 9, "happened", (), 99)
    history.shown["reader 2"].append(extra)


def stream_lacks_its_end(history: History) -> None:
    history.streams["order-1"].pop()


def stream_out_of_order(history: History) -> None:
    events = history.streams["order-1"]
    events[1], events[2] = events[2], events[1]


def stream_shows_another_event(history: History) -> None:
    events = history.streams["order-1"]
    events[1] = events[1]._replace(id=events[2].id)


def stream_that_is_not_stored(history: History) -> None:
    history.streams["order-8"] = [history.stored[0]._replace(stream="order-8")]


PLANTED: list[tuple[Callable[[History], None], Anomaly]] = [
    (lost, Anomaly.LOST),
    (doubled, Anomaly.DOUBLED),
    (misplaced, Anomaly.MISPLACED),
    (told_another_version, Anomaly.MISPLACED),
    (phantom, Anomaly.PHANTOM),
    (beyond_what_was_appended, Anomaly.PHANTOM),
    (refused_but_kept, Anomaly.REFUSED_BUT_KEPT),
    (torn, Anomaly.TORN),
    (scattered, Anomaly.SCATTERED),
    (position_gap, Anomaly.POSITION_GAP),
    (position_repeated, Anomaly.POSITION_REPEATED),
    (version_gap, Anomaly.VERSION_GAP),
    (version_repeated, Anomaly.VERSION_REPEATED),
    (time_went_back, Anomaly.TIME_WENT_BACK),
    (real_time_order, Anomaly.REAL_TIME_ORDER),
    (expectation_broken, Anomaly.EXPECTATION_BROKEN),
    (new_stream_expectation_broken, Anomaly.EXPECTATION_BROKEN),
    (unknown_but_done_broke_its_expectation, Anomaly.EXPECTATION_BROKEN),
    (condition_broken, Anomaly.CONDITION_BROKEN),
    (condition_of_an_unknown_broken, Anomaly.CONDITION_BROKEN),
    (unfounded_refusal, Anomaly.UNFOUNDED_REFUSAL),
    (unfounded_condition, Anomaly.UNFOUNDED_REFUSAL),
    (wrong_answer, Anomaly.WRONG_ANSWER),
    (answer_missing, Anomaly.WRONG_ANSWER),
    (reader_skipped, Anomaly.READER_SKIPPED),
    (reader_repeated, Anomaly.READER_REPEATED),
    (reader_repeated_under_another_position, Anomaly.READER_REPEATED),
    (reader_late, Anomaly.READER_LATE),
    (reader_differs, Anomaly.READER_DIFFERS),
    (reader_ahead, Anomaly.READER_AHEAD),
    (stream_lacks_its_end, Anomaly.STREAM_DIFFERS),
    (stream_out_of_order, Anomaly.STREAM_DIFFERS),
    (stream_shows_another_event, Anomaly.STREAM_DIFFERS),
    (stream_that_is_not_stored, Anomaly.STREAM_DIFFERS),
]


def test_a_true_history_is_clean_and_counted() -> None:
    report = told().judged()
    assert report.document() == {
        "clean": True,
        "figures": {
            "appends": 8,
            "accepted": 4,
            "refused": 2,
            "unknown": 2,
            "unknown_but_done": 1,
            "conditions_judged": 1,
            "events": 12,
            "head": 12,
            "streams": 3,
            "streams_read": 3,
            "readers": 3,
            "events_shown_to_readers": 12 + 7,
        },
        "anomalies": [],
    }


@pytest.mark.parametrize(
    ("forge", "anomaly"), PLANTED, ids=[forge.__name__ for forge, _ in PLANTED]
)
def test_a_planted_anomaly_is_found_by_name(
    forge: Callable[[History], None], anomaly: Anomaly
) -> None:
    history = told()
    forge(history)
    report = history.judged()
    assert anomaly in report.anomalies, report.document()
    assert not report.clean
    assert report.examples[anomaly]


def test_every_anomaly_is_planted() -> None:
    assert {anomaly for _, anomaly in PLANTED} == set(Anomaly)


def test_most_forgeries_are_called_by_one_name() -> None:
    """A verdict that cries everything at once would help nobody."""
    for forge in (
        phantom,
        refused_but_kept,
        time_went_back,
        real_time_order,
        expectation_broken,
        condition_of_an_unknown_broken,
        reader_skipped,
        reader_repeated,
        reader_differs,
    ):
        history = told()
        forge(history)
        assert len(history.found()) == 1, (forge.__name__, history.judged().document())


def test_an_append_that_overlaps_another_may_come_before_or_after_it() -> None:
    history = happened(
        [
            Step(process=0, writes=one("order-1"), early=0, late=0),
            Step(process=1, writes=one("order-2"), early=8, late=0),
        ]
    )
    first, second = history.operations
    assert second.invoked_ns < first.completed_ns
    swapped(history, 1, 2)
    history.operations = [replace(operation, outcome=Unknown()) for operation in (second, first)]
    assert history.judged().clean


def test_all_are_counted_and_a_few_are_shown() -> None:
    history = happened([Step(process=0, writes=one("order-1")) for _ in range(40)])
    history.operations = []
    report = history.judged()
    assert report.anomalies == {Anomaly.PHANTOM: 40}
    assert len(report.examples[Anomaly.PHANTOM]) == EXAMPLES


def test_long_readers_are_compared_at_every_thousand_positions() -> None:
    history = happened([Step(process=0, writes=one("order-1", count=500)) for _ in range(8)])
    assert history.judged().clean
    history.shown["reader 0"][2_500] = history.shown["reader 0"][2_500]._replace(version=1)
    report = history.judged()
    assert report.anomalies == {Anomaly.READER_DIFFERS: 1}
    assert "up to 3000" in report.examples[Anomaly.READER_DIFFERS][0]


def test_refusals_that_name_no_cause_need_none() -> None:
    history = told()
    history.operations[2] = replace(history.operations[2], outcome=RefusedAppend(by="overloaded"))
    renumbered(history, 5, tags=())
    history.operations[4] = replace(history.operations[4], outcome=RefusedAppend(by="overloaded"))
    assert history.judged().clean
    history.operations[4] = replace(
        history.operations[4], outcome=RefusedAppend(by=CONDITION_FAILED)
    )
    assert history.found() == {"UNFOUNDED_REFUSAL"}


def test_numbers_that_a_process_uses_twice_are_no_history() -> None:
    history = told()
    checker = HistoryChecker(RUN)
    checker.operation(history.operations[0])
    with pytest.raises(InvalidRequest, match="used event number 0 again"):
        checker.operation(history.operations[0])


@pytest.mark.parametrize("process", [0, 1, MAX_PROCESS])
@pytest.mark.parametrize("number", [0, 1, 2**32 - 1, 2**32, MAX_NUMBER])
def test_an_id_tells_its_author(process: int, number: int) -> None:
    id_ = event_id(RUN, process, number)
    assert (id_.version, id_.variant) == (8, "specified in RFC 4122")
    assert author(RUN, id_.int) == (process, number)
    assert author(RUN + 1, id_.int) is None
    assert author(RUN, id_.int ^ 1 << 77) is None


def test_a_set_of_ids_grows_and_remembers() -> None:
    ids = IdSet()
    assert [ids.add(1, number) for number in (0, 7, 8, 100_000, 8)] == [True] * 4 + [False]
    assert ids.add(2, 8)
