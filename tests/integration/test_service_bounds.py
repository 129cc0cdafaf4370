"""Over HTTP: what was taken is shown again, and one event that cannot be shown breaks nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from schemas.wire import frame
from tests.support.services.http import service_in_thread

LINES = {"accept": "application/x-ndjson"}
JSON = {"content-type": "application/json"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2}


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn) as client:
        yield client


def post(http: httpx.Client, event: str, path: str = "/v1/streams/order-1") -> httpx.Response:
    return http.post(path, content=b'{"events": [%b]}' % event.encode(), headers=JSON)


def test_metadata_that_could_not_be_shown_is_refused_by_every_intake(http: httpx.Client) -> None:
    event = '{"type": "placed", "data": {"n": 1}, "metadata": {"a": {"trace": 1e20}}}'
    line = f'{{"stream": "order-1", "id": "{uuid4()}", ' + event[1:]
    body = '{"stream": "order-1", "events": [' + event + "]}"
    answers = [
        post(http, event),
        http.post("/v1/import", content=line, headers={"content-type": "application/x-ndjson"}),
        http.post("/v1/encode", content=body, headers=JSON),
    ]
    for answer in answers:
        assert answer.status_code == 422, answer.text
        assert "metadata.a.trace" in answer.json()["detail"]
    assert http.get("/v1/events").json()["head"] == 0


def test_numbers_come_back_or_are_refused_with_their_place(http: httpx.Client) -> None:
    fields = [{"name": "total", "type": DECIMAL}, {"name": "ratio", "type": "double"}]
    schema = json.dumps({"type": "record", "name": "placed", "fields": fields})
    body = {"subject": "order.placed", "schema": schema}
    assert http.post("/v1/schemas", json=body).status_code == 201
    event = '{"type": "placed", "data": {"total": 1234567890123456.78, "ratio": 20}}'
    assert post(http, event).status_code == 201
    (shown,) = http.get("/v1/events").json()["events"]
    assert shown["data"] == {"total": "1234567890123456.78", "ratio": 20.0}
    refused = post(http, event.replace("20}", "1234567890123456.78}"))
    assert (refused.status_code, refused.json()["path"]) == (422, "$.ratio")
    refused = post(http, '{"type": "born", "data": {"n": 123456789012345678901234567890}}')
    assert (refused.status_code, refused.json()["path"]) == (422, "$.n")
    twice = post(http, '{"type": "placed", "data": {"total": 1, "total": 2, "ratio": 1}}')
    assert twice.status_code == 422
    assert "'total' occurs twice" in twice.json()["detail"]
    assert post(http, '{"type": "born", "data": {"n": 9007199254740993}}').status_code == 201


def test_one_event_that_cannot_be_shown_breaks_no_page_and_no_group(
    http: httpx.Client, postgres_dsn: str
) -> None:
    placed = '{"type": "placed", "data": {"text": "a"}}'
    assert post(http, placed).status_code == 201
    schema_id = http.get("/v1/events").json()["events"][0]["schema_id"]
    garbage = base64.b64encode(frame(schema_id, b"\x7f")).decode()
    with psycopg.connect(postgres_dsn) as connection:
        given = json.dumps([{"id": str(uuid4()), "type": "placed", "data": garbage}])
        connection.execute("SELECT es.append('order-2', 'any', %s)", (given,))
    assert post(http, placed).status_code == 201
    pages: list[list[dict[str, Any]]] = [
        http.get("/v1/events").json()["events"],
        [json.loads(each) for each in http.get("/v1/events", headers=LINES).text.splitlines()],
    ]
    for first, broken, last in pages:
        assert first["data"] == last["data"] == {"text": "a"}
        assert broken["data"] is None
        assert "not what their schema says" in broken["unreadable"]
    assert pages[0] == pages[1]
    http.put("/v1/subscriptions/g", json={"start": 0})
    given_ = http.get("/v1/subscriptions/g/next", params={"limit": 10}).json()["events"]
    assert [each["event"].get("unreadable") is None for each in given_] == [True, False]
    ids = [each["event"]["id"] for each in given_]
    http.post("/v1/subscriptions/g/ack", json={"ids": ids})
    (next_,) = http.get("/v1/subscriptions/g/next").json()["events"]
    assert next_["event"]["position"] == 3
