from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import orjson
import pytest

from examples.flights.flights import event_id
from examples.flights.poster import SPAN, Poster, batches, body_of
from examples.flights.posting_order import LATENESS, PostedEvent
from kernel.errors import ContractViolation, Unavailable
from schemas.records import NewEvent

START = datetime(2013, 1, 1, tzinfo=UTC)


def event(flight: int, kind: str = "scheduled") -> PostedEvent:
    at = START + timedelta(minutes=flight)
    new = NewEvent(
        id=event_id(flight, kind),
        type=kind,
        data={"flight_id": flight},
        metadata={},
        tags=(),
        occurred_at=at,
    )
    return PostedEvent(stream=f"flight-{flight}", event=new, posted_at=at)


class FakeService:
    """Answers appends like the service: positions in order, a repeated body with 200."""

    def __init__(self, fault: Callable[[int], httpx.Response | Exception | None]) -> None:
        self.bodies: list[bytes] = []
        self.position = 0
        self.calls = 0
        self._fault = fault

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.calls += 1
        fault = self._fault(self.calls)
        if isinstance(fault, Exception):
            # The request arrived, its answer did not.
            self._keep(request.content)
            raise fault
        if fault is not None:
            return fault
        repeated = request.content in self.bodies
        self._keep(request.content)
        return httpx.Response(200 if repeated else 201, json=self._answer(request.content))

    def _keep(self, body: bytes) -> None:
        if body not in self.bodies:
            self.bodies.append(body)

    def _answer(self, body: bytes) -> dict[str, Any]:
        answers = []
        for append in orjson.loads(body)["appends"]:
            self.position += len(append["events"])
            answers.append(
                {
                    "stream": append["stream"],
                    "first_version": 0,
                    "last_version": len(append["events"]) - 1,
                    "first_position": self.position - len(append["events"]) + 1,
                    "last_position": self.position,
                }
            )
        return {"appends": answers}

    @property
    def streams(self) -> list[str]:
        return [each["stream"] for body in self.bodies for each in orjson.loads(body)["appends"]]


def poster(service: FakeService, per_request: int = 3) -> Poster:
    return Poster(
        "http://service",
        token="secret",
        per_request=per_request,
        transport=httpx.MockTransport(service),
        sleep=lambda _: None,
    )


def test_events_keep_their_order_over_requests() -> None:
    service = FakeService(lambda call: None)
    seen: list[int] = []
    with poster(service) as under_test:
        tally = under_test.post(map(event, range(8)), lambda tally: seen.append(tally.events))
    assert service.streams == [f"flight-{n}" for n in range(8)]
    assert (tally.events, tally.requests, tally.retries, tally.last_position) == (8, 3, 0, 8)
    assert seen == [3, 6, 8]


def test_a_request_names_each_stream_once_in_the_order_of_its_events() -> None:
    events = [event(1), event(1, "departed"), event(2), event(1, "arrived")]
    appends = orjson.loads(body_of(events))["appends"]
    assert [append["stream"] for append in appends] == ["flight-1", "flight-2"]
    kinds = [[each["type"] for each in append["events"]] for append in appends]
    assert kinds == [["scheduled", "departed", "arrived"], ["scheduled"]]


def test_a_request_spans_less_time_than_lateness_allows() -> None:
    """Minutes 0 to 120 are one span; what is late besides must still be within the lateness."""
    cut = list(batches(map(event, [0, 60, 120, 121, 500]), most=100))
    assert [len(each) for each in cut] == [3, 1, 1]
    assert [len(each) for each in batches(map(event, range(7)), most=3)] == [3, 3, 1]
    assert SPAN + timedelta(hours=2) < LATENESS


def test_an_event_says_who_it_is_and_when_it_happened() -> None:
    (append,) = orjson.loads(body_of([event(7)]))["appends"]
    assert append["expected_version"] == "any"
    assert append["events"] == [
        {
            "id": str(event_id(7, "scheduled")),
            "type": "scheduled",
            "data": {"flight_id": 7},
            "occurred_at": "2013-01-01T00:07:00+00:00",
        }
    ]


@pytest.mark.parametrize(
    "fault",
    [
        httpx.Response(503, json={"title": "outcome unknown"}),
        httpx.Response(429, json={"title": "overloaded"}),
        httpx.Response(502, text="bad gateway"),
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("no answer"),
    ],
)
def test_what_got_no_clear_answer_is_sent_again_unchanged(
    fault: httpx.Response | Exception,
) -> None:
    service = FakeService(lambda call: fault if call in (2, 3) else None)
    with poster(service) as under_test:
        tally = under_test.post(map(event, range(6)))
    assert service.streams == [f"flight-{n}" for n in range(6)]
    assert (tally.events, tally.requests, tally.retries) == (6, 2, 2)
    assert tally.repeated == (1 if isinstance(fault, Exception) else 0)


def test_a_refusal_is_not_repeated_and_says_why() -> None:
    problem = {"title": "schema-violation", "detail": "carrier must be a string"}
    service = FakeService(lambda call: httpx.Response(422, json=problem) if call == 2 else None)
    with (
        poster(service) as under_test,
        pytest.raises(ContractViolation, match=r"422.*carrier must be a string"),
    ):
        under_test.post(map(event, range(6)))
    assert service.calls == 2
    assert under_test.tally.events == 3


def test_a_service_that_never_answers_ends_the_posting() -> None:
    service = FakeService(lambda call: httpx.Response(503))
    with poster(service) as under_test, pytest.raises(Unavailable, match="503"):
        under_test.post([event(1)])
    assert service.calls > 10


def test_an_answer_about_other_events_is_not_believed() -> None:
    short = {"appends": [{"first_version": 0, "last_version": 0, "last_position": 1}]}
    service = FakeService(lambda call: httpx.Response(201, json=short))
    with poster(service) as under_test, pytest.raises(ContractViolation, match="1 events of 2"):
        under_test.post([event(1), event(2)])
