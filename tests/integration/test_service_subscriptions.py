"""Server-sent events: history, then what happens, from any position."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.services.http import service_in_thread


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn, heartbeat_s=0.2) as client:
        yield client


def append(http: httpx.Client, stream: str, count: int = 1) -> None:
    for first in range(0, count, 1_000):
        last = min(first + 1_000, count)
        events = [{"type": "placed", "data": {"n": n}} for n in range(first, last)]
        assert http.post(f"/v1/streams/{stream}", json={"events": events}).status_code == 201


@contextmanager
def subscribed(
    http: httpx.Client, headers: dict[str, str] | None = None, **query: str | int
) -> Iterator[Iterator[tuple[str, int, Any]]]:
    """Yield messages as (event name, id, document); comments are named `comment`."""
    with http.stream("GET", "/v1/events/subscribe", params=query, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield messages(answer.iter_lines())


def messages(lines: Iterator[str]) -> Iterator[tuple[str, int, Any]]:
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name or "comment"] = value
        else:
            if "comment" in fields:
                yield "comment", 0, fields["comment"]
            else:
                yield fields.get("event", ""), int(fields["id"]), json.loads(fields["data"])
            fields = {}


def upto(feed: Iterator[tuple[str, int, Any]], name: str) -> list[tuple[str, int]]:
    """Return what comes up to and including a message of that name, without comments."""
    seen = []
    for kind, id_, _ in feed:
        if kind != "comment":
            seen.append((kind, id_))
        if kind == name:
            return seen
    raise AssertionError("the feed ended")


def test_history_then_caught_up_then_live(http: httpx.Client) -> None:
    append(http, "order-1", 3)
    with subscribed(http, after=1) as feed:
        assert upto(feed, "caught-up") == [("", 2), ("", 3), ("caught-up", 3)]
        append(http, "order-2", 2)
        live = [message for message in (next(feed) for _ in range(2)) if message[0] != "comment"]
        while len(live) < 2:
            live += [message for message in [next(feed)] if message[0] != "comment"]
    assert [(kind, id_) for kind, id_, _ in live] == [("", 4), ("", 5)]
    document = live[0][2]
    assert (document["position"], document["stream"]) == (4, "order-2")
    assert document == http.get(f"/v1/events/{document['id']}").json()


def test_last_event_id_beats_after(http: httpx.Client) -> None:
    append(http, "order-1", 4)
    with subscribed(http, {"last-event-id": "3"}, after=0) as feed:
        assert upto(feed, "caught-up") == [("", 4), ("caught-up", 4)]


def test_an_empty_last_event_id_is_none(http: httpx.Client) -> None:
    append(http, "order-1", 4)
    with subscribed(http, {"last-event-id": ""}, after=3) as feed:
        assert upto(feed, "caught-up") == [("", 4), ("caught-up", 4)]


def test_after_end_starts_live(http: httpx.Client) -> None:
    append(http, "order-1", 4)
    with subscribed(http, after="end") as feed:
        assert upto(feed, "caught-up") == [("caught-up", 4)]
        append(http, "order-1")
        assert upto(feed, "") == [("", 5)]


def test_a_filtered_feed_says_how_far_it_looked(http: httpx.Client) -> None:
    append(http, "cart-1", 2_500)
    append(http, "order-1")
    with subscribed(http, category="order") as feed:
        assert upto(feed, "caught-up") == [
            ("checkpoint", 1000),
            ("checkpoint", 2000),
            ("", 2501),
            ("caught-up", 2501),
        ]


def test_a_silent_feed_beats(http: httpx.Client) -> None:
    with subscribed(http) as feed:
        upto(feed, "caught-up")
        assert next(feed) == ("comment", 0, "heartbeat")


@pytest.mark.parametrize(
    ("after", "status", "kind"), [("7", 409, "beyond-head"), ("x", 422, "invalid-request")]
)
def test_a_feed_that_cannot_start(http: httpx.Client, after: str, status: int, kind: str) -> None:
    answer = http.get("/v1/events/subscribe", params={"after": after})
    assert (answer.status_code, answer.json()["type"]) == (status, kind)


def test_subscribers_are_counted_and_let_go_at_the_end(postgres_dsn: str) -> None:
    with httpx.Client(timeout=30, verify=False) as other:
        with service_in_thread(postgres_dsn) as http:
            url = f"{http.base_url}/v1/events/subscribe"
            answer = other.send(other.build_request("GET", url), stream=True)
            feed = messages(answer.iter_lines())
            upto(feed, "caught-up")
            assert "penstock_subscribers 1.0" in http.get("/metrics").text
        # The service has stopped; the feed ended as a whole answer, not as a broken one.
        assert [message for message in feed if message[0] != "comment"] == []
        answer.close()


@pytest.mark.parametrize("lines", [False, True])
def test_a_feed_of_a_store_that_lost_events_says_so_and_ends(
    postgres_dsn: str, lines: bool
) -> None:
    with service_in_thread(postgres_dsn, heartbeat_s=0.2) as http:
        append(http, "order-1", 2)
        headers = {"accept": "application/x-ndjson"} if lines else {}
        with http.stream("GET", "/v1/events/subscribe", headers=headers) as answer:
            received = answer.iter_lines()
            assert any("caught-up" in line for line in received)
            with psycopg.connect(postgres_dsn, autocommit=True) as connection:
                connection.execute("ALTER TABLE es.events DISABLE TRIGGER USER")
                connection.execute("DELETE FROM es.events WHERE position = 2")
            last = "\n".join(received)
        assert "failed" in last
        assert '"type":"store-diverged"' in last
        assert "position 1" in last
