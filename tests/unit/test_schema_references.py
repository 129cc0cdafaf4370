"""A schema that refers to types of other subjects is read whole."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import fastavro
import httpx
import pytest

from kernel.errors import NotFound, SchemaViolation
from schemas import registry
from schemas.columns import decode_rows
from schemas.registry import ConfluentRegistry
from schemas.wire import frame

URL = "http://registry.test"
KIND = {"type": "enum", "name": "Kind", "namespace": "acme", "symbols": ["HOME", "WORK"]}
PLACE = {
    "type": "record",
    "name": "Place",
    "namespace": "acme.geo",
    "fields": [{"name": "city", "type": "string"}, {"name": "kind", "type": "acme.Kind"}],
}
PERSON = {
    "type": "record",
    "name": "Person",
    "namespace": "acme",
    "fields": [
        {"name": "lives", "type": "acme.geo.Place"},
        {"name": "works", "type": ["null", "acme.geo.Place"], "default": None},
        {"name": "kinds", "type": {"type": "array", "items": "Kind"}},
    ],
}
KEPT: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "kind": (KIND, []),
    "place": (PLACE, [{"name": "acme.Kind", "subject": "kind", "version": 1}]),
    "person": (
        PERSON,
        [
            {"name": "acme.geo.Place", "subject": "place", "version": 1},
            {"name": "acme.Kind", "subject": "kind", "version": 1},
        ],
    ),
    "lost": (PERSON, [{"name": "x", "subject": "nowhere", "version": 3}]),
}
IDS = {str(number): subject for number, subject in enumerate(KEPT, 1)}


def answered(request: httpx.Request) -> httpx.Response:
    *_, kind, last = re.sub(r"/versions/\w+$", "", request.url.path).split("/")
    subject = IDS[last] if kind == "ids" else last
    if subject not in KEPT:
        return httpx.Response(404)
    schema, references = KEPT[subject]
    told = {"subject": subject, "version": 1, "id": [*KEPT].index(subject) + 1}
    return httpx.Response(
        200, json={**told, "schema": json.dumps(schema), "references": references}
    )


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> ConfluentRegistry:
    client = httpx.Client(base_url=URL, transport=httpx.MockTransport(answered))
    monkeypatch.setattr(registry, "_CLIENTS", {URL: client})
    monkeypatch.setattr(registry, "_SCHEMAS", {})
    monkeypatch.setattr(registry, "_FOREIGN", {})
    return ConfluentRegistry(URL)


def test_types_of_other_subjects_are_defined_where_they_are_named_first(
    kept: ConfluentRegistry,
) -> None:
    text = kept.schema(3)
    assert text.count('"symbols"') == text.count('"city"') == 1
    home, work = {"city": "Ulm", "kind": "HOME"}, {"city": "Bonn", "kind": "WORK"}
    row = {"lives": home, "works": work, "kinds": ["WORK"]}
    written = io.BytesIO()
    named: dict[str, Any] = {}
    for each in (KIND, PLACE):
        fastavro.parse_schema(each, named)
    fastavro.schemaless_writer(written, fastavro.parse_schema(PERSON, named), row)
    found = decode_rows([frame(3, written.getvalue())], text, "event").to_pylist()
    assert [{name: each[name] for name in row} for each in found] == [row]
    newest = kept.latest("person")
    assert newest is not None
    assert newest.schema == text


def test_a_schema_without_references_stays_as_it_is(kept: ConfluentRegistry) -> None:
    assert kept.schema(1) == json.dumps(KIND)


def test_a_reference_that_leads_nowhere_is_said(kept: ConfluentRegistry) -> None:
    with pytest.raises(NotFound, match="no version 3 of nowhere"):
        kept.schema(4)


def test_a_schema_of_another_language_is_named(kept: ConfluentRegistry) -> None:
    for language, read in (("PROTOBUF", "PROTOBUF is not read"), ("JSON", "format = 'json'")):
        told = httpx.Response(200, json={"schema": "", "schemaType": language})
        answer = httpx.MockTransport(lambda _, told=told: told)
        registry._CLIENTS[URL] = httpx.Client(base_url=URL, transport=answer)
        registry._FOREIGN.clear()
        for _ in range(2):
            with pytest.raises(SchemaViolation, match=f"of {language}, not Avro.*{read}"):
                kept.schema(9)


def test_the_newest_of_another_language_is_shown_and_never_taken_for_avro(
    kept: ConfluentRegistry,
) -> None:
    text = 'import "nowhere.proto"; message Order {}'
    told = {"subject": "acme.Order", "version": 1, "id": 9, "schemaType": "PROTOBUF"}
    told |= {"schema": text, "references": [{"name": "n", "subject": "nowhere", "version": 1}]}

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404 if "nowhere" in request.url.path else 200, json=told)

    registry._CLIENTS[URL] = httpx.Client(base_url=URL, transport=httpx.MockTransport(answer))
    newest = kept.latest("acme.Order")
    assert newest is not None
    assert newest.schema == text
    with pytest.raises(SchemaViolation, match="of PROTOBUF, not Avro"):
        kept.schema(9)
