"""What one append may hold, and what its headers add: limits, idempotency keys, traces."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest

from service.limits import BodyLimits
from tests.support.services.http import service_in_thread
from tests.support.store.postgres import Cluster, database

LIMITS = BodyLimits(events=5, event_bytes=2_000, json_depth=8, tags=3)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER_TRACE = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn, limits=LIMITS) as client:
        yield client


@pytest.fixture(scope="module")
def shared(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    """One service for all tests that do not depend on what others wrote."""
    with database(postgres_cluster) as dsn, service_in_thread(dsn, limits=LIMITS) as client:
        yield client


@pytest.fixture
def stream() -> str:
    """A stream of this test's own."""
    return f"order-{uuid.uuid4().hex}"


def event(**more: object) -> dict[str, object]:
    return {"type": "placed", "data": {"total": 1}} | more


def post(
    http: httpx.Client, *events: object, stream: str = "order-1", **headers: str
) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return http.post(f"/v1/streams/{stream}", json={"events": events}, headers=named)


def head(http: httpx.Client) -> int:
    found: int = http.get("/v1/events").json()["head"]
    return found


def nested(depth: int) -> dict[str, object]:
    """Return an object whose innermost part lies `depth` levels deep in the request."""
    value: object = "]}" * 20
    for level in range(depth - 4):
        value = [value] if level % 2 else {"in": value}
    return {"value": value}


@pytest.mark.parametrize(
    ("fits", "excess", "status", "kind"),
    [
        ([event()] * 5, [event()] * 6, 422, "invalid-request"),
        (
            [event(tags=["a", "b", "c"])],
            [event(tags=["a", "b", "c", "d"])],
            422,
            "invalid-request",
        ),
        ([event(data=nested(8))], [event(data=nested(9))], 422, "invalid-request"),
        (
            [event(data={"text": "x" * 1_900}), event(data={"text": "y" * 1_900})],
            [event(), event(data={"text": "x" * 2_000})],
            413,
            "event-too-large",
        ),
    ],
    ids=["events", "tags", "depth", "bytes"],
)
def test_a_request_at_its_limit_passes_and_one_above_does_not(
    shared: httpx.Client, fits: list[object], excess: list[object], status: int, kind: str
) -> None:
    before = head(shared)
    refused = post(shared, *excess)
    assert (refused.status_code, refused.json()["type"]) == (status, kind), refused.text
    assert "service.max_" in refused.json()["remedy"] or "Tag with" in refused.json()["remedy"]
    assert head(shared) == before
    assert post(shared, *fits).status_code == 201


def test_the_limit_of_events_counts_all_streams_of_a_request(shared: httpx.Client) -> None:
    appends = [{"stream": f"order-{n}", "events": [event()] * 2} for n in range(3)]
    refused = shared.post("/v1/append", json={"appends": appends})
    assert refused.status_code == 422
    assert shared.post("/v1/append", json={"appends": appends[:2]}).status_code == 201


def test_depth_is_not_measured_by_brackets_in_texts(shared: httpx.Client) -> None:
    tricky = {"text": '[{"' * 50 + "\\", "more": "]}" * 50}
    assert post(shared, event(data=tricky)).status_code == 201


def test_a_key_makes_a_request_happen_once(http: httpx.Client) -> None:
    first = post(http, event(), event(data={"total": 2}), idempotency_key="k-1")
    again = post(http, event(), event(data={"total": 2}), idempotency_key="k-1")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    assert post(http, event(), event(data={"total": 2}), idempotency_key="k-2").status_code == 201
    # Another stream is another place: the same key may be used there.
    assert post(http, event(), stream="order-2", idempotency_key="k-1").status_code == 201
    assert head(http) == 5


@pytest.mark.parametrize(
    "events",
    [
        [event(data={"total": 9}), event()],
        [event()],
        [event(), event(), event()],
        [event(), event(type="other")],
        [event(), event(tags=["a"])],
    ],
    ids=["data", "fewer", "more", "type", "tags"],
)
def test_the_same_key_with_other_content_is_refused(
    shared: httpx.Client, stream: str, events: list[object]
) -> None:
    before = head(shared)
    first = post(shared, event(), event(), stream=stream, idempotency_key="k-1")
    assert first.status_code == 201
    refused = post(shared, *events, stream=stream, idempotency_key="k-1")
    assert (refused.status_code, refused.json()["type"]) == (409, "id-reused")
    assert head(shared) == before + 2


def test_a_key_over_several_streams(http: httpx.Client) -> None:
    appends = [{"stream": f"order-{n}", "events": [event()]} for n in range(2)]
    headers = {"idempotency-key": "k-1"}
    first = http.post("/v1/append", json={"appends": appends}, headers=headers)
    again = http.post("/v1/append", json={"appends": appends}, headers=headers)
    part = http.post("/v1/append", json={"appends": appends[:1]}, headers=headers)
    assert [answer.status_code for answer in (first, again, part)] == [201, 200, 409]
    assert again.json() == first.json()


def test_an_id_of_ones_own_beats_the_key(http: httpx.Client) -> None:
    mine = str(uuid.uuid4())
    post(http, event(id=mine), event(), idempotency_key="k-1")
    assert http.get("/v1/events").json()["events"][0]["id"] == mine


@pytest.mark.parametrize("key", ["", "x" * 256, "schl\u00fcssel"])
def test_a_key_of_no_use_is_refused(shared: httpx.Client, key: str) -> None:
    answer = shared.post(
        "/v1/streams/order-1",
        json={"events": [event()]},
        headers=[(b"idempotency-key", key.encode("latin-1"))],
    )
    assert answer.status_code == 422
    assert "Idempotency-Key" in answer.json()["detail"]


@pytest.mark.parametrize("header", ["if-match", "if-none-match"])
@pytest.mark.parametrize("path", ["/v1/append", "/v1/import", "/v1/encode"])
def test_a_precondition_that_nothing_would_ask_for_is_refused(
    shared: httpx.Client, path: str, header: str
) -> None:
    before = head(shared)
    one = event(id=str(uuid.uuid4())) | {"stream": "order-1"}
    bodies = {
        "/v1/append": {"appends": [{"stream": "order-1", "events": [event()]}]},
        "/v1/import": one,
        "/v1/encode": {"stream": "order-1", "events": [event()]},
    }
    answer = shared.post(path, json=bodies[path], headers={header: "*"})
    assert (answer.status_code, answer.json()["type"]) == (422, "invalid-request")
    assert "If-Match" in answer.json()["detail"]
    assert head(shared) == before
    assert shared.post(path, json=bodies[path]).is_success


@pytest.mark.parametrize(
    "name", ["Idempotency-Key", "If-Match", "If-None-Match", "X-Correlation-Id", "X-Causation-Id"]
)
def test_a_header_that_counts_is_there_once(shared: httpx.Client, name: str) -> None:
    twice = [(name, "*"), (name, "*")]
    for path in ("/v1/streams/order-twice", "/v1/commands/order/twice/place"):
        answer = shared.post(path, json={"events": [event()]}, headers=twice)
        assert (answer.status_code, answer.json()["type"]) == (400, "malformed-request")
        assert f"several {name} headers" in answer.json()["detail"]


def test_headers_tell_where_events_came_from(http: httpx.Client) -> None:
    own = event(metadata={"correlation_id": "mine", "by": "me"})
    post(http, event(), own, traceparent=TRACE, x_correlation_id="c-1", x_causation_id="e-1")
    first, second = (found["metadata"] for found in http.get("/v1/events").json()["events"])
    assert first == {"traceparent": TRACE, "correlation_id": "c-1", "causation_id": "e-1"}
    assert second == first | {"correlation_id": "mine", "by": "me"}


def test_a_retry_may_come_with_another_trace(http: httpx.Client) -> None:
    """Each try of a client has a span of its own; the facts stay the same."""
    kept = event(id=str(uuid.uuid4()), metadata={"by": "me"})
    assert post(http, kept, traceparent=TRACE).status_code == 201
    assert post(http, kept, traceparent=OTHER_TRACE, x_causation_id="e-2").status_code == 200
    (found,) = http.get("/v1/events").json()["events"]
    assert found["metadata"] == {"traceparent": TRACE, "by": "me"}
    other = event(id=kept["id"], metadata={"by": "you"})
    assert post(http, other, traceparent=TRACE).status_code == 409


def test_a_malformed_traceparent_is_ignored_and_a_malformed_id_is_not(http: httpx.Client) -> None:
    assert post(http, event(), traceparent="00-zz-01").status_code == 201
    (found,) = http.get("/v1/events").json()["events"]
    assert found["metadata"] == {}
    assert post(http, event(), x_correlation_id="x" * 256).status_code == 422
