"""The life of a stream over HTTP: what it shows, its deletion, its end for good."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest

from eventstore.lifecycle import PolicyChange, StreamPolicy
from eventstore.postgres.store import PostgresEventStore
from eventstore.store import AppendRequest
from kernel.clock import ManualClock
from kernel.errors import InvalidRequest, NotFound, StreamGone, VersionConflict
from tests.contracts.events import event, request, to
from tests.support.services.http import service_in_thread
from tests.support.store.memory import MemoryEventStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LINES = {"accept": "application/x-ndjson"}


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn) as client:
        yield client


def append(http: httpx.Client, stream: str, count: int = 1, **body: Any) -> httpx.Response:
    events = [{"type": "placed", "data": {"n": n}} for n in range(count)]
    return http.post(f"/v1/streams/{stream}", json={"events": events} | body)


def put(http: httpx.Client, stream: str, headers: Any = None, **policy: Any) -> httpx.Response:
    return http.put(f"/v1/streams/{stream}/metadata", json=policy, headers=headers)


def shown(http: httpx.Client, stream: str, **query: Any) -> list[int]:
    """Return the versions that a stream shows, which pages and lines agree about."""
    url = f"/v1/streams/{stream}"
    page = http.get(url, params=query)
    assert page.status_code == 200, page.text
    lines = http.get(url, params=query, headers=LINES)
    assert [json.loads(line) for line in lines.text.splitlines()] == page.json()["events"]
    return [each["version"] for each in page.json()["events"]]


def refused(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json()["type"]) == (status, kind), answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_a_deleted_stream_begins_again_where_it_ended(http: httpx.Client) -> None:
    append(http, "order-1", 3)
    deleted = http.delete("/v1/streams/order-1")
    assert deleted.json() == {
        "stream": "order-1",
        "version": 2,
        "deleted": True,
        "tombstoned": False,
        "truncate_before": 3,
        "max_age_s": None,
        "max_count": None,
        "archived_up_to": 0,
        "position": 4,
    }
    refused(http.get("/v1/streams/order-1"), 404, "not-found")
    refused(http.get("/v1/streams/order-1", headers=LINES), 404, "not-found")
    refused(http.delete("/v1/streams/order-1"), 404, "not-found")
    refused(append(http, "order-1", expected_version="stream_exists"), 409, "version-conflict")
    again = append(http, "order-1", 2, expected_version="no_stream")
    assert (again.status_code, again.json()["first_version"]) == (201, 3)
    assert shown(http, "order-1") == [3, 4]
    assert shown(http, "order-1", direction="backward", from_version=3) == [3]
    assert http.get("/v1/streams/order-1/metadata").json()["deleted"] is False
    refused(append(http, "order-1", expected_version="no_stream"), 409, "version-conflict")


def test_everything_stays_in_the_log(http: httpx.Client) -> None:
    append(http, "order-1", 3)
    first = http.get("/v1/events").json()["events"][0]
    http.delete("/v1/streams/order-1")
    events = http.get("/v1/events", params={"category": "order"}).json()["events"]
    assert [each["position"] for each in events] == [1, 2, 3, 4]
    assert http.get(f"/v1/events/{first['id']}").json() == first
    change = events[-1]
    assert (change["type"], change["stream"]) == ("stream_deleted", "order-1$metadata")
    assert change["data"] == {
        "stream": "order-1",
        "version": 2,
        "truncate_before": 3,
        "max_age_s": None,
        "max_count": None,
    }
    assert shown(http, "order-1$metadata") == [0]


def test_a_tombstone_is_for_good(http: httpx.Client) -> None:
    append(http, "order-1", 2)
    http.delete("/v1/streams/order-1")
    gone = http.delete("/v1/streams/order-1", params={"tombstone": "true"})
    assert gone.json()["tombstoned"] is True
    for answer in (
        append(http, "order-1"),
        append(http, "order-1", expected_version="no_stream"),
        http.get("/v1/streams/order-1"),
        http.get("/v1/streams/order-1", headers=LINES),
        http.delete("/v1/streams/order-1"),
        http.delete("/v1/streams/order-1", params={"tombstone": "true"}),
        put(http, "order-1", max_count=1),
    ):
        assert refused(answer, 410, "stream-gone")["stream"] == "order-1"
    assert http.get("/v1/streams/order-1/metadata").json()["tombstoned"] is True
    types = [each["type"] for each in http.get("/v1/events").json()["events"]]
    assert types == ["placed", "placed", "stream_deleted", "stream_tombstoned"]


def test_what_a_policy_hides(http: httpx.Client) -> None:
    append(http, "order-1", 6)
    assert put(http, "order-1", max_count=4).status_code == 200
    assert shown(http, "order-1") == [2, 3, 4, 5]
    assert shown(http, "order-1", direction="backward", limit=9) == [5, 4, 3, 2]
    assert shown(http, "order-1", from_version=1, limit=2) == [2, 3]
    append(http, "order-1")
    assert shown(http, "order-1") == [3, 4, 5, 6]
    put(http, "order-1", truncate_before=5)
    assert shown(http, "order-1") == [5, 6]
    put(http, "order-1", truncate_before=7)
    empty = http.get("/v1/streams/order-1").json()
    assert (empty["version"], empty["events"]) == (6, [])
    append(http, "order-1")
    assert shown(http, "order-1") == [7]
    kinds = [each["type"] for each in http.get("/v1/streams/order-1$metadata").json()["events"]]
    assert kinds == ["stream_metadata_set", "stream_metadata_set", "stream_truncated"]


def test_old_events_go_out_of_sight(http: httpx.Client, postgres_dsn: str) -> None:
    append(http, "order-1", 5)
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("ALTER TABLE es.events DISABLE TRIGGER append_only")
        connection.execute(
            "UPDATE es.events SET recorded_at = recorded_at - interval '1 hour' WHERE version < 3"
        )
    assert put(http, "order-1", max_age_s=7_200).status_code == 200
    assert shown(http, "order-1") == [0, 1, 2, 3, 4]
    put(http, "order-1", max_age_s=1_800)
    assert shown(http, "order-1") == [3, 4]
    assert shown(http, "order-1", direction="backward", limit=1) == [4]
    assert shown(http, "order-1", direction="backward", from_version=3) == [3]


def test_the_same_policy_again_is_no_event(http: httpx.Client) -> None:
    append(http, "order-1")
    first = put(http, "order-1", max_count=4)
    again = put(http, "order-1", max_count=4)
    assert (first.json()["position"], again.json()["position"]) == (2, None)
    assert again.headers["etag"] == first.headers["etag"] == '"0"'


def test_policies_that_cannot_be(http: httpx.Client) -> None:
    append(http, "order-1", 3)
    put(http, "order-1", truncate_before=2)
    policies: list[tuple[dict[str, Any], str]] = [
        ({"max_count": 0}, "$.max_count"),
        ({"max_age_s": "1 day"}, "$.max_age_s"),
        ({"max_age": 5}, "$.max_age"),
        ({"truncate_before": 4}, "truncate_before: 4 is not between 2 and"),
        ({"truncate_before": 1}, "truncate_before: 1 is not between 2 and"),
    ]
    for policy, complaint in policies:
        answer = refused(put(http, "order-1", **policy), 422, "invalid-request")
        assert complaint in answer["detail"], policy
        assert http.get("/v1/events").json()["head"] == 4


def test_preconditions(http: httpx.Client) -> None:
    append(http, "order-1", 2)
    url = "/v1/streams/order-1"
    for headers in ({"if-match": '"0"'}, {"if-none-match": "*"}):
        refused(http.delete(url, headers=headers), 412, "version-conflict")
    refused(put(http, "order-1", {"if-match": '"0"'}, max_count=1), 412, "version-conflict")
    set_once = put(http, "order-1", {"if-none-match": "*"}, max_count=1)
    assert set_once.status_code == 200
    assert http.get(f"{url}/metadata").headers["etag"] == set_once.headers["etag"]
    refused(put(http, "order-1", {"if-none-match": "*"}, max_count=2), 412, "version-conflict")
    moved = put(http, "order-1", {"if-match": set_once.headers["etag"]}, max_count=2)
    assert moved.headers["etag"] == '"1"'
    assert http.delete(url, headers={"if-match": '"1"'}).status_code == 200
    refused(http.delete(url, headers={"if-match": '"1"'}), 404, "not-found")
    refused(put(http, "order-1", {"if-match": '"1"'}, max_count=3), 404, "not-found")


def test_streams_that_are_not_there(http: httpx.Client) -> None:
    for answer in (
        http.delete("/v1/streams/order-none"),
        http.delete("/v1/streams/order-none", params={"tombstone": "true"}),
        put(http, "order-none", max_count=1),
        http.get("/v1/streams/order-none/metadata"),
    ):
        refused(answer, 404, "not-found")


def test_nobody_but_policies_writes_to_a_metadata_stream(http: httpx.Client) -> None:
    append(http, "order-1")
    refused(append(http, "order-1$metadata"), 422, "invalid-request")
    refused(put(http, "order-1$metadata", max_count=1), 422, "invalid-request")
    refused(http.delete("/v1/streams/order-1$metadata"), 422, "invalid-request")


def test_types_of_the_stores_own_are_nobody_elses(http: httpx.Client) -> None:
    """With another schema for them, no stream of the category could be deleted any more."""
    append(http, "order-1")
    body = {"events": [{"type": "stream_deleted", "data": {"by": "me"}}]}
    refused(http.post("/v1/streams/order-1", json=body), 422, "invalid-request")
    field = {"name": "by", "type": "string"}
    schema = {"type": "record", "name": "stream_deleted", "fields": [field]}
    body = {"subject": "order.stream_deleted", "schema": schema}
    refused(http.post("/v1/schemas", json=body), 422, "invalid-request")
    assert http.delete("/v1/streams/order-1").status_code == 200


def test_a_stream_of_the_longest_name_has_a_life_that_is_read(http: httpx.Client) -> None:
    stream = f"order-{'x' * 249}"
    append(http, stream)
    assert http.delete(f"/v1/streams/{stream}").status_code == 200
    assert shown(http, f"{stream}$metadata") == [0]


def test_the_writer_forgets_nothing_about_a_stream_that_it_knows(http: httpx.Client) -> None:
    """Its memory of heads must not outlive a deletion, nor a return."""
    for _ in range(3):
        append(http, "order-1", expected_version="no_stream")
        append(http, "order-1", expected_version="stream_exists")
        refused(append(http, "order-1", expected_version="no_stream"), 409, "version-conflict")
        http.delete("/v1/streams/order-1")
        refused(append(http, "order-1", expected_version="stream_exists"), 409, "version-conflict")
    http.delete("/v1/streams/order-1", params={"tombstone": "true"})
    refused(append(http, "order-1"), 410, "stream-gone")
    append(http, "order-2")
    refused(append(http, "order-1"), 410, "stream-gone")


def changing(stream: str, version: int, policy: StreamPolicy) -> AppendRequest:
    recorded = request(to(f"{stream}$metadata", [event()]))
    change = PolicyChange(stream=stream, version=version, policy=policy)
    return AppendRequest(appends=recorded.appends, change=change)


@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_requests_of_one_group_see_each_other(kind: str, postgres_dsn: str) -> None:
    deleted = StreamPolicy(deleted=True, truncate_before=1)
    gone = StreamPolicy(tombstoned=True)

    async def body() -> None:
        async with (
            MemoryEventStore() if kind == "memory" else PostgresEventStore(postgres_dsn) as store
        ):
            await store.append(request(to("order-1")))
            outcomes = await asyncio.gather(
                store.append(changing("order-1", 7, deleted)),
                store.append(changing("order-1", 0, deleted)),
                store.append(request(to("order-1", expected="stream_exists"))),
                store.append(request(to("order-1", expected="no_stream"))),
                store.append(changing("order-1", 1, gone)),
                store.append(request(to("order-1"))),
                store.append(changing("order-9", 0, deleted)),
                store.append(request(to("order-2$metadata"))),
                return_exceptions=True,
            )
            kinds = [type(outcome).__name__ for outcome in outcomes]
            assert kinds == [
                VersionConflict.__name__,
                "Appended",
                VersionConflict.__name__,
                "Appended",
                "Appended",
                StreamGone.__name__,
                VersionConflict.__name__,
                InvalidRequest.__name__,
            ]
            standing = await store.standing("order-1")
            assert (standing.version, standing.policy, standing.metadata_version) == (1, gone, 1)
            with pytest.raises(StreamGone):
                await store.read_stream("order-1", from_version=0, direction="forward", limit=9)

    asyncio.run(body())


def test_memory_and_age() -> None:
    async def body() -> None:
        clock = ManualClock(NOON)
        async with MemoryEventStore(clock=clock) as store:
            await store.append(request(to("order-1", [event(), event()])))
            clock.set(NOON + timedelta(seconds=60))
            await store.append(request(to("order-1")))
            await store.append(changing("order-1", 2, StreamPolicy(max_age_s=30)))
            page = await store.read_stream(
                "order-1", from_version=None, direction="backward", limit=9
            )
            assert [e.version for e in page.events] == [2]
            await store.append(changing("order-1", 2, StreamPolicy(deleted=True)))
            with pytest.raises(NotFound):
                await store.read_stream("order-1", from_version=0, direction="forward", limit=9)

    asyncio.run(body())
