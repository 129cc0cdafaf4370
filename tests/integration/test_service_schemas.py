"""Schemas: strict and inferred, and a registry that is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from kernel.errors import NotFound, Unavailable
from schemas.registry import MemoryRegistry, RegisteredSchema
from tests.support.services.http import service_in_thread
from tests.support.store.postgres import Cluster, database

PAID = {
    "type": "record",
    "name": "paid",
    "namespace": "order",
    "fields": [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {
            "name": "amount",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "ref", "type": {"type": "string", "logicalType": "uuid"}},
    ],
}
PAYMENT = {
    "at": "2013-01-01T05:15:00.5+01:00",
    "day": "2013-01-31",
    "amount": 12.3,
    "ref": "CF468130-867B-49FB-8318-A28DCF1834AB",
}


@pytest.fixture(scope="module")
def refusing(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    """One service for all that is refused: it never has a schema."""
    with database(postgres_cluster) as dsn, service_in_thread(dsn) as client:
        yield client
        assert client.get("/v1/schemas").json()["schemas"] == []


def post(http: httpx.Client, type_: str, data: object, stream: str = "order-1") -> httpx.Response:
    return http.post(f"/v1/streams/{stream}", json={"events": [{"type": type_, "data": data}]})


def add(http: httpx.Client, subject: str, schema: object, **query: Any) -> httpx.Response:
    return http.post("/v1/schemas", json={"subject": subject, "schema": schema}, params=query)


class AwayRegistry(MemoryRegistry):
    """A registry that can be switched off."""

    away = False

    def _check(self) -> None:
        if self.away:
            raise Unavailable("the registry is away")

    def schema(self, schema_id: int) -> str:
        self._check()
        return super().schema(schema_id)

    def register(self, subject: str, schema_json: str) -> int:
        self._check()
        return super().register(subject, schema_json)

    def latest(self, subject: str) -> RegisteredSchema | None:
        self._check()
        return super().latest(subject)


def test_strict_mode_refuses_an_unknown_type_with_the_command(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn, mode="strict") as http:
        refused = post(http, "paid", PAYMENT)
        assert refused.status_code == 422
        assert refused.json()["type"] == "unknown-type"
        assert "penstock schema add order.paid" in refused.json()["remedy"]
        assert add(http, "order.paid", PAID).status_code == 201
        assert post(http, "paid", PAYMENT).status_code == 201
        assert http.get("/v1/events").json()["head"] == 1


@pytest.mark.parametrize("mode", ["strict", "infer"])
def test_a_registered_schema_is_a_contract(postgres_dsn: str, mode: str) -> None:
    with service_in_thread(postgres_dsn, mode=mode) as http:
        assert add(http, "order.paid", json.dumps(PAID)).status_code == 201
        for data, path, complaint in (
            (PAYMENT | {"at": "yesterday"}, "$.at", "expected a time with an offset"),
            (PAYMENT | {"amount": "1.234"}, "$.amount", "does not fit decimal(9, 2)"),
            (PAYMENT | {"extra": 1}, "$.extra", "not a field of the schema"),
            ({"at": 0, "amount": 1}, "$.ref", "required, and missing"),
        ):
            refused = post(http, "paid", data)
            assert refused.status_code == 422, refused.text
            assert refused.json()["type"] == "schema-violation"
            assert refused.json()["path"] == path
            assert complaint in refused.json()["complaint"]
        assert http.get("/v1/events").json()["head"] == 0


def test_logical_types_come_back_as_texts(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn) as http:
        add(http, "order.paid", PAID)
        post(http, "paid", PAYMENT)
        (event,) = http.get("/v1/streams/order-1").json()["events"]
    assert event["data"] == {
        "at": "2013-01-01T04:15:00.500000Z",
        "day": "2013-01-31",
        "amount": "12.30",
        "ref": "cf468130-867b-49fb-8318-a28dcf1834ab",
    }


def test_schemas_only_change_compatibly(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn) as http:
        assert add(http, "order.paid", PAID).status_code == 201
        same = add(http, "order.paid", PAID)
        assert (same.status_code, same.json()["version"]) == (200, 1)
        new: dict[str, object] = {"name": "new", "type": "string"}
        wider = PAID | {"fields": [*PAID["fields"], new]}
        checked = add(http, "order.paid", wider, check=True).json()
        assert not checked["compatible"]
        assert "$.new: new field without a default" in checked["complaints"][0]
        refused = add(http, "order.paid", wider)
        assert (refused.status_code, refused.json()["type"]) == (409, "incompatible")
        new["default"] = ""
        assert add(http, "order.paid", wider).json()["version"] == 2
        assert len(http.get("/v1/schemas/order.paid").json()["versions"]) == 2
        listed = http.get("/v1/schemas").json()["schemas"]
        assert [(s["subject"], s["version"]) for s in listed] == [("order.paid", 2)]


@pytest.mark.parametrize(
    ("subject", "schema"),
    [
        ("order", PAID),
        ("Order.paid", PAID),
        ("order.paid", "no JSON"),
        ("order.paid", {"type": "string"}),
        ("order.paid", {"type": "record", "name": "x"}),
        ("order.paid", {"type": "record", "name": "x", "fields": [{"name": "a-b", "type": "int"}]}),
        ("order.paid", 7),
    ],
)
def test_what_is_no_schema_is_refused(refusing: httpx.Client, subject: str, schema: object) -> None:
    refused = add(refusing, subject, schema)
    assert refused.status_code == 422, refused.text
    assert refused.json()["type"] in ("invalid-request", "schema-violation")


class SharedRegistry(MemoryRegistry):
    """Has a schema of somebody else's, who writes no Avro."""

    def subjects(self) -> tuple[str, ...]:
        return (*super().subjects(), "acme.Order", "acme.Lost")

    def latest(self, subject: str) -> RegisteredSchema | None:
        if subject == "acme.Lost":
            raise NotFound("no version 1 of acme.Gone, to which a schema refers")
        if subject != "acme.Order":
            return super().latest(subject)
        return RegisteredSchema(subject=subject, id=999, version=1, schema="message Order {}")


def test_schemas_of_others_are_no_event_types(postgres_dsn: str) -> None:
    registry = SharedRegistry()
    registry.register("acme.Colour", '{"type": "enum", "name": "Colour", "symbols": ["red"]}')
    with service_in_thread(postgres_dsn, registry=registry) as http:
        body = {"events": [{"type": "placed", "data": {}}]}
        assert http.post("/v1/streams/order-1", json=body).status_code == 201
        listed = http.get("/v1/schemas")
        assert listed.status_code == 200, listed.text
        assert [each["subject"] for each in listed.json()["schemas"]] == ["order.placed"]


def test_concurrent_inference_loses_no_field(postgres_dsn: str) -> None:
    """Two services over one store meet twenty shapes of one type at once."""
    registry = MemoryRegistry()
    shapes = [{"id": n, f"field_{n % 20}": n} for n in range(40)]
    with service_in_thread(postgres_dsn, registry=registry) as http:

        def send(data: dict[str, int]) -> int:
            return post(http, "shaped", data, stream=f"order-{data['id']}").status_code

        with ThreadPoolExecutor(16) as pool:
            assert set(pool.map(send, shapes)) == {201}
        events = http.get("/v1/events").json()["events"]
    latest = registry.latest("order.shaped")
    assert latest is not None
    names = {field["name"] for field in json.loads(latest.schema)["fields"]}
    assert names == {"id", *(f"field_{n}" for n in range(20))}
    kept = [{key: value for key, value in e["data"].items() if value is not None} for e in events]
    assert sorted(kept, key=lambda data: data["id"]) == shapes


def test_known_types_need_no_registry(postgres_dsn: str) -> None:
    registry = AwayRegistry()
    with service_in_thread(postgres_dsn, registry=registry) as http:
        assert post(http, "placed", {"total": 1}).status_code == 201
    registry.away = True
    with service_in_thread(postgres_dsn, registry=registry) as http:
        assert post(http, "placed", {"total": 2}).status_code == 201
        events = http.get("/v1/streams/order-1").json()["events"]
        assert [event["data"] for event in events] == [{"total": 1}, {"total": 2}]
        new_type = post(http, "unheard_of", {"total": 2})
        assert (new_type.status_code, new_type.json()["type"]) == (503, "unavailable")
        registry.away = False
        assert post(http, "unheard_of", {"total": 2}).status_code == 201


def test_inference_refuses_what_has_no_compatible_schema(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn) as http:
        assert post(http, "placed", {"total": 1, "by": {"name": "x"}}).status_code == 201
        for data, path in (
            ({"total": "one"}, "$.total"),
            ({"total": 1, "by": "x"}, "$.by"),
            ({"total": 1, "not a name": 1}, "$.not a name"),
            ({"total": 1, "Total": 1}, "$.Total"),
        ):
            refused = post(http, "placed", data)
            assert (refused.status_code, refused.json()["path"]) == (422, path)
        assert http.get("/v1/events").json()["head"] == 1
