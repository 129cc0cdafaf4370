"""Clients that stop reading, stop sending, or take too many feeds: on real sockets."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

from service.connections import ClientLimits
from tests.support.services.http import service_in_thread
from tests.support.services.waiting import until

LIMITS = ClientLimits(subscriptions=3, slow_s=0.3, idle_s=0.3)
EVENTS = 20_000
"""More than the buffers of two sockets hold."""


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(
        postgres_dsn, clients=LIMITS, heartbeat_s=0.1, import_silence_s=0.3
    ) as client:
        # The service closes connections that rest: none is used twice.
        client.headers["connection"] = "close"
        yield client


@contextmanager
def asking(http: httpx.Client, path: str, *headers: str) -> Iterator[socket.socket]:
    """Open a socket with a small buffer, ask, and read nothing."""
    address = (http.base_url.host, http.base_url.port)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.settimeout(30)
        client.connect(address)
        lines = [f"GET {path} HTTP/1.1", "host: localhost", *headers, "", ""]
        client.sendall("\r\n".join(lines).encode())
        yield client


def rest(client: socket.socket) -> bytes:
    """Read up to the end, however it comes."""
    received = bytearray()
    try:
        while part := client.recv(65_536):
            received += part
    except ConnectionResetError:
        pass
    return bytes(received)


def metric(http: httpx.Client, name: str) -> float:
    for line in http.get("/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise AssertionError(name)


def long_history(http: httpx.Client, dsn: str) -> None:
    """Make one event through the service, and many like it beside it."""
    event = {"type": "placed", "data": {"text": "x" * 1_000}}
    assert http.post("/v1/streams/order-1", json={"events": [event]}).status_code == 201
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO es.events (position, store_id, id, stream, version, category, type,"
            " schema_id, data, occurred_at, recorded_at)"
            " SELECT position + n, store_id, gen_random_uuid(), stream, n, category, type,"
            " schema_id, data, occurred_at, recorded_at"
            " FROM es.events, generate_series(1, %s) AS n WHERE position = 1",
            (EVENTS - 1,),
        )


@pytest.mark.parametrize("form", ["sse", "lines"])
def test_a_subscriber_that_stops_reading_is_let_go_and_resumes(
    http: httpx.Client, postgres_dsn: str, form: str
) -> None:
    long_history(http, postgres_dsn)
    headers = ["accept: application/x-ndjson"] if form == "lines" else []
    with asking(http, "/v1/events/subscribe", *headers) as client:
        until(lambda: metric(http, "penstock_subscribers") == 1, "it is subscribed")
        evicted = "penstock_subscribers_evicted_total"
        until(lambda: metric(http, evicted) == 1, "it is let go")
        until(lambda: metric(http, "penstock_subscribers") == 0, "it is not counted any more")
        received = rest(client)
    assert received.endswith(b"\r\n0\r\n\r\n"), "what it was sent ends as it should"
    last = _last_message(received)
    assert 1_000 <= last < EVENTS, "it had got some, and not all"
    assert b'"position":%d,' % last in received
    assert b'"position":%d,' % (last + 1) not in received
    with http.stream("GET", "/v1/events/subscribe", params={"after": last}) as resumed:
        ids = (line for line in resumed.iter_lines() if line.startswith("id: "))
        assert next(ids) == f"id: {last + 1}"


def _last_message(received: bytes) -> int:
    """Return the position in the message that says farewell."""
    (line,) = [
        each
        for each in received.replace(b"data: ", b"").split(b"\n")
        if each.startswith((b'{"event":"evicted"', b'{"position":'))
        and each.count(b",") < 2
        and each.endswith(b"}")
    ][-1:]
    assert b"evicted" in received[-200:]
    position: int = json.loads(line)["position"]
    return position


def test_a_reader_of_lines_that_stops_reading_is_cut_off(
    http: httpx.Client, postgres_dsn: str
) -> None:
    """Its answer is not complete, and it can tell: the last chunk is missing."""
    long_history(http, postgres_dsn)
    with asking(http, "/v1/events", "accept: application/x-ndjson") as client:
        until(lambda: _is_cut(client), "it is cut off")
        received = rest(client)
    assert received.startswith(b"HTTP/1.1 200")
    assert not received.endswith(b"\r\n0\r\n\r\n"), "what is not complete must not look so"


def _is_cut(client: socket.socket) -> bool:
    """Look at the server's end of a connection: whoever reads nothing learns nothing of it."""
    ends = {client.getpeername()[1], client.getsockname()[1]}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        ports = [int(address.partition(":")[2], 16) for address in (local, remote)]
        if set(ports) == ends and ports[0] == client.getpeername()[1]:
            return state != "01"
    return True


def test_a_slow_reader_that_reads_is_borne(http: httpx.Client, postgres_dsn: str) -> None:
    """It takes longer than the limit for all of it, but never rests as long."""
    long_history(http, postgres_dsn)
    received = bytearray()
    with asking(http, "/v1/events?limit=3000", "accept: application/x-ndjson") as client:
        while not received.endswith(b"\r\n0\r\n\r\n"):
            part = client.recv(8_192)
            assert part, "cut off"
            received += part
    assert received.count(b'"stream":"order-1"') == 3_000


def test_a_client_has_so_many_feeds_and_no_more(http: httpx.Client) -> None:
    def subscribe(stack: ExitStack) -> httpx.Response:
        return stack.enter_context(http.stream("GET", "/v1/events/subscribe"))

    with ExitStack() as stack:
        for _ in range(LIMITS.subscriptions):
            assert subscribe(stack).status_code == 200
        refused = subscribe(stack)
        assert refused.status_code == 429
        assert json.loads(refused.read())["type"] == "too-many-subscriptions"
        assert refused.headers["retry-after"]
        assert http.get("/v1/events").status_code == 200
    until(lambda: metric(http, "penstock_subscribers") == 0, "they are gone")
    with ExitStack() as stack:
        assert subscribe(stack).status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", marks=pytest.mark.matrix),
        pytest.param(b"GET /v1/events HTTP/1.1\r\nhost: te", marks=pytest.mark.matrix),
        b"POST /v1/streams/order-1 HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: 99\r\n\r\n{",
    ],
    ids=["nothing", "half a head", "half a body"],
)
def test_a_request_that_does_not_end_is_not_waited_for(http: httpx.Client, sent: bytes) -> None:
    with socket.create_connection((http.base_url.host, http.base_url.port), timeout=30) as client:
        client.sendall(sent)
        rest(client)
    assert http.get("/v1/events").json()["head"] == 0


@pytest.mark.matrix
def test_a_silent_subscriber_is_no_idle_client(http: httpx.Client) -> None:
    with http.stream("GET", "/v1/events/subscribe") as feed:
        lines = feed.iter_lines()
        beats = 0
        while beats < 8:  # More than twice the time that an idle client has.
            beats += next(lines) == ": heartbeat"


@pytest.mark.parametrize("length", [50, pytest.param(200_000, marks=pytest.mark.matrix)])
def test_a_body_that_stops_arriving_is_answered(http: httpx.Client, length: int) -> None:
    """A small append and one that the application reads: 408, then the connection ends."""
    address = (http.base_url.host, http.base_url.port)
    with socket.socket() as client:
        client.settimeout(30)
        client.connect(address)
        lines = [
            "POST /v1/streams/order-1 HTTP/1.1",
            "host: localhost",
            "content-type: application/json",
            f"content-length: {length}",
        ]
        client.sendall("\r\n".join([*lines, "", '{"events": [']).encode())
        head_, _, body = rest(client).partition(b"\r\n\r\n")
    assert head_.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head_
    assert json.loads(body)["type"] == "slow-body"
    assert http.get("/v1/events").json()["head"] == 0


@pytest.mark.parametrize("silent", [True, False], ids=["falls silent", "hangs up"])
def test_a_part_of_a_body_is_never_taken_for_the_whole(
    http: httpx.Client, silent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """What came can look complete: nothing is done with it, and the log stays free of it."""
    event = b'{"type":"placed","data":{"n":1}}'
    asked = (
        (b"POST /v1/streams/order-2", b'{"events":[%b]}' % event),
        (b"POST /v1/append", b'{"appends":[{"stream":"order-2","events":[%b]}]}' % event),
        (b"PUT /v1/subscriptions/cut", b"{}"),
    )
    known = {"events": [json.loads(event)]}
    assert http.post("/v1/streams/order-1", json=known).status_code == 201
    for line, body in asked:
        with socket.create_connection(("127.0.0.1", http.base_url.port), timeout=30) as client:
            client.sendall(
                b"%b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (line, len(body), body)
            )
            if silent:
                assert rest(client).startswith(b"HTTP/1.1 408 "), line
        # What came before this is settled once it is answered: the writer keeps the order.
        assert http.post("/v1/streams/order-1", json=known).status_code == 201
    assert http.get("/v1/streams/order-2").status_code == 404
    assert http.get("/v1/subscriptions/cut").status_code == 404
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.mark.matrix
def test_an_import_that_falls_silent_says_how_far_it_came(http: httpx.Client) -> None:
    address = (http.base_url.host, http.base_url.port)
    line = b'{"stream": "order-1", "id": "%b", "type": "placed", "data": {"n": 1}}\n'
    ids = [b"00000000-0000-0000-0000-%012d" % n for n in range(501)]
    part = b"".join(line % id_ for id_ in ids)
    with socket.socket() as client:
        client.settimeout(30)
        client.connect(address)
        client.sendall(
            b"POST /v1/import HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
            b"%x\r\n%b\r\n" % (len(part), part)
        )
        head, _, body = rest(client).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    problem = json.loads(body)
    assert (problem["type"], problem["lines"], problem["line"]) == ("slow-body", 500, 501)
