"""Appends on the wire: whatever a connection sends, and in whichever pieces, answers keep order."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import httpx
import orjson
import pytest

from tests.support.services.http import service_in_thread
from tests.support.store.postgres import Cluster, database

EVENT = {"events": [{"type": "placed", "data": {"n": 1}}]}


@pytest.fixture(scope="module")
def http(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    """One service for all: each test writes streams of its own."""
    with database(postgres_cluster) as dsn, service_in_thread(dsn) as client:
        # The first event makes the type's schema: what follows needs nobody else.
        assert client.post("/v1/streams/order-first", json=EVENT).status_code == 201
        yield client


def wire(path: str, document: Any, **headers: str) -> bytes:
    body = document if isinstance(document, bytes) else orjson.dumps(document)
    given = {
        "host": "localhost",
        "content-type": "application/json",
        "content-length": str(len(body)),
    } | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body


class Connection:
    def __init__(self, http: httpx.Client) -> None:
        self.socket = socket.create_connection(("127.0.0.1", http.base_url.port), timeout=20)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.socket.sendall(piece)

    def answer(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        # Unbuffered: the bytes behind this answer belong to the next.
        reading = HTTPResponse(self.socket)
        reading.fp.close()
        reading.fp = self.socket.makefile("rb", buffering=0)
        reading.begin()
        body = reading.read()
        headers = {name.lower(): value for name, value in reading.getheaders()}
        return reading.status, headers, orjson.loads(body)


@pytest.fixture
def stream() -> str:
    """A stream of this test's own, not made yet."""
    return f"order-{uuid.uuid4().hex}"


@pytest.fixture
def connection(http: httpx.Client) -> Iterator[Connection]:
    made = Connection(http)
    yield made
    made.socket.close()


def test_requests_in_one_packet_are_answered_in_order(connection: Connection, stream: str) -> None:
    requests = [wire(f"/v1/streams/{stream}-{n}", EVENT) for n in range(10)]
    requests.insert(5, b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
    requests.insert(3, wire("/v1/streams/order-bad", {"events": []}))
    connection.send(b"".join(requests))
    answers = [connection.answer() for _ in requests]
    streams = [body.get("stream") for _, _, body in answers]
    assert streams[:3] == [f"{stream}-{n}" for n in range(3)]
    assert [answers[3][0], answers[6][0]] == [422, 200]
    assert streams[7:] == [f"{stream}-{n}" for n in range(5, 10)]
    positions = [body["first_position"] for _, _, body in answers if "stream" in body]
    assert positions == sorted(positions)


def test_a_request_in_many_pieces_is_one_request(connection: Connection, stream: str) -> None:
    request = wire(f"/v1/streams/{stream}", EVENT)
    connection.send(*(request[at : at + 7] for at in range(0, len(request), 7)))
    status, headers, body = connection.answer()
    assert (status, headers["etag"], body["last_version"]) == (201, '"0"', 0)
    assert headers["content-type"] == "application/json"


def test_the_connection_is_closed_when_asked_for(connection: Connection) -> None:
    connection.send(wire("/v1/streams/order-1", EVENT, connection="close"))
    status, headers, _ = connection.answer()
    assert (status, headers["connection"]) == (201, "close")
    assert connection.socket.recv(1) == b""


@pytest.mark.parametrize(
    ("path", "document", "headers", "status"),
    [
        ("/v1/streams/{first}", EVENT | {"expected_version": 0}, {}, 201),
        ("/v1/streams/{first}", EVENT | {"expected_version": 7}, {}, 409),
        ("/v1/streams/{first}", EVENT, {"if_match": '"7"'}, 412),
        ("/v1/streams/{first}", EVENT, {"if_match": '"0"'}, 201),
        ("/v1/streams/order%2D%C3%A4", EVENT, {}, 201),
        ("/v1/streams/order-1%2Fmetadata", EVENT, {}, 400),
        ("/v1/streams/order-1?x=1", EVENT, {}, 400),
        ("/v1/streams/order-1", b"{", {}, 400),
        ("/v1/streams/order-1", {"events": [{"type": "new", "data": {"a": "b"}}]}, {}, 201),
        (
            "/v1/streams/order-1",
            {"events": [{"type": "placed", "data": {"n": 1, "m": 2}}]},
            {},
            201,
        ),
        ("/v1/streams/order-1", {"events": [{"type": "placed", "data": {"n": "x"}}]}, {}, 422),
        ("/v1/streams/order-1", EVENT, {"expect": "100-continue"}, 201),
    ],
)
def test_every_kind_of_append_is_answered_as_the_contract_says(
    http: httpx.Client,
    connection: Connection,
    stream: str,
    path: str,
    document: Any,
    headers: dict[str, str],
    status: int,
) -> None:
    assert http.post(f"/v1/streams/{stream}", json=EVENT).status_code == 201
    connection.send(wire(path.format(first=stream), document, **headers))
    found, _, body = connection.answer()
    assert found == status, body
    # The connection is good for more.
    connection.send(wire("/v1/streams/order-after", EVENT))
    assert connection.answer()[0] == 201


def test_bodies_of_any_size_and_without_a_length_arrive(
    connection: Connection, stream: str
) -> None:
    path = f"/v1/streams/{stream}"
    for size in (60_000, 65_600, 200_000):
        event = {"events": [{"type": "noted", "data": {"text": "x" * size}}]}
        connection.send(wire(path, event))
        assert connection.answer()[0] == 201
    body = orjson.dumps(EVENT)
    connection.send(
        b"POST %b HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
        b"%x\r\n%b\r\n0\r\n\r\n" % (path.encode(), len(body), body)
    )
    assert connection.answer()[2]["last_version"] == 3


def test_who_sends_no_more_gets_the_answers_to_all_that_was_sent(
    connection: Connection, stream: str
) -> None:
    connection.send(
        wire(f"/v1/streams/{stream}", EVENT),
        wire("/v1/append", {"appends": [{"stream": stream, **EVENT}]}),
        f"GET /v1/streams/{stream} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode(),
    )
    connection.socket.shutdown(socket.SHUT_WR)
    first, second, (status, headers, page) = (connection.answer() for _ in range(3))
    assert (first[0], second[0], status) == (201, 201, 200)
    assert [event["version"] for event in page["events"]] == [0, 1]
    assert headers["connection"] == "close"
    assert connection.socket.recv(1) == b""


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /v1/events/subscribe?after=end HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"POST /v1/streams/order-torn HTTP/1.1\r\nhost: localhost\r\n"
        b"content-type: application/json\r\ncontent-length: 90\r\n\r\n{",
        b"GET /v1/events HTT",
    ],
)
def test_who_sends_no_more_is_let_go_where_no_answer_has_an_end(
    connection: Connection, request_: bytes
) -> None:
    connection.send(request_)
    connection.socket.shutdown(socket.SHUT_WR)
    while connection.socket.recv(4096):
        pass


def test_a_client_that_hangs_up_loses_only_its_answer(http: httpx.Client, stream: str) -> None:
    before = http.get("/v1/events").json()["head"]
    for n in range(20):
        gone = Connection(http)
        gone.send(wire(f"/v1/streams/{stream}-{n}", EVENT))
        gone.socket.close()
    assert http.post(f"/v1/streams/{stream}", json=EVENT).status_code == 201
    page = http.get("/v1/events", params={"after": before}).json()
    expected = list(range(before + 1, page["head"] + 1))
    assert [event["position"] for event in page["events"]] == expected


def test_a_token_is_asked_for_on_the_short_way_too(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn, token="a secret") as client:
        assert client.post("/v1/streams/order-1", json=EVENT).status_code == 201
        connection = Connection(client)
        connection.send(wire("/v1/streams/order-1", EVENT))
        assert connection.answer()[0] == 401
        connection.send(wire("/v1/streams/order-1", EVENT, authorization="Bearer a secret"))
        assert connection.answer()[0] == 201
        connection.socket.close()
