"""How a schema may change: the levels of compatibility, over HTTP, and reading across a break."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from schemas.registry import MemoryRegistry
from tests.support.services.http import service_in_thread

LINES = {"accept": "application/x-ndjson"}

DECIDER = """
from eventstore.deciders import Command, Decider, Event


def decide(command: Command, state: dict) -> list[Event]:
    return []


def evolve(state: dict, event: Event) -> dict:
    return {"grams": state.get("grams", 0) + event.data["grams"]}


parcels = Decider(
    category="parcel", version=1, commands={"nothing": None}, initial_state={},
    decide=decide, evolve=evolve,
)
"""
UPCASTER = """
from eventstore.upcasting import Upcaster

kilos = Upcaster(
    event="parcel.weighed", version=1, upcast=lambda data: {"grams": data["kilos"] * 1000}
)
"""


def schema(*fields: str, **defaults: int) -> dict[str, Any]:
    made: list[dict[str, Any]] = [{"name": name, "type": "long"} for name in fields]
    made += [{"name": name, "type": "long", "default": value} for name, value in defaults.items()]
    return {"type": "record", "name": "weighed", "fields": made}


def add(http: httpx.Client, body: dict[str, Any], **more: object) -> httpx.Response:
    document = {"subject": "parcel.weighed", "schema": body, **more}
    return http.post("/v1/schemas", json=document)


def level(http: httpx.Client) -> str:
    return str(http.get("/v1/schemas/parcel.weighed").json()["compatibility"])


def test_the_level_decides_what_may_follow(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn, mode="strict") as http:
        assert add(http, schema("kilos")).status_code == 201
        assert level(http) == "BACKWARD_TRANSITIVE"
        refused = add(http, schema("grams"))
        assert refused.json()["complaints"] == ["version 1: $.grams: new field without a default"]
        path = "/v1/schemas/parcel.weighed/compatibility"
        assert http.put(path, json={"level": "FORWARD"}).status_code == 200
        # A reader of kilos alone would not find them.
        refused = add(http, schema(grams=0))
        assert refused.json()["complaints"] == [
            "read with version 1: $.kilos: new field without a default"
        ]
        assert add(http, schema("kilos", "grams")).status_code == 201
        refused = add(http, schema("kilos", "grams", "tons"), compatibility="FULL")
        assert refused.status_code == 409
        assert level(http) == "FORWARD", "a refused schema changes no level"
        assert add(http, schema("tons"), compatibility="NONE").status_code == 201
        assert level(http) == "NONE"
        for wrong in ({"level": "SOME"}, {}, {"level": "NONE", "more": 1}):
            assert http.put(path, json=wrong).status_code == 422


def test_an_upcaster_reads_across_a_break(postgres_dsn: str, tmp_path: Path) -> None:
    for folder, text in (("deciders", DECIDER), ("upcasters", UPCASTER)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "parcels.py").write_text(text)
    registry = MemoryRegistry()

    def append(http: httpx.Client, **data: int) -> httpx.Response:
        events = [{"type": "weighed", "data": data}]
        return http.post("/v1/streams/parcel-1", json={"events": events})

    with service_in_thread(
        postgres_dsn, registry=registry, mode="strict", workspace=tmp_path
    ) as http:
        add(http, schema("kilos"))
        assert append(http, kilos=2).status_code == 201
        # The code is ahead of the schema: it makes version 2 of what is version 1.
        assert http.get("/v1/entities/parcel/1").json()["state"] == {"grams": 2000}
        assert add(http, schema("grams"), compatibility="NONE").status_code == 201
        assert append(http, grams=30).status_code == 201
        assert http.get("/v1/entities/parcel/1").json()["state"] == {"grams": 2030}
        for query, data in (
            ({}, [{"kilos": 2}, {"grams": 30}]),
            ({"upcast": "true"}, [{"grams": 2000}, {"grams": 30}]),
        ):
            events = http.get("/v1/streams/parcel-1", params=query).json()["events"]
            assert [event["data"] for event in events] == data
            one = http.get(f"/v1/events/{events[0]['id']}", params=query).json()
            assert one == events[0]
            for path in ("/v1/events", "/v1/streams/parcel-1"):
                assert http.get(path, params=query).json()["events"] == events
                lines = http.get(path, params=query, headers=LINES).text.splitlines()
                assert [json.loads(line) for line in lines] == events
            asked = {"query": [{"types": ["weighed"]}]}
            assert (
                http.post("/v1/events/query", params=query, json=asked).json()["events"] == events
            )
            with http.stream("GET", "/v1/events/subscribe", params=query, headers=LINES) as feed:
                lines = feed.iter_lines()
                assert [json.loads(next(lines)) for _ in events] == events
        back = {"upcast": "true", "direction": "backward", "limit": 1}
        (last,) = http.get("/v1/streams/parcel-1", params=back, headers=LINES).text.splitlines()
        assert json.loads(last)["data"] == {"grams": 30}
