"""CloudEvents 1.0 over HTTP: structured, batch and binary mode in, structured and batch out."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import psycopg
import pytest

from tests.support.services.http import service_in_thread
from tests.support.store.postgres import Cluster, database

EVENT = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn) as client:
        yield client


@pytest.fixture(scope="module")
def refusing(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    """One service for all that is refused: its store stays empty."""
    with database(postgres_cluster) as dsn, service_in_thread(dsn) as client:
        yield client
        assert client.get("/v1/events").json()["head"] == 0


def cloud_event(**more: Any) -> dict[str, Any]:
    return {
        "specversion": "1.0",
        "id": "a-1",
        "source": "https://shop.example/checkout",
        "type": "com.example.order.placed",
        "data": {"total": 12.5},
    } | more


def post(
    http: httpx.Client, document: object, *, media: str = EVENT, **more: Any
) -> httpx.Response:
    return http.post(
        "/v1/streams/order-1",
        content=json.dumps(document),
        headers={"content-type": media, **more.pop("headers", {})},
        **more,
    )


def stored(http: httpx.Client) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = http.get("/v1/streams/order-1").json()["events"]
    return events


def given_back(http: httpx.Client, path: str, media: str = EVENT) -> Any:
    answer = http.get(path, headers={"accept": media})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_cloud_event_becomes_an_event_and_comes_back_as_it_was(
    http: httpx.Client, postgres_dsn: str
) -> None:
    sent = cloud_event(
        subject="7 items",
        time="2013-01-01T05:15:00Z",
        datacontenttype="application/json",
        dataschema="https://shop.example/order.json",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        tags="customer:7 vip",
        region="eu",
        retries=3,
        metadata='{"by":"me"}',
    )
    answer = post(http, sent)
    assert answer.status_code == 201
    assert answer.json()["last_position"] == 1
    (event,) = stored(http)
    expected_id = uuid.uuid5(uuid.uuid5(uuid.NAMESPACE_URL, sent["source"]), "a-1")
    assert event["id"] == str(expected_id)
    assert (event["type"], event["data"]) == ("placed", {"total": 12.5})
    assert (event["tags"], event["occurred_at"]) == (["customer:7", "vip"], sent["time"])
    assert event["metadata"]["traceparent"] == sent["traceparent"]
    assert event["metadata"]["by"] == "me"
    assert event["metadata"]["cloudevents"] == {
        "source": sent["source"],
        "id": "a-1",
        "type": "com.example.order.placed",
        "subject": "7 items",
        "dataschema": sent["dataschema"],
        "region": "eu",
        "retries": 3,
    }
    back = given_back(http, f"/v1/events/{event['id']}")
    assert {name: back.get(name) for name in sent} == sent
    assert {name: back[name] for name in back if name not in sent} == {
        "stream": "order-1",
        "version": 0,
        "position": "1",
        "sequence": "0000000000000000001",
        "partitionkey": "order-1",
        "recordedtime": event["recorded_at"],
        "schemaid": event["schema_id"],
    }


def test_an_event_of_ours_goes_out_with_the_names_of_the_store(
    http: httpx.Client, postgres_dsn: str
) -> None:
    id_ = str(uuid.uuid4())
    http.post(
        "/v1/streams/order-1", json={"events": [{"id": id_, "type": "placed", "data": {"n": 1}}]}
    )
    with psycopg.connect(postgres_dsn) as connection:
        (store_id,) = connection.execute("SELECT store_id FROM es.store").fetchone() or ()
    back = given_back(http, f"/v1/events/{id_}")
    assert back["specversion"] == "1.0"
    assert (back["id"], back["source"]) == (id_, f"/stores/{store_id}")
    assert (back["type"], back["subject"]) == ("order.placed", "order-1")
    assert back["data"] == {"n": 1}
    # It would come in again with its source kept beside it: another event under the same id.
    again = post(http, back)
    assert (again.status_code, again.json()["type"]) == (409, "id-reused")


def test_a_repeated_cloud_event_is_recorded_once(http: httpx.Client) -> None:
    first = post(http, cloud_event())
    again = post(http, cloud_event())
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == first.json()
    other_source = post(http, cloud_event(source="https://other.example"))
    assert other_source.status_code == 201
    assert len(stored(http)) == 2


def test_a_batch_is_all_or_nothing_and_keeps_its_order(http: httpx.Client) -> None:
    batch = [cloud_event(id=str(n), data={"total": n}) for n in range(3)]
    answer = post(http, batch, media=BATCH, headers={"if-none-match": "*"})
    assert answer.status_code == 201
    assert [event["data"]["total"] for event in stored(http)] == [0, 1, 2]
    refused = post(http, [*batch, cloud_event(id="x", type="cart.placed")], media=BATCH)
    assert refused.status_code == 422
    assert refused.json()["detail"].startswith("$[3].type")
    assert len(stored(http)) == 3
    conflict = post(http, cloud_event(id="y"), headers={"if-match": '"9"'})
    assert conflict.status_code == 412


def test_binary_mode_carries_attributes_in_headers(http: httpx.Client) -> None:
    answer = http.post(
        "/v1/streams/order-1",
        content=b'{"total": 1.5}',
        headers={
            "content-type": "application/json; charset=utf-8",
            "ce-specversion": "1.0",
            "ce-id": "a-1",
            "ce-source": "/checkout",
            "ce-type": "order.placed",
            "ce-region": "eu%20west",
        },
    )
    assert answer.status_code == 201
    (event,) = stored(http)
    assert event["data"] == {"total": 1.5}
    assert event["metadata"]["cloudevents"] == {
        "source": "/checkout",
        "id": "a-1",
        "region": "eu west",
    }
    structured = post(
        http,
        cloud_event(source="/checkout", type="order.placed", region="eu west", data={"total": 1.5}),
    )
    assert structured.status_code == 200, "the same event in another mode"


def binary(http: httpx.Client, id_: str) -> httpx.Response:
    event = {"id": id_, "specversion": "1.0", "type": "placed", "source": "s"}
    headers = {f"ce-{name}": value for name, value in event.items()}
    return http.post("/v1/streams/order-1", json={"n": 1}, headers=headers)


def test_headers_say_what_the_specification_reads_in_them(http: httpx.Client) -> None:
    """Quotes are no part of a value, and bytes that are no text are not all the same one."""
    assert binary(http, '"a \\"b\\" %C3%BC"').status_code == 201
    assert given_back(http, f"/v1/events/{stored(http)[0]['id']}")["id"] == 'a "b" ü'
    for id_ in ("%ff", "%fe"):
        assert binary(http, id_).json()["type"] == "invalid-request"
    assert len(stored(http)) == 1


def test_an_attribute_stands_there_once(refusing: httpx.Client) -> None:
    twice = [("ce-id", "1"), ("ce-id", "2"), ("ce-specversion", "1.0"), ("ce-source", "s")]
    answer = refusing.post(
        "/v1/streams/order-1", json={"n": 1}, headers=[*twice, ("ce-type", "placed")]
    )
    assert (answer.status_code, answer.json()["type"]) == (400, "malformed-request")


def test_an_event_goes_out_in_binary_mode_and_comes_in_again(http: httpx.Client) -> None:
    sent = cloud_event(
        note='50 % "off" \u00e9\u4e2d', urgent=True, retries=3, subject="seven items"
    )
    post(http, sent)
    (event,) = stored(http)
    binary = {"accept": "application/json; cloudevents=binary"}
    answer = http.get(f"/v1/events/{event['id']}", headers=binary)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == sent["data"]
    structured = given_back(http, f"/v1/events/{event['id']}")
    given = {n[3:]: unquote(v) for n, v in answer.headers.items() if n.startswith("ce-")}
    assert given.pop("urgent") == "true"
    expected = {name: str(value) for name, value in structured.items()}
    assert given == {name: expected[name] for name in expected if name in given}
    assert given.keys() == structured.keys() - {"data", "datacontenttype", "urgent"}
    assert answer.headers["ce-note"] == "50%20%25%20%22off%22%20%C3%A9%E4%B8%AD"
    assert http.get("/v1/events", headers=binary).json()["events"] == [event], "pages stay as ever"
    headers = {n: v for n, v in answer.headers.items() if n.startswith("ce-")}
    headers["content-type"] = answer.headers["content-type"]
    moved = http.post("/v1/streams/order-2", content=answer.content, headers=headers)
    assert (moved.status_code, moved.json()["type"]) == (409, "id-reused"), "known by its identity"


def test_attributes_too_large_for_headers_go_out_in_structured_mode(http: httpx.Client) -> None:
    post(http, cloud_event(note="x" * 10_000))
    (event,) = stored(http)
    binary = {"accept": "application/json; cloudevents=binary"}
    answer = http.get(f"/v1/events/{event['id']}", headers=binary)
    assert answer.headers["content-type"] == EVENT
    assert answer.json()["note"] == "x" * 10_000


def test_types_may_be_in_any_case_and_have_weights(http: httpx.Client) -> None:
    assert post(http, cloud_event(), media="Application/CloudEvents+JSON").status_code == 201
    batch = [cloud_event(id="b-1")]
    assert post(http, batch, media="APPLICATION/CLOUDEVENTS-BATCH+JSON").status_code == 201
    path = f"/v1/events/{stored(http)[0]['id']}"
    for of, accept, given in (
        (path, EVENT.upper(), EVENT),
        (path, f"{EVENT};q=0, application/json", "application/json"),
        (path, f"{EVENT};q=0.4, application/json;q=0.5", "application/json"),
        (path, f"{EVENT};q=0.4, {BATCH};q=0.5", BATCH),
        (path, f"{BATCH};q=0.1, {EVENT}", EVENT),
        ("/v1/events", f"{EVENT}, application/json;q=0.5", BATCH),
        ("/v1/events", f"application/x-ndjson;q=0.5, {EVENT}", BATCH),
        ("/v1/events", f"application/x-ndjson, {EVENT};q=0.5", "application/x-ndjson"),
        ("/v1/events", "application/x-ndjson;q=0.5, */*", "application/json"),
    ):
        answer = http.get(of, headers={"accept": accept})
        assert answer.headers["content-type"].partition(";")[0] == given, (of, accept)
    # A list may stand on several lines.
    lines = [("accept", "application/json;q=0.5"), ("accept", EVENT)]
    assert http.get(path, headers=lines).headers["content-type"] == EVENT


@pytest.mark.parametrize("depth", [65, 300, 900])
def test_metadata_nest_no_deeper_than_a_body_may(refusing: httpx.Client, depth: int) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    answer = post(refusing, cloud_event(metadata=deep))
    assert (answer.status_code, answer.json()["type"]) == (422, "invalid-request")
    assert "nested deeper than 64" in answer.json()["detail"]


def test_lists_are_given_as_batches(http: httpx.Client) -> None:
    post(http, [cloud_event(id=str(n)) for n in range(3)], media=BATCH)
    answer = http.get("/v1/streams/order-1?limit=2", headers={"accept": BATCH})
    assert answer.headers["content-type"] == BATCH
    assert answer.headers["etag"] == '"2"'
    assert [event["version"] for event in answer.json()] == [0, 1]
    answer = http.get("/v1/events?limit=2", headers={"accept": BATCH})
    assert (answer.headers["penstock-head"], answer.headers["penstock-next-after"]) == ("3", "2")
    rest = http.get("/v1/events?after=2", headers={"accept": BATCH})
    assert [event["id"] for event in rest.json()] == ["2"]
    with http.stream("GET", "/v1/events/subscribe", headers={"accept": EVENT}) as feed:
        assert feed.headers["content-type"].startswith("text/event-stream")
        assert next(feed.iter_lines()) == ": penstock"
    missing = http.get("/v1/streams/order-2", headers={"accept": BATCH})
    assert (missing.status_code, missing.json()["type"]) == (404, "not-found")
    query = {"query": [{"types": ["placed"]}]}
    found = http.post("/v1/events/query", json=query, headers={"accept": BATCH})
    assert [event["id"] for event in found.json()] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        (cloud_event(specversion="0.3"), "$.specversion"),
        (cloud_event(id=""), "$.id"),
        (cloud_event(source=None), "$.source"),
        (cloud_event(type="com.example.cart.placed"), "$.type"),
        (cloud_event(type="order.no-type"), "not an event type"),
        (cloud_event(data=[1]), "$.data"),
        (cloud_event(data=None), "$.data"),
        (cloud_event(Region="eu"), "no attribute name"),
        (cloud_event(region={"a": 1}), "$.region"),
        (cloud_event(region=1.5), "$.region"),
        (cloud_event(tags=7), "$.tags"),
        (cloud_event(time="yesterday"), "occurred_at"),
        (cloud_event(metadata="[1]"), "$.metadata"),
        ([cloud_event()], "expected a CloudEvent"),
    ],
)
def test_what_is_no_cloud_event_is_refused_by_place(
    refusing: httpx.Client, document: object, complaint: str
) -> None:
    answer = post(refusing, document)
    assert (answer.status_code, answer.json()["type"]) == (422, "invalid-request")
    assert complaint in answer.json()["detail"]
    assert refusing.get("/v1/streams/order-1").status_code == 404


@pytest.mark.parametrize(
    ("document", "media"),
    [
        (cloud_event(), "application/cloudevents+avro"),
        (cloud_event(datacontenttype="text/xml"), EVENT),
        (cloud_event(data_base64="AAAA"), EVENT),
    ],
)
def test_other_formats_are_refused(refusing: httpx.Client, document: object, media: str) -> None:
    answer = post(refusing, document, media=media)
    assert (answer.status_code, answer.json()["type"]) == (415, "unsupported-media-type")


def test_metadata_of_others_cannot_forge_attributes(http: httpx.Client) -> None:
    forged = {"specversion": "9", "position": "7", "Bad Name": "x", "nested": {}, "region": "eu"}
    forged |= {"source": 5, "subject": ""}
    id_ = str(uuid.uuid4())
    event = {"id": id_, "type": "placed", "data": {}, "metadata": {"cloudevents": forged}}
    assert http.post("/v1/streams/order-1", json={"events": [event]}).status_code == 201
    back = given_back(http, f"/v1/events/{id_}")
    assert (back["specversion"], back["position"], back["region"]) == ("1.0", "1", "eu")
    assert (back["source"].startswith("/stores/"), back["subject"]) == (True, "order-1")
    assert not {"Bad Name", "nested"} & back.keys()
