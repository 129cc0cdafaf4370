"""Bulk import: any number of events, one a line, resumable."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import psycopg
import pytest

from penstock_client import NewEvent, Penstock
from service.limits import BodyLimits
from tests.support.services.http import service_in_thread


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    limits = BodyLimits(event_bytes=2_000, events=10)
    with service_in_thread(postgres_dsn, max_body_bytes=20_000, limits=limits) as client:
        yield client


def line(number: int, *, streams: int = 7, **more: object) -> bytes:
    document = {
        "stream": f"order-{number % streams}",
        "id": str(uuid.UUID(int=number + 1)),
        "type": "placed",
        "data": {"number": number},
    }
    return orjson.dumps(document | more) + b"\n"


LINES = {"content-type": "application/x-ndjson"}


def send(http: httpx.Client, lines: Iterator[bytes] | bytes, **headers: str) -> httpx.Response:
    return http.post("/v1/import", content=lines, headers=LINES | headers)


def stored(http: httpx.Client) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    after = 0
    while True:
        page = http.get("/v1/events", params={"after": after, "limit": 1_000}).json()
        events += page["events"]
        if page["next_after"] == page["head"]:
            return events
        after = page["next_after"]


def test_lines_keep_their_order_and_no_limit_of_a_request_holds(http: httpx.Client) -> None:
    answer = send(http, (line(number) for number in range(2_345)))
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "lines": 2_345,
        "appended": 2_345,
        "repeated": 0,
        "last_position": 2_345,
    }
    events = stored(http)
    assert [event["data"]["number"] for event in events] == list(range(2_345))
    assert [event["version"] for event in events] == [number // 7 for number in range(2_345)]


def test_an_import_that_broke_is_sent_again(http: httpx.Client) -> None:
    """The second time, chunks begin elsewhere: some of what one holds is there, some is not."""
    broken = send(http, (line(number) for number in range(730)))
    assert broken.json()["appended"] == 730
    whole = send(http, (line(number) for number in range(1_400)))
    assert whole.json() == {
        "lines": 1_400,
        "appended": 670,
        "repeated": 730,
        "last_position": 1_400,
    }
    from_the_middle = send(http, (line(number) for number in range(333, 1_500)))
    assert from_the_middle.json()["appended"] == 100
    assert [event["data"]["number"] for event in stored(http)] == list(range(1_500))


def test_a_file_may_have_a_line_twice(http: httpx.Client) -> None:
    """As whoever wrote it had to send again what came without an answer."""
    lines = [line(number) for number in range(9)]
    answer = send(http, iter([*lines[:4], *lines[2:], lines[0]]))
    assert (answer.status_code, answer.json()["appended"], answer.json()["repeated"]) == (200, 9, 3)
    assert [event["data"]["number"] for event in stored(http)] == list(range(9))
    other = send(http, iter([line(20), line(20, data={"number": 9}), line(21)]))
    assert (other.status_code, other.json()["type"], other.json()["line"]) == (409, "id-reused", 2)
    assert other.json()["lines"] == 1


def test_a_file_may_begin_with_a_byte_order_mark(http: httpx.Client) -> None:
    answer = send(http, iter([b"\xef\xbb\xbf" + line(0).replace(b"\n", b"\r\n"), line(1)]))
    assert (answer.status_code, answer.json()["appended"]) == (200, 2)
    assert [event["data"]["number"] for event in stored(http)] == [0, 1]


@pytest.mark.parametrize(
    ("bad", "status", "kind"),
    [
        (b"{broken\n", 400, "malformed-body"),
        (b'"text"\n', 422, "invalid-request"),
        (line(0, stream="Order-1"), 422, "invalid-request"),
        (line(0, id=None), 422, "invalid-request"),
        (line(0, id="7"), 422, "invalid-request"),
        (line(0, extra=1), 422, "invalid-request"),
        (line(0, data=[]), 422, "invalid-request"),
        (line(0, data={"number": "text"}), 422, "schema-violation"),
        (line(3, data={"number": 9}), 409, "id-reused"),
        (line(0, data={"text": "x" * 2_000}), 413, "event-too-large"),
        (line(0, data={"text": "x" * 30_000}), 413, "event-too-large"),
        (b'{"stream": "' + b"x" * 300_000, 413, "event-too-large"),
    ],
)
def test_a_bad_line_stops_the_import_and_is_named(
    http: httpx.Client, bad: bytes, status: int, kind: str
) -> None:
    good = [line(number) for number in range(600)]
    # Blank lines are counted, so that numbers are those of the file.
    answer = send(http, iter([*good[:5], b"\n", *good[5:], bad, line(9_999)]))
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (status, kind), problem
    assert problem["line"] == 602
    done = problem["lines"]
    assert done >= 501
    assert [event["data"]["number"] for event in stored(http)] == list(range(done - 1))


def test_a_key_gives_ids_to_lines_without(http: httpx.Client) -> None:
    lines = [line(number, id=None) for number in range(20)]
    first = send(http, iter(lines), **{"idempotency-key": "k-1"})
    again = send(http, iter(lines), **{"idempotency-key": "k-1"})
    assert first.json()["appended"] == again.json()["repeated"] == 20
    other = send(http, line(77, id=None), **{"idempotency-key": "k-1"})
    assert (other.status_code, other.json()["type"]) == (409, "id-reused")
    assert len(stored(http)) == 20


def test_the_rest_of_a_file_is_sent_with_the_numbers_of_its_lines(http: httpx.Client) -> None:
    """Lines that say the same and have no ids are told apart by their numbers alone."""
    same = line(0, id=None)
    key = {"idempotency-key": "k-1"}
    broken = send(http, same * 500 + b"{broken\n", **key).json()
    assert (broken["line"], broken["lines"]) == (501, 500)

    def rest(lines: bytes) -> httpx.Response:
        place = {"first_line": broken["lines"] + 1}
        return http.post("/v1/import", params=place, content=lines, headers=LINES | key)

    refused = rest(same + b"\n{broken\n").json()
    assert (refused["line"], refused["lines"]) == (503, 500)
    whole = rest(same * 100)
    assert whole.json() == {"lines": 600, "appended": 100, "repeated": 0, "last_position": 600}
    assert rest(same * 100).json()["repeated"] == 100
    assert len(stored(http)) == 600


@pytest.mark.parametrize("first", ["0", "-1", str(2**53 + 1), "x"])
def test_the_number_of_the_first_line_is_one_of_a_line(http: httpx.Client, first: str) -> None:
    answer = http.post("/v1/import", params={"first_line": first}, content=b"", headers=LINES)
    assert (answer.status_code, answer.json()["type"]) == (422, "invalid-request")


def test_nothing_is_an_import_too(http: httpx.Client) -> None:
    for body in (b"", b"\n\n  \n"):
        assert send(http, body).json() == {
            "lines": 0,
            "appended": 0,
            "repeated": 0,
            "last_position": 0,
        }


def test_encoded_events_are_what_sql_takes(http: httpx.Client, postgres_dsn: str) -> None:
    """An application in any language: encode over HTTP, then append in its own transaction."""
    event = {"id": str(uuid.uuid4()), "type": "placed", "data": {"total": 5}, "tags": ["a:1"]}
    encoded = http.post("/v1/encode", json={"stream": "cart-1", "events": [event]})
    assert encoded.status_code == 200, encoded.text
    assert encoded.json()["stream"] == "cart-1"
    with Penstock(str(http.base_url)) as client:
        new = NewEvent(id=uuid.UUID(event["id"]), type="placed", data={"total": 5}, tags=("a:1",))
        assert client.encode("cart-1", new) == encoded.json()["events"]
    assert stored(http) == []
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("SET ROLE penstock_appender")
        given = orjson.dumps(encoded.json()["events"]).decode()
        connection.execute("SELECT * FROM es.append('cart-1', 'no_stream', %s)", (given,))
    (found,) = stored(http)
    assert (found["id"], found["stream"], found["data"]) == (event["id"], "cart-1", {"total": 5})
    bad = {"stream": "cart-1", "events": [event | {"data": {"total": "x"}}]}
    wrong = http.post("/v1/encode", json=bad)
    assert (wrong.status_code, wrong.json()["type"]) == (422, "schema-violation")
