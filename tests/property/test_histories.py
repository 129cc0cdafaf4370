"""Whatever a correct store does, the judge finds nothing; whatever is forged, it does."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.services.tier import examples
from tests.support.store.forged import History, Step, happened

STREAMS = st.sampled_from(["order-1", "order-2", "seat-1"])
EXPECTED = st.one_of(
    st.sampled_from(["any", "any", "no_stream", "stream_exists"]), st.integers(0, 8)
)
WRITES = st.lists(
    st.tuples(STREAMS, EXPECTED, st.integers(1, 4)),
    min_size=1,
    max_size=3,
    unique_by=lambda write: write[0],
).map(tuple)
STEPS = st.lists(
    st.builds(
        Step,
        process=st.integers(0, 3),
        writes=WRITES,
        tag=st.sampled_from([None, "a", "b"]),
        after=st.one_of(st.none(), st.integers(0, 30)),
        known=st.sampled_from(
            ["answered", "answered", "answered", "unknown and done", "unknown and not done"]
        ),
        early=st.integers(0, 40),
        late=st.integers(0, 40),
    ),
    max_size=25,
)
HISTORIES = st.builds(
    happened,
    STEPS,
    readers=st.lists(st.integers(0, 30), max_size=3).map(tuple),
)


@given(HISTORIES)
def test_p1_p2_p3_serial_histories_are_clean(history: History) -> None:
    report = history.judged()
    assert report.clean, report.document()
    assert report.figures["events"] == len(history.stored)


@given(HISTORIES.filter(lambda history: len(history.stored) > 1), st.data())
def test_no_event_can_be_removed_changed_or_moved_unseen(
    history: History, data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(history.stored) - 1))
    event = history.stored[at]
    change = data.draw(st.sampled_from(["removed", "repeated", "moved", "stream", "version", "id"]))
    match change:
        case "removed":
            del history.stored[at]
        case "repeated":
            history.stored.insert(at, event)
        case "moved":
            other = data.draw(st.integers(0, len(history.stored) - 1).filter(lambda n: n != at))
            history.stored.insert(other, history.stored.pop(at))
        case "stream":
            history.stored[at] = event._replace(stream="order-99")
        case "version":
            history.stored[at] = event._replace(version=event.version + 1)
        case _:
            history.stored[at] = event._replace(id=event.id ^ 1 << 100)
    assert not history.judged().clean


@settings(
    max_examples=examples(25, matrix=100),
    suppress_health_check=[HealthCheck.filter_too_much],
)
@given(HISTORIES.filter(lambda history: any(history.shown.values())), st.data())
def test_nothing_that_a_reader_is_shown_can_be_changed_unseen(
    history: History, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([name for name, shown in history.shown.items() if shown]))
    shown = history.shown[name]
    at = data.draw(st.integers(0, len(shown) - 1))
    event = shown[at]
    match data.draw(st.sampled_from(["repeated", "stream", "version", "id"])):
        case "repeated":
            shown.insert(data.draw(st.integers(at, len(shown))), event)
        case "stream":
            shown[at] = event._replace(stream="order-99")
        case "version":
            shown[at] = event._replace(version=event.version + 1)
        case _:
            shown[at] = event._replace(id=event.id ^ 1)
    assert any(anomaly.startswith("READER_") for anomaly in history.found())
