"""Who comes in, and how much a stranger may take: judged by the head of a request alone."""

from __future__ import annotations

import gzip
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from apps.calls import service_client
from apps.settings import load
from penstock_client import Penstock
from service.access import Access
from service.connections import ClientLimits
from tests.support.services.http import ServiceProcess, exchanged, service_in_thread
from tests.support.store.postgres import Cluster, database

EVENT = {"events": [{"type": "placed", "data": {"total": 1}}]}
BODY = orjson.dumps(EVENT)
JSON = {"content-type": "application/json"}
INTAKE = (
    ("POST", "/v1/streams/order-1"),
    ("POST", "/v1/append"),
    ("POST", "/v1/import"),
    ("POST", "/v1/encode"),
    ("POST", "/v1/events/query"),
    ("POST", "/v1/schemas"),
    ("PUT", "/v1/schemas/order.placed/compatibility"),
    ("PUT", "/v1/streams/order-1/metadata"),
    ("PUT", "/v1/streams/order-1/archived"),
    ("POST", "/v1/commands/order/1/place"),
    ("PUT", "/v1/subscriptions/shop"),
    ("POST", "/v1/subscriptions/shop/ack"),
    ("POST", "/v1/subscriptions/shop/nack"),
    ("POST", "/v1/subscriptions/shop/park"),
    ("POST", "/v1/subscriptions/shop/replay-parked"),
)
"""Every route that takes a body."""


@pytest.fixture(scope="module")
def http(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    """One service for all: nothing that is asked here depends on what others wrote."""
    access = Access(hosts=frozenset({"penstock.example"}))
    with database(postgres_cluster) as dsn, service_in_thread(dsn, access=access) as client:
        yield client


def head(http: httpx.Client) -> int:
    position: int = http.get("/v1/events").json()["head"]
    return position


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"]


def test_the_list_of_intake_routes_is_whole(http: httpx.Client) -> None:
    described = http.get("/openapi.json").json()["paths"]
    taking = {
        (method.upper(), path)
        for path, methods in described.items()
        for method, operation in methods.items()
        if "requestBody" in operation
    }
    assert len(taking) == len(INTAKE), taking


@pytest.mark.parametrize(
    "media",
    [
        None,
        "text/plain",
        "text/plain; charset=utf-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/octet-stream",
        "text/json",
        "application/json; charset=iso-8859-1",
        'application/json;charset="utf-16"',
    ],
)
def test_no_route_takes_what_a_page_may_send_unasked(http: httpx.Client, media: str | None) -> None:
    before = head(http)
    for method, path in INTAKE:
        headers = {} if media is None else {"content-type": media}
        answer = http.request(method, path, content=BODY, headers=headers)
        assert refusal(answer) == (415, "unsupported-media-type"), path
    assert head(http) == before


@pytest.mark.parametrize(
    "media",
    ["application/json", "application/json; charset=utf-8", 'APPLICATION/JSON;Charset="UTF-8"'],
)
def test_json_is_taken(http: httpx.Client, media: str) -> None:
    headers = {"content-type": media}
    answer = http.post("/v1/streams/order-1", content=BODY, headers=headers)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 421),
        ("evil.example:7070", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.7:7070", 421),
        ("localhost", 200),
        ("LOCALHOST:7070", 200),
        ("127.0.0.2", 200),
        ("[::1]:7070", 200),
        ("penstock.example:80", 200),
    ],
)
def test_a_request_is_addressed_to_us(http: httpx.Client, host: str, status: int) -> None:
    for path in ("/v1/events", "/health/ready", "/metrics", "/openapi.json"):
        assert http.get(path, headers={"host": host}).status_code == status, path
    appended = http.post("/v1/streams/order-1", json=EVENT, headers={"host": host})
    assert appended.status_code == {200: 201}.get(status, status)


@pytest.mark.parametrize(
    ("target", "headers", "version", "status"),
    [
        ("/v1/events", (), "1.1", 400),
        ("/v1/events", (), "1.0", 200),
        ("/v1/events", ("Host: localhost", "Host: evil.example"), "1.1", 400),
        ("/v1/events", ("Host: evil.example", "Host: localhost"), "1.1", 400),
        ("/v1/events", ("Host: localhost", "Origin: http://a", "Origin: http://b"), "1.1", 400),
        ("http://evil.example/v1/events", ("Host: localhost",), "1.1", 421),
        ("http://localhost/v1/events", ("Host: evil.example",), "1.1", 200),
        ("http://evil.example@[::1]:7070/v1/events?limit=1", (), "1.1", 200),
    ],
)
def test_a_request_says_once_whom_it_is_for(
    http: httpx.Client, target: str, headers: tuple[str, ...], version: str, status: int
) -> None:
    lines = (f"GET {target} HTTP/{version}", *headers, "Connection: close", "", "")
    received = exchanged(http, "\r\n".join(lines).encode())
    assert received.startswith(b"HTTP/1.1 %d " % status), received


def test_a_compressed_body_is_told_so(http: httpx.Client) -> None:
    sent = JSON | {"content-encoding": "gzip"}
    answer = http.post("/v1/streams/order-1", content=gzip.compress(BODY), headers=sent)
    assert refusal(answer) == (415, "unsupported-media-type")
    assert "Content-Encoding" in answer.json()["remedy"]


@pytest.mark.parametrize(
    "sent",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_origins_are_refused(http: httpx.Client, sent: dict[str, str]) -> None:
    before = head(http)
    for method, path in (*INTAKE, ("GET", "/v1/events"), ("GET", "/v1/subscriptions/shop/next")):
        answer = http.request(method, path, content=BODY, headers=sent | JSON)
        assert refusal(answer) == (403, "foreign-origin"), path
    own = {"origin": str(http.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert http.get("/v1/events", headers=own).json()["head"] == before


def test_a_service_asks_for_a_token_that_all_of_ours_find(
    postgres_dsn: str, tmp_path: Path
) -> None:
    service = ServiceProcess(postgres_dsn, tmp_path)
    service.start({"PENSTOCK_SERVICE_AUTH": "token"})
    try:
        assert httpx.get(f"{service.url}/v1/events", verify=False).status_code == 401
        with service_client(load(tmp_path, service__url=service.url)) as command_line:
            assert command_line.get("/v1/events")["head"] == 0
        with Penstock(service.url, workspace=tmp_path, verify=False) as client:
            assert client.head() == 0
            assert client.health().reasons == {}
        program = Path(sys.executable).with_name("penstock")
        arguments = [program, "token", "--workspace", tmp_path]
        printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        headers = {"authorization": f"Bearer {printed.strip()}"}
        answer = httpx.get(f"{service.url}/v1/events", headers=headers, verify=False)
        assert answer.status_code == 200
    finally:
        service.stop()


def test_health_tells_a_stranger_its_status_alone(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn, token="correct horse") as http:
        assert set(http.get("/health/ready").json()) == {
            "status",
            "reasons",
            "deliveries",
            "deciders",
        }
        for headers in ({"authorization": ""}, {"authorization": "Bearer wrong"}):
            assert http.get("/health/ready", headers=headers).json() == {"status": "ready"}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/streams/order-%00",
        # What stands behind it would be another part of the path: here the stream's metadata.
        "/v1/streams/order-1%2Fmetadata",
        "/v1/streams/order-a%2fb",
        "/v1/events?category=%00",
        # Bytes that are no text would all become the same character, and name the same stream.
        "/v1/streams/order-%ff",
        "/v1/streams/order-%C3%28",
        "/v1/events?category=%fe",
    ],
)
def test_no_character_of_an_address_is_an_error_of_ours(http: httpx.Client, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = http.request(method, path, content=BODY, headers=JSON)
        assert refusal(answer) == (400, "malformed-address")


@pytest.mark.parametrize("path", ["/v1/events/", "/docs/", "/health/ready/"])
def test_a_path_with_a_slash_too_many_is_told_so(http: httpx.Client, path: str) -> None:
    """Nobody is sent elsewhere with an empty answer, which most clients do not follow."""
    answer = http.get(path)
    assert (answer.status_code, answer.json()["status"]) == (404, 404), answer.text
    assert "path" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v1/streams/order-1", "DELETE, GET, HEAD, POST"),
        ("GET", "/v1/append", "POST"),
        ("HEAD", "/v1/append", "POST"),
        ("DELETE", "/v1/import", "POST"),
        ("POST", "/v1/streams/order-1/metadata", "GET, HEAD, PUT"),
        ("HEAD", "/v1/events/subscribe", "GET"),
        ("HEAD", "/v1/projections/report/changes", "GET"),
        ("HEAD", "/v1/subscriptions/shop/next", "GET"),
        ("POST", "/docs", "GET, HEAD"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
def test_a_path_names_all_methods_that_it_takes(
    http: httpx.Client, method: str, path: str, allowed: str
) -> None:
    answer = http.request(method, path)
    assert answer.status_code == 405
    assert ", ".join(sorted(answer.headers["allow"].split(", "))) == allowed
    if method != "HEAD":
        assert answer.json()["type"] == "method-not-allowed"


def test_a_head_is_that_of_the_answer_to_get(http: httpx.Client) -> None:
    assert http.post("/v1/streams/order-1", json=EVENT).is_success
    event = http.get("/v1/events", params={"limit": 1}).json()["events"][0]["id"]
    lines, cloud = "application/x-ndjson", "application/cloudevents+json"
    for path, accept in (
        ("/v1/streams/order-1", "*/*"),
        ("/v1/streams/order-1", lines),
        ("/v1/streams/order-none", "*/*"),
        (f"/v1/events/{event}", "*/*"),
        (f"/v1/events/{event}", cloud),
        ("/v1/events?after=999999", lines),
        ("/health/live", "*/*"),
        ("/docs", "*/*"),
        ("/nothing", "*/*"),
    ):
        told = [http.request(m, path, headers={"accept": accept}) for m in ("GET", "HEAD")]
        whole, head = told
        assert (head.status_code, head.content) == (whole.status_code, b""), path
        for name in ("etag", "content-type", "content-length", "penstock-category"):
            assert head.headers.get(name) == whole.headers.get(name), (path, name)


def test_no_depth_of_a_body_is_an_error_of_ours(http: httpx.Client) -> None:
    deep = b'{"a":' * 900 + b"1" + b"}" * 900
    for method, path in INTAKE:
        answer = http.request(method, path, content=deep, headers=JSON)
        assert 400 <= answer.status_code < 500, path
    schema = {"subject": "order.placed", "schema": orjson.loads(b"[" * 200 + b"]" * 200)}
    assert http.post("/v1/schemas", json=schema).status_code == 422
    text = {"subject": "order.placed", "schema": deep.decode()}
    assert http.post("/v1/schemas", json=text).status_code == 422


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("/v1/events?afer=3", "after"),
        ("/v1/events/subscribe?from=3", None),
        ("/v1/streams/order-1?form_version=1", "from_version"),
        ("/v1/subscriptions?nme=x", None),
        ("/health/live?verbose=", None),
        ("/metrics?x", None),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_nearest(
    http: httpx.Client, path: str, nearest: str | None
) -> None:
    answer = http.get(path)
    assert refusal(answer) == (400, "unknown-parameter")
    assert (f"Did you mean {nearest}?" in answer.json()["remedy"]) == (nearest is not None)


@pytest.mark.parametrize("query", ["after=0&after=1", "limit=5&after=0&%61fter=0"])
def test_a_parameter_that_comes_twice_is_refused(http: httpx.Client, query: str) -> None:
    """Which of two values counts is not for us to guess; the first was left out without a word."""
    answer = http.get(f"/v1/events?{query}")
    assert refusal(answer) == (400, "repeated-parameter")
    assert "'after'" in answer.json()["detail"]


@pytest.mark.parametrize("value", ["1_0", "%205", "+5", "%2B5", "5%20", "", "1e3", "0x1", "%D9%A3"])
def test_a_number_is_digits_alone(http: httpx.Client, value: str) -> None:
    """`1_0` was ten, and a blank beside a number was left out."""
    answer = http.get(f"/v1/events?limit={value}")
    assert refusal(answer) == (422, "invalid-request")
    assert "query.limit: expected a whole number" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["/v1/streams/order-1?expected_version=3", "/v1/append?x=1"])
def test_appends_have_no_parameters(http: httpx.Client, path: str) -> None:
    before = head(http)
    assert refusal(http.post(path, json=EVENT)) == (400, "unknown-parameter")
    assert head(http) == before


def test_no_read_begins_beyond_the_head(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn) as http:
        none_beyond_the_head(http)


def none_beyond_the_head(http: httpx.Client) -> None:
    assert http.post("/v1/streams/order-1", json=EVENT).status_code == 201
    query: dict[str, Any] = {"query": [{"types": ["placed"]}]}
    for after, status in ((1, 200), (2, 409)):
        for headers in ({}, {"accept": "application/x-ndjson"}):
            for upcast in ("false", "true"):
                params: dict[str, Any] = {"after": after, "upcast": upcast, "category": "order"}
                answer = http.get("/v1/events", params=params, headers=headers)
                assert answer.status_code == status
        assert http.post("/v1/events/query", json=query | {"after": after}).status_code == status
        made = http.put(f"/v1/subscriptions/s{after}", json={"start": after})
        assert made.status_code == {200: 201}.get(status, status)
    refused = http.get("/v1/events", params={"after": 99_999}).json()
    assert (refused["type"], refused["head"]) == ("beyond-head", 1)


def test_answers_name_the_category_that_a_stream_belongs_to(http: httpx.Client) -> None:
    appended = http.post("/v1/streams/shopping-cart-1", json=EVENT)
    assert appended.headers["penstock-category"] == "shopping"
    read = http.get("/v1/streams/shopping-cart-1")
    assert read.headers["penstock-category"] == "shopping"
    entries = [{"stream": f"{name}-1", **EVENT} for name in ("order", "shopping")]
    both = http.post("/v1/append", json={"appends": entries})
    assert both.headers["penstock-category"] == "order, shopping"


@pytest.mark.parametrize("whole", [True, False], ids=["in one packet", "the body by itself"])
@pytest.mark.parametrize("framing", ["length", "chunked"])
def test_a_request_that_asks_for_http2_keeps_its_body(
    http: httpx.Client, whole: bool, framing: str
) -> None:
    """What `curl --http2` and Java's client send first: an upgrade, with a body behind it."""
    start = (
        b"POST /v1/streams/order-1 HTTP/1.1\r\nHost: localhost\r\n"
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        b"HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\nContent-Type: application/json\r\n"
    )
    if framing == "length":
        start, body = start + b"Content-Length: %d\r\n\r\n" % len(BODY), BODY
    else:
        start += b"Transfer-Encoding: chunked\r\n\r\n"
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    last = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    pieces = (start + body + last,) if whole else (start, body, last)
    expected = head(http) + 1
    received = exchanged(http, *pieces)
    assert received.startswith(b"HTTP/1.1 201 Created\r\n"), received
    assert b'"head":%d' % expected in received, "the connection goes on"


CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
SECOND = b"GET /v1/store HTTP/1.1\r\nHost: localhost\r\n\r\n"
ODD_FRAMINGS = {
    "gzip, chunked": ("1.1", b"Transfer-Encoding: gzip, chunked\r\n", 501),
    "two headers": ("1.1", b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", 501),
    "gzip alone": ("1.1", b"Transfer-Encoding: gzip\r\n", 400),
    "chunked, gzip": ("1.1", b"Transfer-Encoding: chunked, gzip\r\n", 400),
    "chunked twice": ("1.1", b"Transfer-Encoding: chunked, chunked\r\n", 400),
    "identity": ("1.1", b"Transfer-Encoding: identity\r\n", 400),
    "none": ("1.1", b"Transfer-Encoding:\r\n", 400),
    "with a length": ("1.1", b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n", 400),
    "an older version": ("1.0", b"Transfer-Encoding: chunked\r\n", 400),
    "two lengths": ("1.1", b"Content-Length: 3\r\nContent-Length: 4\r\n", 400),
    "a length with a sign": ("1.1", b"Content-Length: +3\r\n", 400),
    "a length of two": ("1.1", b"Content-Length: 3, 3\r\n", 400),
    "a length beyond all": ("1.1", b"Content-Length: 99999999999999999999\r\n", 400),
}


@pytest.mark.parametrize(
    ("version", "framing", "status"), ODD_FRAMINGS.values(), ids=ODD_FRAMINGS.keys()
)
@pytest.mark.parametrize("upgrade", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"])
def test_a_body_whose_end_is_not_sure_is_refused_and_nothing_behind_it_is_read(
    http: httpx.Client, version: str, framing: bytes, status: int, upgrade: bytes
) -> None:
    before = head(http)
    start = b"POST /v1/streams/order-1 HTTP/%b\r\nHost: localhost\r\n" % version.encode()
    start += b"Content-Type: application/json\r\n" + upgrade + framing + b"\r\n"
    received = exchanged(http, start + CHUNKS + SECOND)
    assert received.startswith(b"HTTP/1.1 %d " % status), received
    kind = b"unknown-transfer-coding" if status == 501 else b"malformed-request"
    assert b'"type":"%b"' % kind in received
    assert received.count(b"HTTP/1.1 ") == 1, "the connection ends"
    assert head(http) == before


def test_chunked_is_read_in_any_case(http: httpx.Client) -> None:
    start = b"POST /v1/streams/order-1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    start += b"Content-Type: application/json\r\nTransfer-Encoding:  Chunked \r\n\r\n"
    assert exchanged(http, start + CHUNKS).startswith(b"HTTP/1.1 201 ")


CHUNKED = b"HTTP/1.1\r\nHost: localhost\r\n%b\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"Content-Type: application/json"
TRAILERS = (
    b'Host: evil.example\r\nIf-Match: "9"\r\nX-Correlation-Id: c\r\nIdempotency-Key: k\r\n\r\n'
)


@pytest.mark.parametrize("whole", [True, False])
def test_fields_behind_a_body_count_for_nothing(http: httpx.Client, whole: bool) -> None:
    """Nobody has judged them, and a server in between may leave them out."""
    stream = f"order-trailers-{whole}"
    target = f"POST /v1/streams/{stream} ".encode()
    start = target + CHUNKED % PLAIN
    rest = b"%x;note=1\r\n%b\r\n0\r\n%b" % (len(BODY), BODY, TRAILERS)
    last = target + CHUNKED % (PLAIN + b"\r\nConnection: close") + CHUNKS
    received = exchanged(http, *((start + rest + last,) if whole else (start, rest, last)))
    assert received.count(b"HTTP/1.1 201 ") == 2, received
    events = http.get(f"/v1/streams/{stream}").json()["events"]
    assert [event["metadata"] for event in events] == [{}, {}]


@pytest.mark.parametrize("behind", [b"0\r\nx: ", b"1;x="])
def test_what_is_no_part_of_a_body_has_a_bound(http: httpx.Client, behind: bytes) -> None:
    start = b"POST /v1/events/query " + CHUNKED % (PLAIN + b"\r\nExpect: 100-continue")
    with socket.create_connection(("127.0.0.1", http.base_url.port), timeout=20) as client:
        client.sendall(start)
        assert client.recv(65_536).startswith(b"HTTP/1.1 100 ")
        client.sendall(behind + b"x" * 33_000)
        assert client.recv(65_536).startswith(b"HTTP/1.1 431 ")


def test_what_is_no_http_is_told_so(http: httpx.Client) -> None:
    for sent in (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"CONNECT localhost:80 HTTP/1.1\r\n\r\n"):
        received = exchanged(http, sent)
        assert received.startswith(b"HTTP/1.1 400 ")
        assert b'"type":"malformed-request"' in received


def test_a_stranger_takes_no_more_than_is_his(postgres_dsn: str) -> None:
    limits = ClientLimits(header_bytes=2_000, idle_s=20, request_s=0.3, connections=3)
    with service_in_thread(postgres_dsn, token="secret", clients=limits) as http:
        port = http.base_url.port
        long = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nx: %b" % (b"x" * 5_000)
        assert exchanged(http, long + b"\r\n\r\n").startswith(b"HTTP/1.1 431 ")
        assert exchanged(http, long[:1_000], long[1_000:]).startswith(b"HTTP/1.1 431 ")
        half = b"POST /v1/streams/order-1 HTTP/1.1\r\nhost: local"
        slow = exchanged(http, half)
        assert slow.startswith(b"HTTP/1.1 408 ")
        assert b'"type":"slow-request"' in slow
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        assert exchanged(http).startswith(b"HTTP/1.1 503 ")
        for each in held:
            each.close()


def test_streams_of_all_clients_are_bounded(postgres_dsn: str) -> None:
    with (
        service_in_thread(postgres_dsn, clients=ClientLimits(streams=1)) as http,
        http.stream("GET", "/v1/events/subscribe") as feed,
    ):
        assert feed.status_code == 200
        refused = http.get("/v1/events", headers={"accept": "application/x-ndjson"})
        assert refusal(refused) == (429, "too-many-subscriptions")
        assert "service.max_streams" in refused.json()["remedy"]
