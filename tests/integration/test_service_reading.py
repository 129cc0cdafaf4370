"""Reading over HTTP: filters, queries, pages, and many events as lines."""

from __future__ import annotations

import json
import socket
from asyncio import BaseTransport, CancelledError
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import httpx
import psycopg
import pytest

from eventstore.postgres.reading import LOOK
from service import reads
from service.connections import ClientLimits, reset_when_closed
from service.ndjson import PAGE
from tests.support.services.http import exchanged, service_in_thread
from tests.support.store.postgres import Cluster, database

LINES = {"accept": "application/x-ndjson"}
COUNT = 2 * PAGE + 500


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn, clients=ClientLimits(page=700)) as client:
        yield client


def post(http: httpx.Client, stream: str, events: list[dict[str, Any]]) -> None:
    for first in range(0, len(events), 1_000):
        part = events[first : first + 1_000]
        answer = http.post(f"/v1/streams/{stream}", json={"events": part})
        assert answer.status_code == 201, answer.text


def placed(n: int, **fields: Any) -> dict[str, Any]:
    return {"type": "placed", "data": {"n": n, "text": f'line\n{n} ☃ \\ "'}} | fields


def pages(http: httpx.Client, path: str, **query: Any) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    after = 0
    while True:
        page = http.get(path, params=query | {"after": after, "limit": 700}).json()
        events += page["events"]
        after = page["next_after"]
        if after == page["head"]:
            return events


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert answer.text == "" or answer.text.endswith("}\n")
    return [json.loads(line) for line in answer.text.split("\n") if line]


def refused(answer: httpx.Response, status: int, kind: str) -> str:
    assert (answer.status_code, answer.json()["type"]) == (status, kind), answer.text
    detail: str = answer.json()["detail"]
    return detail


@pytest.fixture(scope="module")
def services(postgres_cluster: Cluster) -> Iterator[Callable[[bool], httpx.Client]]:
    """Make each service of four events once, for all tests that only read: a fixture with
    parameters is made again each time that another one was used in between."""
    with ExitStack() as after:

        @cache
        def service(deep: bool) -> httpx.Client:
            dsn = after.enter_context(database(postgres_cluster))
            client = after.enter_context(service_in_thread(dsn))
            post(client, "order-1", [placed(1, tags=["a:1", "b:1"])])
            post(client, "cart-1", [placed(2, tags=["b:1"])])
            post(client, "cart-1", [{"type": "emptied", "data": {}, "tags": ["a:1"]}])
            post(client, "order-2", [placed(3)])
            if deep:
                bury(client, dsn)
            return client

        yield service


@pytest.fixture(params=[False, True], ids=["near the head", "deep in history"])
def four_events(
    request: pytest.FixtureRequest, services: Callable[[bool], httpx.Client]
) -> httpx.Client:
    """A service that is only read: its four events are its last, or lie deep in history."""
    return services(request.param)


def test_lines_are_the_documents_of_pages(http: httpx.Client) -> None:
    """Over several pages, of two schemas of one type, with everything that an event can have."""
    full = {
        "tags": ["a:1", 'quo"te\\'],
        "metadata": {"text": "tab\t ☃", "n": [1, None, {"b": True}]},
        "occurred_at": "2013-01-01T05:15:00.5+01:00",
    }
    post(http, "order-1", [placed(n) for n in range(COUNT)])
    post(http, 'order-ü☃"\\', [placed(1, **full), {"type": "placed", "data": {"n": 2, "k": "x"}}])
    post(http, "cart-1", [{"type": "emptied", "data": {}}])
    answer = http.get("/v1/events", headers=LINES)
    assert lines(answer) == pages(http, "/v1/events")
    assert answer.headers["penstock-head"] == str(COUNT + 3)
    assert [e["position"] for e in lines(answer)] == list(range(1, COUNT + 4))


def test_lines_from_a_place_to_a_number(http: httpx.Client) -> None:
    post(http, "order-1", [placed(n) for n in range(COUNT)])

    def positions(path: str, **query: Any) -> list[int]:
        return [e["position"] for e in lines(http.get(path, params=query, headers=LINES))]

    everything = list(range(1, COUNT + 1))
    assert positions("/v1/events", after=5, limit=PAGE + 3) == everything[5 : PAGE + 8]
    assert positions("/v1/events", after=COUNT) == []
    assert positions("/v1/events", category="none") == []
    stream = "/v1/streams/order-1"
    assert positions(stream) == everything
    assert positions(stream, direction="backward") == everything[::-1]
    assert positions(stream, from_version=7, limit=PAGE + 3) == everything[7 : PAGE + 10]
    assert positions(stream, direction="backward", from_version=PAGE) == everything[PAGE::-1]
    assert positions(stream, from_version=COUNT) == []
    assert http.get(stream, headers=LINES).headers["etag"] == f'"{COUNT - 1}"'
    refused(http.get("/v1/streams/order-none", headers=LINES), 404, "not-found")


def test_a_page_has_a_limit_and_lines_have_none(http: httpx.Client) -> None:
    post(http, "order-1", [placed(n) for n in range(3)])
    for path in ("/v1/events", "/v1/streams/order-1"):
        assert len(http.get(path, params={"limit": 700}).json()["events"]) == 3
        refused(http.get(path, params={"limit": 701}), 422, "invalid-request")
        assert len(lines(http.get(path, params={"limit": 10_000}, headers=LINES))) == 3
    many = {"query": [{"types": ["placed"]}], "limit": 701}
    refused(http.post("/v1/events/query", json=many), 422, "invalid-request")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"category": "order"}, [1, 4]),
        ({"type": "placed"}, [1, 2, 4]),
        ({"type": "order.placed"}, [1, 4]),
        ({"tag": "a:1"}, [1, 3]),
        ({"tag": "a:1", "type": "placed"}, [1]),
        ({"stream_prefix": "order-2"}, [4]),
        ({"stream_prefix": "order"}, [1, 4]),
        ({"tag": "a:1", "category": "none"}, []),
    ],
)
def test_filters(four_events: httpx.Client, query: dict[str, str], expected: list[int]) -> None:
    """The same answer by looking at everything and by index."""
    page = four_events.get("/v1/events", params=query).json()
    assert [e["position"] for e in page["events"]] == expected
    assert page["next_after"] == page["head"]
    assert lines(four_events.get("/v1/events", params=query, headers=LINES)) == page["events"]


def bury(http: httpx.Client, dsn: str) -> None:
    """Put so many other events behind what is there that indexes are asked."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO es.events (position, store_id, id, stream, version, category, type,"
            " schema_id, data, occurred_at, recorded_at)"
            " SELECT 4 + n, store_id, gen_random_uuid(), 'noise-1', n - 1, 'noise', 'heard', 1,"
            " '\\x0000000001', now(), now() FROM es.store, generate_series(1, %s) AS n",
            (LOOK * 2,),
        )
        connection.execute("INSERT INTO es.streams VALUES ('noise-1', 'noise')")
    # The service learns of it with its next append.
    post(http, "tail-1", [placed(0, tags=["t:1"], type="tailed")])


def test_queries_by_types_and_tags(four_events: httpx.Client) -> None:
    def found(*items: dict[str, Any], **more: Any) -> list[int]:
        answer = four_events.post("/v1/events/query", json={"query": list(items)} | more)
        assert answer.status_code == 200, answer.text
        if "limit" not in more:
            assert answer.json()["next_after"] == answer.json()["head"]
        return [e["position"] for e in answer.json()["events"]]

    assert found({"types": ["placed"]}) == [1, 2, 4]
    assert found({"types": ["order.placed", "emptied"]}) == [1, 3, 4]
    assert found({"tags": ["a:1", "b:1"]}) == [1]
    assert found({"tags": ["a:1", "b:1"]}, {"types": ["emptied"]}) == [1, 3]
    assert found({"types": ["placed"], "tags": ["b:1"]}, after=1) == [2]
    assert found({"types": ["placed"]}, limit=2) == [1, 2]
    assert found({"tags": ["none"]}) == []


def test_the_head_of_a_query_is_what_a_condition_goes_by(http: httpx.Client) -> None:
    post(http, "course-7", [{"type": "defined", "data": {}, "tags": ["course:7"]}])
    query = [{"tags": ["course:7"]}]
    decided = http.post("/v1/events/query", json={"query": query}).json()
    event = {"type": "joined", "data": {}, "tags": ["course:7"]}
    body = {
        "appends": [{"stream": "student-1", "events": [event]}],
        "condition": {"query": query, "after": decided["head"]},
    }
    assert http.post("/v1/append", json=body).status_code == 201
    body["appends"] = [{"stream": "student-2", "events": [event]}]
    refused(http.post("/v1/append", json=body), 409, "condition-failed")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ({}, "$.query"),
        ({"query": []}, "no items"),
        ({"query": [{}]}, "neither types nor tags"),
        ({"query": [{"types": ["placed"]}], "after": -1}, "$.after"),
        ({"query": [{"types": ["placed"]}], "after": True}, "$.after"),
        ({"query": [{"types": ["placed"]}], "limit": 0}, "$.limit"),
        ({"query": [{"types": ["placed"]}], "offset": 1}, "$: expected an object"),
        ([], "$: expected an object"),
    ],
)
def test_malformed_queries_are_refused_by_place(
    services: Callable[[bool], httpx.Client], body: object, complaint: str
) -> None:
    answer = services(False).post("/v1/events/query", json=body)
    assert complaint in refused(answer, 422, "invalid-request")


def test_one_event_longer_than_its_schema_does_not_spoil_the_page(
    http: httpx.Client, postgres_dsn: str
) -> None:
    """Pages are decoded in one go; bytes behind one record are overlooked as one by one."""
    post(http, "order-1", [placed(n) for n in range(4)])
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("ALTER TABLE es.events DISABLE TRIGGER append_only")
        connection.execute("UPDATE es.events SET data = data || '\\x0406' WHERE version = 1")
    assert lines(http.get("/v1/events", headers=LINES)) == pages(http, "/v1/events")


def test_sealed_data_is_shown_as_such_instead_of_guessing(
    http: httpx.Client, postgres_dsn: str
) -> None:
    post(http, "order-1", [placed(n) for n in range(2)])
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("ALTER TABLE es.events DISABLE TRIGGER append_only")
        connection.execute("UPDATE es.events SET data_format = 1 WHERE version = 1")
    open_, sealed = lines(http.get("/v1/events", headers=LINES))
    assert open_["data"]["n"] == 0
    assert (sealed["data"], "data format 1" in sealed["unreadable"]) == (None, True)
    assert http.get("/v1/events").json()["events"] == [open_, sealed]


def test_large_events_come_in_pages_of_so_many_bytes(http: httpx.Client) -> None:
    """Lines have all of them; a page of JSON says where it ended."""
    large = [{"type": "placed", "data": {"text": f"{n}" + "x" * 250_000}} for n in range(40)]
    for first in range(0, 40, 10):
        body = {"events": large[first : first + 10]}
        assert http.post("/v1/streams/order-1", json=body).status_code == 201
    forward = list(range(40))
    for path, query, wanted in (
        ("/v1/events", {}, forward),
        ("/v1/events", {"upcast": "true"}, forward),
        ("/v1/events", {"limit": 30}, forward[:30]),
        ("/v1/streams/order-1", {}, forward),
        ("/v1/streams/order-1", {"upcast": "true"}, forward),
        ("/v1/streams/order-1", {"direction": "backward"}, forward[::-1]),
        ("/v1/streams/order-1", {"from_version": 5, "limit": 30}, forward[5:35]),
    ):
        found = lines(http.get(path, params=query, headers=LINES))
        assert [event["version"] for event in found] == wanted, (path, query)
    page = http.get("/v1/streams/order-1", params={"limit": 100}).json()
    assert [event["version"] for event in page["events"]] == forward[:17]
    assert page["version"] == 39
    assert [event["version"] for event in pages(http, "/v1/events")] == forward
    assert http.get("/v1/events", params={"limit": 100}).json()["next_after"] < 40


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_stream_that_has_not_moved_is_not_read_again(http: httpx.Client, accept: str) -> None:
    post(http, "order-held", [placed(1), placed(2)])
    headers = {"accept": accept}
    first = http.get("/v1/streams/order-held", headers=headers)
    tag = first.headers["etag"]
    assert (first.status_code, tag) == (200, '"1"')
    for held in (tag, f"W/{tag}", f'"7", {tag}', "*"):
        again = http.get("/v1/streams/order-held", headers=headers | {"if-none-match": held})
        assert (again.status_code, again.content) == (304, b"")
        assert (again.headers["etag"], again.headers["penstock-category"]) == (tag, "order")
        assert (first.headers["vary"], again.headers["vary"]) == ("accept", "accept")
        assert (
            http.head("/v1/streams/order-held", headers={"if-none-match": held}).status_code == 304
        )
    upcast = http.get(
        "/v1/streams/order-held", params={"upcast": True}, headers={"if-none-match": tag}
    )
    assert upcast.status_code == 200, "an upcaster may be another one"
    post(http, "order-held", [placed(3)])
    moved = http.get("/v1/streams/order-held", headers=headers | {"if-none-match": tag})
    assert (moved.status_code, moved.headers["etag"]) == (200, '"2"')
    absent = http.get("/v1/streams/order-none", headers=headers | {"if-none-match": "*"})
    assert absent.status_code == 404


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_what_a_policy_hides_is_not_taken_for_unmoved(http: httpx.Client, accept: str) -> None:
    place = "/v1/streams/order-hidden"
    post(http, "order-hidden", [placed(1), placed(2), placed(3)])
    asked = {"accept": accept, "if-none-match": http.get(place).headers["etag"]}
    assert http.get(place, headers=asked).status_code == 304
    for policy, shown in (({"max_count": 1}, 1), ({"max_count": None}, 3)):
        assert http.put(f"{place}/metadata", json=policy).status_code == 200
        again = http.get(place, headers=asked)
        assert (again.status_code, again.headers["etag"]) == (200, '"2"')
        assert again.text.count('"recorded_at"') == shown, policy


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_a_reader_who_asks_for_a_state_gets_no_other_one(http: httpx.Client, accept: str) -> None:
    place = "/v1/streams/order-matched"
    post(http, "order-matched", [placed(1), placed(2)])
    for asked, status in (
        *(('"1"', 200), ('"7", "1"', 200), ("*", 200)),
        *(('"0"', 412), ('W/"1"', 412), ('W/"0", "7"', 412), ("1", 412)),
    ):
        headers = {"accept": accept, "if-match": asked}
        assert http.head(place, headers=headers).status_code == status, asked
        answer = http.get(place, headers=headers)
        assert answer.status_code == status, asked
        if status == 412:
            assert '"1"' in refused(answer, 412, "version-conflict")
    both = {"if-match": '"0"', "if-none-match": '"1"'}
    refused(http.get(place, headers=both), 412, "version-conflict")
    refused(http.get("/v1/streams/order-none", headers={"if-match": "*"}), 404, "not-found")
    refused(http.get("/v1/events", headers={"if-match": '"1"'}), 412, "version-conflict")
    feed = http.get("/v1/events/subscribe", headers={"if-match": "*"})
    assert "If-Match" in refused(feed, 422, "invalid-request")


def test_clients_without_chunks_read_until_the_connection_ends(http: httpx.Client) -> None:
    post(http, "order-old", [placed(n) for n in range(PAGE + 5)])
    whole = http.get("/v1/streams/order-old", headers=LINES)
    assert whole.headers["transfer-encoding"] == "chunked"
    for version, asked in ((b"1.0", b""), (b"1.0", b"Connection: keep-alive\r\n")):
        ask = b"GET /v1/streams/order-old HTTP/%b\r\nAccept: application/x-ndjson\r\n%b\r\n"
        head, _, body = exchanged(http, ask % (version, asked)).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert head.startswith(b"HTTP/1.1 200 ")
        assert body == whole.content
    short = exchanged(http, b"GET /v1/streams/order-none HTTP/1.0\r\n\r\n")
    assert short.startswith(b"HTTP/1.1 404 ")
    assert b"content-length: " in short
    asks = b"POST /v1/events/query HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 13\r\n"
    asked = exchanged(http, asks + b"Content-Type: application/json\r\n\r\n" + b'{"query": []}')
    assert asked.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4")), asked


@pytest.mark.parametrize("error", [RuntimeError("broken off"), CancelledError()])
def test_what_breaks_off_does_not_look_whole_to_them(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Answers that last longer than a service that stops waits for them are cancelled."""
    post(http, "order-broken", [placed(n) for n in range(PAGE + 5)])
    render = reads.lines_of
    pages = iter((True, False))

    async def once(*given: Any) -> bytes:
        if next(pages):
            return await render(*given)
        raise error

    monkeypatch.setattr(reads, "lines_of", once)
    ask = b"GET /v1/streams/order-broken HTTP/1.0\r\nAccept: application/x-ndjson\r\n\r\n"
    with pytest.raises(ConnectionResetError):
        exchanged(http, ask)


def test_a_connection_that_is_gone_is_not_reset() -> None:
    gone = socket.socket()
    gone.close()
    reset_when_closed(BaseTransport(extra={"socket": gone}), True)
