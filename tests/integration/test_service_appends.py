"""Appending and reading over HTTP."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.architecture.tree import ROOT
from tests.support.services.http import service_in_thread
from tests.support.store.postgres import Cluster, database

BODY_BYTES = 20_000


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn, max_body_bytes=BODY_BYTES) as client:
        yield client


@pytest.fixture(scope="module")
def shared(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    """One service for all tests that do not depend on what others wrote."""
    with (
        database(postgres_cluster) as dsn,
        service_in_thread(dsn, max_body_bytes=BODY_BYTES) as client,
    ):
        yield client


@pytest.fixture
def stream() -> str:
    """A stream of this test's own."""
    return f"order-{uuid.uuid4().hex}"


def head(http: httpx.Client) -> int:
    position: int = http.get("/v1/events").json()["head"]
    return position


def event(data: object | None = None, **more: object) -> dict[str, object]:
    return {"type": "placed", "data": {"total": 1} if data is None else data} | more


def post(http: httpx.Client, stream: str, *events: object, **more: object) -> httpx.Response:
    return http.post(f"/v1/streams/{stream}", json={"events": list(events or [event()])} | more)


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    """Check the form of a problem document and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert document["type"] == kind
    assert document["status"] == status
    assert document["title"]
    assert document["detail"]
    assert document["remedy"]
    return document


def test_an_append_is_answered_and_read_back(http: httpx.Client) -> None:
    id_ = str(uuid.uuid4())
    answer = post(
        http,
        "order-1",
        event({"total": 12.5, "lines": [{"sku": "a", "n": 2}]}, id=id_, tags=["course:7"]),
        event({"total": 3.5}, metadata={"by": "me"}, occurred_at="2013-01-01t04:15:00z"),
        expected_version="no_stream",
    )
    assert answer.status_code == 201
    assert answer.headers["etag"] == '"1"'
    assert answer.json() == {
        "stream": "order-1",
        "first_version": 0,
        "last_version": 1,
        "first_position": 1,
        "last_position": 2,
    }
    page = http.get("/v1/streams/order-1")
    assert page.headers["etag"] == '"1"'
    document = page.json()
    assert (document["stream"], document["version"]) == ("order-1", 1)
    first, second = document["events"]
    assert first["data"] == {"total": 12.5, "lines": [{"sku": "a", "n": 2}]}
    assert (first["id"], first["tags"], first["version"]) == (id_, ["course:7"], 0)
    assert second["data"] == {"total": 3.5, "lines": None}
    assert second["metadata"] == {"by": "me"}
    assert second["occurred_at"] == "2013-01-01T04:15:00Z"
    assert first["occurred_at"] == first["recorded_at"]
    assert http.get(f"/v1/events/{id_}").json() == first
    everything = http.get("/v1/events").json()
    assert (everything["head"], everything["next_after"]) == (2, 2)
    assert everything["events"] == [first, second]


def test_a_retry_gets_the_first_answer_even_when_the_schema_has_moved_on(
    http: httpx.Client,
) -> None:
    id_ = str(uuid.uuid4())
    asked = {"events": [event(id=id_)], "expected_version": "no_stream"}
    first = http.post("/v1/streams/order-1", json=asked)
    post(http, "order-1", event({"total": 1.5, "note": "widens the schema"}))
    again = http.post("/v1/streams/order-1", json=asked)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    asked["events"] = [event({"total": 2}, id=id_)]
    problem(http.post("/v1/streams/order-1", json=asked), 409, "id-reused")


def test_versions_conflict_with_expected_and_actual(shared: httpx.Client, stream: str) -> None:
    absent = problem(post(shared, stream, expected_version=3), 409, "version-conflict")
    assert (absent["expected"], absent["actual"]) == (3, None)
    post(shared, stream)
    present = problem(post(shared, stream, expected_version="no_stream"), 409, "version-conflict")
    assert (present["expected"], present["actual"]) == ("no_stream", 0)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"if-match": '"0"'}, 201),
        ({"if-match": '"1"'}, 412),
        ({"if-match": "*"}, 201),
        ({"if-none-match": "*"}, 412),
        ({"if-match": "1"}, 422),
        ({"if-match": "*", "if-none-match": "*"}, 422),
    ],
)
def test_conditional_headers(
    shared: httpx.Client, stream: str, headers: dict[str, str], status: int
) -> None:
    post(shared, stream)
    answer = shared.post(f"/v1/streams/{stream}", json={"events": [event()]}, headers=headers)
    assert answer.status_code == status
    if status == 412:
        problem(answer, 412, "version-conflict")


def test_a_condition_twice_is_refused(shared: httpx.Client) -> None:
    answer = shared.post(
        "/v1/streams/order-1",
        json={"events": [event()], "expected_version": 0},
        headers={"if-match": '"0"'},
    )
    problem(answer, 400, "two-expectations")


def test_several_streams_are_all_or_nothing(http: httpx.Client) -> None:
    both = [{"stream": "order-1", "events": [event()]}, {"stream": "cart-1", "events": [event()]}]
    done = http.post("/v1/append", json={"appends": both})
    assert done.status_code == 201
    assert [a["stream"] for a in done.json()["appends"]] == ["order-1", "cart-1"]
    both[1]["expected_version"] = 7
    problem(http.post("/v1/append", json={"appends": both}), 409, "version-conflict")
    assert http.get("/v1/events").json()["head"] == 2


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("streams/Order-1", {"events": [event()]}, "is not a stream name"),
        ("streams/order", {"events": [event()]}, "is not a stream name"),
        ("streams/or%20der-1", {"events": [event()]}, "is not a stream name"),
        (f"streams/order-{'x' * 255}", {"events": [event()]}, "is not a stream name"),
        ("streams/order-1", {"events": []}, "$.events"),
        ("streams/order-1", {}, "$.events"),
        ("streams/order-1", [], "expected an object"),
        ("streams/order-1", {"events": [event()], "expected": 1}, "unknown field 'expected'"),
        ("streams/order-1", {"events": [event()], "expected_version": -1}, "expected_version"),
        ("streams/order-1", {"events": [event()], "expected_version": True}, "expected_version"),
        ("streams/order-1", {"events": [event(id="7")]}, "$.events[0].id"),
        ("streams/order-1", {"events": [event(occured_at="x")]}, "unknown field 'occured_at'"),
        ("streams/order-1", {"events": [event(occurred_at="2013-01-01T00:00")]}, "an offset"),
        ("streams/order-1", {"events": [event(tags="a")]}, "$.events[0].tags"),
        ("streams/order-1", {"events": [event(tags="")]}, "$.events[0].tags"),
        ("streams/order-1", {"events": [event(tags={})]}, "$.events[0].tags"),
        ("streams/order-1", {"events": [event(tags=["a b"])]}, "is not a tag"),
        ("streams/order-1", {"events": [event(metadata=[])]}, "$.events[0].metadata"),
        ("streams/order-1", {"events": [event(metadata={"a": "\x00"})]}, "U+0000"),
        ("streams/order-1", {"events": [{"type": "no-type", "data": {}}]}, "not an event type"),
        ("streams/order-1", {"events": [{"type": "placed", "data": [1]}]}, "$.events[0].data"),
        ("streams/order-1", {"events": [event(id=str(uuid.UUID(int=1)))] * 2}, "occurs twice"),
        ("append", {"appends": []}, "$.appends"),
        ("append", {"appends": [{"events": [event()]}]}, "$.appends[0].stream"),
        ("append", {"appends": [{"stream": "a-1", "events": [event()]}] * 2}, "named twice"),
    ],
)
def test_malformed_requests_are_refused_by_place(
    shared: httpx.Client, path: str, body: object, complaint: str
) -> None:
    before = head(shared)
    document = problem(shared.post(f"/v1/{path}", json=body), 422, "invalid-request")
    assert complaint in document["detail"]
    assert head(shared) == before


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("body", [b"", b"{", b'{"events": [nul]}', b"\xff\xfe", b'"\\ud800"'])
def test_broken_json_is_a_bad_request(shared: httpx.Client, body: bytes) -> None:
    problem(shared.post("/v1/streams/order-1", content=body, headers=JSON), 400, "malformed-body")
    problem(shared.post("/v1/schemas", content=body, headers=JSON), 400, "malformed-body")


def test_a_number_beyond_doubles_is_a_bad_value(shared: httpx.Client, stream: str) -> None:
    body = b'{"events": [{"type": "placed", "data": {"n": 1e400}}]}'
    answer = shared.post(f"/v1/streams/{stream}", content=body, headers=JSON)
    document = problem(answer, 422, "invalid-request")
    assert document["detail"].startswith("$: line 1 column 46: the number is beyond")
    assert "in quotes, as text" in document["remedy"]


def test_a_large_body_is_refused_with_the_remedy(shared: httpx.Client, stream: str) -> None:
    path = f"/v1/streams/{stream}"
    large = json.dumps({"events": [event({"text": "x" * 30_000})]}).encode()
    declared = problem(shared.post(path, content=large, headers=JSON), 413, "body-too-large")
    assert "service.max_body_bytes" in declared["remedy"]

    def chunks() -> Iterator[bytes]:
        yield large

    problem(shared.post(path, content=chunks(), headers=JSON), 413, "body-too-large")
    assert post(shared, stream).status_code == 201


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/streams/order-none", 404),
        (f"/v1/events/{uuid.UUID(int=1)}", 404),
        ("/v1/nothing", 404),
        ("/v1/events?limit=0", 422),
        ("/v1/events?after=-1", 422),
        ("/v1/events/seven", 422),
        ("/v1/streams/order-1?direction=sideways", 422),
        ("/v1/schemas/order.unknown", 404),
    ],
)
def test_reads_refuse_by_problem(shared: httpx.Client, path: str, status: int) -> None:
    kind = {404: "not-found", 422: "invalid-request"}[status]
    problem(shared.get(path), status, kind)


def test_a_wrong_method_is_refused_by_problem(shared: httpx.Client) -> None:
    answer = shared.put("/v1/streams/order-1", json={})
    problem(answer, 405, "method-not-allowed")
    assert "allow" in answer.headers


def test_pages_and_filters(http: httpx.Client) -> None:
    for index in range(6):
        post(http, f"{'order' if index % 2 else 'cart'}-{index}")
    page = http.get("/v1/events", params={"limit": 2, "category": "order"}).json()
    assert [e["stream"] for e in page["events"]] == ["order-1", "order-3"]
    assert (page["next_after"], page["head"]) == (4, 6)
    rest = http.get("/v1/events", params={"after": page["next_after"], "category": "order"}).json()
    assert [e["stream"] for e in rest["events"]] == ["order-5"]
    assert rest["next_after"] == 6
    prefix = http.get("/v1/events", params={"stream_prefix": "cart-4", "type": "placed"}).json()
    assert [e["position"] for e in prefix["events"]] == [5]


def test_a_stream_backwards(shared: httpx.Client, stream: str) -> None:
    post(shared, stream, *[event({"total": n}) for n in range(5)])
    page = shared.get(f"/v1/streams/{stream}", params={"direction": "backward", "limit": 2}).json()
    assert [e["data"]["total"] for e in page["events"]] == [4, 3]


def test_the_openapi_document_names_every_route(shared: httpx.Client) -> None:
    document = shared.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    described = {f"{method} {path}" for path, ops in document["paths"].items() for method in ops}
    page = (ROOT / "docs/reference/http.md").read_text()
    documented = re.findall(r"`((?:GET|POST|PUT|DELETE) /[\w/{}-]+)", page)
    named = {" ".join((m.lower(), p)) for m, p in (call.split() for call in documented)}
    assert {route.replace("{event_id}", "{id}") for route in described} == named
