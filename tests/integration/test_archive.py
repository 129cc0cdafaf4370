"""Events that left PostgreSQL for the log: everything reads and appends as before."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from eventstore.postgres.store import PostgresEventStore
from eventstore.store import Direction
from kernel.errors import InvalidRequest, NotFound
from tests.contracts.events import event, request, to
from tests.support.lake.archiving import archived, into_the_log
from tests.support.services.http import service_in_thread
from tests.support.services.waiting import until

LINES = {"accept": "application/x-ndjson"}
IDS = [str(uuid.UUID(int=n)) for n in range(1, 61)]


def body(number: int) -> dict[str, Any]:
    """Return an event; texts and numbers are of the awkward kind."""
    return {
        "id": IDS[number],
        "type": ("placed", "shipped", "paid")[number % 3],
        "data": {"n": number, "text": 'ä\u2028"\\'},
        "metadata": {"by": "Zoë \u0001", "deep": {"zz": [1.5, 10, True, None], "a": {}}}
        if number % 2
        else {},
        "tags": [f"n:{number % 4}", 'odd"tag\\ü', "all"] if number % 3 else [],
        "occurred_at": f"2013-01-01T05:{number:02}:00.123456+01:00",
    }


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def http(postgres_dsn: str, lake: Path) -> Iterator[httpx.Client]:
    """A service over 60 events of six streams in two categories, all of them in the log."""
    with service_in_thread(postgres_dsn, lake=lake) as client:
        for number in range(0, 60, 2):
            category = "order" if number % 4 else "cart"
            answer = client.post(
                f"/v1/streams/{category}-{number // 2 % 3}",
                json={"events": [body(number), body(number + 1)]},
            )
            assert answer.status_code == 201, answer.text
        into_the_log(postgres_dsn, lake)
        yield client


def asked(dsn: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(statement.encode(), values).fetchall()


READS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/events", {}),
    ("/v1/events", {"limit": 7}),
    ("/v1/events", {"after": 9, "limit": 3}),
    ("/v1/events", {"category": "cart"}),
    ("/v1/events", {"type": "placed", "limit": 5}),
    ("/v1/events", {"type": "order.shipped", "after": 11}),
    ("/v1/events", {"tag": 'odd"tag\\ü'}),
    ("/v1/events", {"tag": "n:1", "category": "order"}),
    ("/v1/events", {"stream_prefix": "order-1"}),
    ("/v1/events", {"stream_prefix": "ca", "tag": "all", "type": "paid"}),
    ("/v1/streams/order-1", {}),
    ("/v1/streams/order-1", {"limit": 4}),
    ("/v1/streams/order-1", {"from_version": 2, "limit": 5}),
    ("/v1/streams/order-1", {"direction": "backward"}),
    ("/v1/streams/order-1", {"direction": "backward", "from_version": 4, "limit": 3}),
    ("/v1/streams/cart-0", {"direction": "backward", "limit": 2}),
    ("/v1/streams/cart-2", {}),
]


def everything(http: httpx.Client) -> dict[str, bytes]:
    """Return what a client may see, as bytes by question."""
    seen = {}
    for url, query in READS:
        for headers in ({}, LINES):
            answer = http.get(url, params=query, headers=headers)
            assert answer.status_code == 200, answer.text
            seen[f"{url} {query} {headers}"] = answer.content
    for id_ in IDS:
        seen[id_] = http.get(f"/v1/events/{id_}").content
    for items in ([{"types": ["paid", "order.placed"]}], [{"tags": ["all", "n:2"]}]):
        query = {"query": items, "limit": 9}
        seen[str(items)] = http.post("/v1/events/query", json=query).content
    with http.stream("GET", "/v1/events/subscribe", headers=LINES) as feed:
        lines = feed.iter_lines()
        seen["feed"] = "\n".join(next(lines) for _ in range(60)).encode()
    return seen


def test_everything_reads_as_before(http: httpx.Client, postgres_dsn: str, lake: Path) -> None:
    """All answers, to the byte, before and after most of the events have left."""
    for stream, up_to in (("order-1", 8), ("cart-0", 10), ("cart-1", 10), ("order-0", 1)):
        answer = http.put(f"/v1/streams/{stream}/archived", json={"up_to": up_to})
        assert answer.json()["archived_up_to"] == up_to
    before = everything(http)
    moved = 0
    for stream, up_to in (("order-1", 8), ("cart-0", 10), ("cart-1", 10), ("order-0", 1)):
        moved += archived(postgres_dsn, lake, http, stream=stream, before=up_to).events
    assert moved == 29
    left = asked(
        postgres_dsn, "SELECT count(*) FILTER (WHERE stream NOT LIKE '%%$metadata') FROM es.events"
    )
    assert left == [(31,)]
    after = everything(http)
    assert {question for question in before if before[question] != after[question]} == set()


@pytest.mark.matrix
def test_what_a_stream_hides_leaves_and_is_recorded(
    http: httpx.Client, postgres_dsn: str, lake: Path
) -> None:
    http.put("/v1/streams/order-1/metadata", json={"truncate_before": 4})
    http.put("/v1/streams/order-2/metadata", json={"max_count": 3})
    http.delete("/v1/streams/cart-0")
    http.delete("/v1/streams/cart-1", params={"tombstone": "true"})
    http.put("/v1/streams/cart-2/metadata", json={"max_age_s": 3600})
    into_the_log(postgres_dsn, lake, after=60)
    shown: list[tuple[int, int]] = []
    report = archived(postgres_dsn, lake, http, max_events=8, shown=shown)
    assert (report.events, report.planned, report.streams, report.staying) == (31, 31, 4, 0)
    assert [done for done, _ in shown] == [8, 16, 24, 31]
    standing = {
        stream: http.get(f"/v1/streams/{stream}/metadata").json()["archived_up_to"]
        for stream in ("order-1", "order-2", "cart-0", "cart-1", "cart-2", "order-0")
    }
    assert standing == {
        "order-1": 4,
        "order-2": 7,
        "cart-0": 10,
        "cart-1": 10,
        "cart-2": 0,
        "order-0": 0,
    }
    record = http.get("/v1/streams/order-1$metadata").json()["events"][-1]
    assert (record["type"], record["data"]["archived_up_to"]) == ("stream_archived", 4)
    assert record["position"] > 60
    assert http.get("/v1/streams/cart-0").status_code == 404
    assert http.get("/v1/streams/cart-1").status_code == 410
    again = archived(postgres_dsn, lake, http)
    assert (again.events, again.planned) == (0, 0)
    appended = http.post(
        "/v1/streams/cart-0", json={"events": [{"type": "placed", "data": {"n": 1}}]}
    )
    assert appended.json()["first_version"] == 10
    positions = [
        e["position"] for e in http.get("/v1/events", params={"limit": 1000}).json()["events"]
    ]
    assert positions == list(range(1, len(positions) + 1))


def test_what_is_not_in_the_log_stays(http: httpx.Client, postgres_dsn: str, lake: Path) -> None:
    for _ in range(3):
        http.post("/v1/streams/order-1", json={"events": [{"type": "placed", "data": {"n": 1}}]})
    report = archived(postgres_dsn, lake, http, stream="order-1", before=13)
    assert (report.events, report.planned, report.staying) == (10, 13, 1)
    (staying,) = report.first_staying
    assert (staying.stream, staying.version) == ("order-1", 10)
    assert staying.reason == "not in the log yet"
    into_the_log(postgres_dsn, lake, after=60)
    assert archived(postgres_dsn, lake, http, stream="order-1", before=13).events == 3


@pytest.mark.parametrize(
    "forged",
    [
        {"data": b"\x00\x00\x00\x00\x01\x06"},
        {"metadata": '{"by": "nobody"}'},
        *(
            pytest.param(forged, marks=pytest.mark.matrix)
            for forged in (
                {"stream": "order-9"},
                {"version": 3},
                {"event_id": str(uuid.UUID(int=99))},
                {"tags": ["n:1"]},
                {"type": "other"},
                {"schema_id": 77},
            )
        ),
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_what_the_log_has_otherwise_stays(
    http: httpx.Client, postgres_dsn: str, tmp_path: Path, forged: dict[str, Any]
) -> None:
    lake = tmp_path / "forged"
    into_the_log(postgres_dsn, lake, up_to=30)
    (position,) = asked(
        postgres_dsn, "SELECT position FROM es.events WHERE stream = 'order-2' AND version = 6"
    )[0]
    into_the_log(postgres_dsn, lake, after=30, up_to=position - 1)
    into_the_log(postgres_dsn, lake, after=position - 1, up_to=position, **forged)
    into_the_log(postgres_dsn, lake, after=position)
    report = archived(postgres_dsn, lake, http, stream="order-2", before=10)
    assert (report.events, report.staying) == (6, 1)
    assert report.first_staying[0].version == 6
    assert asked(
        postgres_dsn, "SELECT archived_up_to FROM es.streams WHERE stream = 'order-2'"
    ) == [(6,)]


@pytest.mark.matrix
def test_an_archived_event_is_repeated_and_its_id_stays_used(
    http: httpx.Client, postgres_dsn: str, lake: Path
) -> None:
    archived(postgres_dsn, lake, http, stream="order-1", before=10)
    events = [body(n) for n in range(2, 60, 12) for n in (n, n + 1)]
    assert http.get("/v1/streams/order-1").json()["events"][0]["id"] == events[0]["id"]
    url = "/v1/streams/order-1"
    first = http.get(f"/v1/events/{events[0]['id']}").json()
    for expected in ("any", "no_stream", 3):
        again = http.post(url, json={"expected_version": expected, "events": events[:2]})
        assert again.status_code == 200, again.text
        assert again.json()["first_position"] == first["position"]
        assert (again.json()["first_version"], again.json()["last_version"]) == (0, 1)
    for changed in (
        {"data": {"n": 7, "text": ""}},
        {"type": "refunded"},
        {"tags": ["another"]},
        {"metadata": {"by": "another"}},
        {"occurred_at": "2014-01-01T00:00:00Z"},
    ):
        refused = http.post(url, json={"events": [events[0] | changed]})
        assert (refused.status_code, refused.json().get("type")) == (409, "id-reused"), (
            changed,
            refused.text,
        )
    other = http.post("/v1/streams/order-2", json={"events": [events[0]]})
    assert other.json()["type"] == "id-reused"
    mixed = http.post(url, json={"events": [events[0], {"type": "placed", "data": {"n": 1}}]})
    assert mixed.json()["type"] == "id-reused"
    traced = http.post(url, json={"events": events[:1]}, headers={"x-correlation-id": "another"})
    assert traced.status_code == 200
    assert asked(postgres_dsn, "SELECT max(position) FROM es.counter")[0][0] == 61


@pytest.mark.matrix
def test_a_repetition_in_a_newer_schema_is_one(
    http: httpx.Client, postgres_dsn: str, lake: Path
) -> None:
    """The checksum differs then, and the log is asked."""
    archived(postgres_dsn, lake, http, stream="order-1", before=10)
    more = {"type": "placed", "data": {"n": 1, "text": "", "extra": 1}}
    assert http.post("/v1/streams/order-2", json={"events": [more]}).status_code == 201
    (event,) = http.get("/v1/streams/order-1", params={"limit": 1}).json()["events"]
    number = IDS.index(event["id"])
    types = {body(n)["type"]: n for n in (number, number + 1)}
    placed = [e for e in http.get("/v1/streams/order-1").json()["events"] if e["type"] == "placed"]
    repeated = body(IDS.index(placed[0]["id"]))
    again = http.post("/v1/streams/order-1", json={"events": [repeated]})
    assert again.status_code == 200, (again.text, types)
    assert again.json()["first_position"] == placed[0]["position"]


@pytest.mark.matrix
def test_conditions_see_archived_events(http: httpx.Client, postgres_dsn: str, lake: Path) -> None:
    """By tag, by type, by both, before and after: the same verdicts."""
    conditions = [
        {"query": [{"tags": tags} if not types else {"types": types, "tags": tags}], "after": after}
        for tags in ([], ["all"], ["n:1", "all"], ["n:0", "n:1"])
        for types in ([], ["paid"], ["order.paid"], ["cart.none"], ["placed", "shipped"])
        for after in (0, 20, 50, 59)
        if tags or types
    ]

    def verdicts() -> list[tuple[int, Any]]:
        found = []
        for condition in conditions:
            appends = [
                {
                    "stream": "probe-1",
                    "expected_version": 99,
                    "events": [{"type": "placed", "data": {"n": 1}}],
                }
            ]
            answer = http.post("/v1/append", json={"appends": appends, "condition": condition})
            found.append((answer.status_code, answer.json().get("position"), answer.json()["type"]))
        return found

    before = verdicts()
    assert {verdict[2] for verdict in before} == {"condition-failed", "version-conflict"}
    for stream in ("order-0", "order-1", "order-2", "cart-0", "cart-1", "cart-2"):
        archived(postgres_dsn, lake, http, stream=stream, before=10)
    assert asked(postgres_dsn, "SELECT count(*) FROM es.archived") == [(60,)]
    assert verdicts() == before


@pytest.mark.matrix
def test_a_group_is_given_archived_events(
    http: httpx.Client, postgres_dsn: str, lake: Path
) -> None:
    http.put("/v1/subscriptions/g", json={"start": 0, "max_in_flight": 100, "look_ahead": 100})
    url = "/v1/subscriptions/g"
    held = http.get(f"{url}/next", params={"consumer": "a", "limit": 3}).json()["events"]
    first = [each["event"]["id"] for each in held]
    assert http.post(f"{url}/ack", json={"ids": first[:1]}).status_code == 200
    for stream in ("order-0", "order-1", "order-2", "cart-0", "cart-1", "cart-2"):
        archived(postgres_dsn, lake, http, stream=stream, before=10)
    assert (
        http.post(
            f"{url}/nack", json={"ids": first[1:], "delay_s": 0, "reason": "busy"}
        ).status_code
        == 200
    )
    seen: dict[str, Any] = {}
    while not seen.keys() >= set(IDS) - set(first[:1]):
        page = http.get(f"{url}/next", params={"consumer": "a", "limit": 50}).json()["events"]
        assert page
        ids = [each["event"]["id"] for each in page]
        seen |= dict.fromkeys(ids)
        assert http.post(f"{url}/ack", json={"ids": ids}).status_code == 200
    settled = http.post(f"{url}/ack", json={"ids": first}).json()
    assert sorted(settled["already"]) == sorted(first)


@pytest.mark.matrix
def test_sql_appends_know_archived_ids(http: httpx.Client, postgres_dsn: str, lake: Path) -> None:
    (first, *_) = http.get("/v1/streams/order-1").json()["events"]
    archived(postgres_dsn, lake, http, stream="order-1", before=10)
    event = body(IDS.index(first["id"]))
    encoded = http.post("/v1/encode", json={"stream": "order-1", "events": [event]}).json()[
        "events"
    ]
    with psycopg.connect(postgres_dsn) as connection:
        statement = "SELECT * FROM es.append('order-1', 'any', %s)"
        row = connection.execute(statement, (json.dumps(encoded),)).fetchone()
        assert row == (0, 0, first["position"], first["position"], True)
        with pytest.raises(psycopg.Error, match="is used already"):
            connection.execute(statement, (json.dumps([encoded[0] | {"tags": ["x"]}]),))


@pytest.mark.parametrize("role", ["penstock_service", "penstock_archive", "postgres"])
def test_nobody_deletes_what_is_not_said_to_be_archived(
    http: httpx.Client, postgres_dsn: str, role: str
) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(f"SET ROLE {role}".encode())
        with pytest.raises(psycopg.Error, match=r"permission denied|append-only|not known to be"):
            connection.execute("DELETE FROM es.events WHERE position = 1")
        connection.rollback()
        connection.execute(f"SET ROLE {role}".encode())
        with pytest.raises(psycopg.Error, match=r"permission denied|append-only"):
            connection.execute("UPDATE es.events SET type = 'x' WHERE position = 1")


@pytest.mark.matrix
def test_the_service_may_not_say_what_is_archived(http: httpx.Client, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("SET ROLE penstock_service")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM es.archived")


@pytest.mark.matrix
def test_wrong_questions_are_named(http: httpx.Client, postgres_dsn: str, lake: Path) -> None:
    with pytest.raises(NotFound):
        archived(postgres_dsn, lake, http, stream="order-77")
    with pytest.raises(InvalidRequest, match="records the life"):
        archived(postgres_dsn, lake, http, stream="order-1$metadata")
    beyond = http.put("/v1/streams/order-1/archived", json={"up_to": 11})
    assert (beyond.status_code, beyond.json()["type"]) == (422, "invalid-request")
    assert http.put("/v1/streams/order-1/archived", json={"up_to": -1}).status_code == 422
    http.put("/v1/streams/order-1/archived", json={"up_to": 5})
    back = http.put("/v1/streams/order-1/archived", json={"up_to": 3}).json()
    assert (back["archived_up_to"], back["position"]) == (5, None)


def test_without_the_log_reads_say_so(http: httpx.Client, postgres_dsn: str, lake: Path) -> None:
    archived(postgres_dsn, lake, http, stream="order-1", before=3)
    elsewhere = lake.parent / "elsewhere"
    with service_in_thread(postgres_dsn, lake=elsewhere, wait_ready=False) as other:
        until(lambda: other.get("/v1/streams/order-2").status_code == 200, "it reads")
        lost = other.get("/v1/streams/order-1")
        assert (lost.status_code, lost.json()["type"]) == (503, "unavailable")
        assert "lake.path" in lost.json()["remedy"]
        assert other.get("/v1/streams/order-1", params={"from_version": 3}).status_code == 200


def test_reads_ask_the_archive_only_where_something_is_missing(postgres_dsn: str) -> None:
    """Counted by the server, whose sessions report when they end."""

    async def with_store(use: Callable[[PostgresEventStore], Awaitable[object]]) -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            await use(store)

    def touched() -> Any:
        others = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        until(lambda: asked(postgres_dsn, others) == [(0,)], "all sessions have ended")
        statement = (
            "SELECT coalesce(seq_scan, 0) + coalesce(idx_scan, 0) FROM pg_stat_user_tables"
            " WHERE relid = 'es.archived'::regclass"
        )
        return asked(postgres_dsn, statement)[0][0]

    events = [event() for _ in range(30)]
    directions: tuple[Direction, ...] = ("forward", "backward")
    places = ((None, 100), (None, 3), (7, 4), (29, 1), (30, 1), (99, 2))

    async def read(store: PostgresEventStore) -> None:
        for after, limit in ((0, 100), (0, 10), (25, 10), (29, 1), (30, 1)):
            await store.read_all(after=after, limit=limit)
            await store.rows_of_all(after=after, up_to=30, limit=limit)
        for direction in directions:
            for from_version, limit in places:
                await store.read_stream(
                    "order-1", from_version=from_version, direction=direction, limit=limit
                )
        await store.event(events[3].id)

    asyncio.run(with_store(lambda store: store.append(request(to("order-1", events)))))

    async def heads(store: PostgresEventStore) -> None:
        for _ in range(5):  # As many as the pages of `read`: the head may be in the archive.
            await store.head()

    before = touched()
    asyncio.run(with_store(heads))
    of_heads = touched() - before
    asyncio.run(with_store(read))
    # The last version of a stream that is read may be in the archive, too.
    assert touched() == before + 2 * of_heads + len(directions) * len(places)
