"""The OpenAPI document is complete, and the service keeps to it whatever it is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as rules

from service.openapi import ANSWERS
from tests.support.services.http import service_in_thread
from tests.support.services.tier import examples

ENDLESS = {
    ("GET", "/v1/events/subscribe"),
    ("GET", "/v1/projections/{projection}/changes"),
}
KEPT = [
    checks.not_a_server_error,
    rules.status_code_conformance,
    rules.content_type_conformance,
    rules.response_headers_conformance,
    rules.response_schema_conformance,
    rules.negative_data_rejection,
]
EXAMPLES = examples(3, matrix=12)


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn) as client:
        body = {"events": [{"type": "placed", "data": {"total": 1}, "tags": ["customer:7"]}]}
        assert client.post("/v1/streams/order-1042", json=body).status_code == 201
        assert client.put("/v1/subscriptions/g", json={"start": 0}).status_code == 201
        yield client


def operations(http: httpx.Client) -> dict[str, Any]:
    return {
        f"{method} {path}": operation
        for path, methods in http.get("/openapi.json").json()["paths"].items()
        for method, operation in methods.items()
    }


def test_every_operation_says_what_it_answers(http: httpx.Client) -> None:
    found = operations(http)
    assert found.keys() == ANSWERS.keys()
    for name, operation in found.items():
        assert operation["summary"], name
        assert operation["tags"], name
        for status, answer in operation["responses"].items():
            assert answer["description"], (name, status)
            assert "content" in answer or status == "204", (name, status)
        if name.split()[0] in ("post", "put") and "replay" not in name:
            assert operation["requestBody"]["content"], name


def test_references_lead_to_components(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()

    def references(value: Any) -> Iterator[str]:
        match value:
            case dict():
                for key, inner in value.items():
                    yield from [inner] if key == "$ref" else references(inner)
            case list():
                for inner in value:
                    yield from references(inner)
            case _:
                return

    for reference in references(document):
        at: Any = document
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]
        assert at


def test_the_service_keeps_to_its_document(http: httpx.Client) -> None:
    """Generated requests, good and bad, to every operation: answers are as the document says."""
    api = schemathesis.openapi.from_url(f"{http.base_url}/openapi.json")
    tried, broken = set(), []
    for found in api.get_all_operations():
        operation = found.ok()
        name = (operation.method.upper(), operation.path)
        if name in ENDLESS:
            continue
        for mode in schemathesis.GenerationMode:
            # What takes nothing cannot be given anything wrong.
            if mode is schemathesis.GenerationMode.NEGATIVE and not _takes_something(operation):
                continue
            try:
                _try(operation, mode)
            except (schemathesis.errors.SchemathesisError, BaseExceptionGroup, Exception) as error:
                broken.append(f"{' '.join(name)}, {mode.value} data: {_said(error)}")
        tried.add(name)
    assert not broken, "\n\n".join(broken)
    assert len(tried) == len(operations(http)) - len(ENDLESS)


def _takes_something(operation: Any) -> bool:
    places = (operation.path_parameters, operation.query, operation.headers, operation.body)
    return any(len(place) for place in places)


def _said(error: BaseException) -> str:
    inner = getattr(error, "exceptions", ())
    return " / ".join(map(_said, inner)) if inner else f"{type(error).__name__}: {error}"


def _try(operation: Any, mode: schemathesis.GenerationMode) -> None:
    @settings(
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        if "wait" in (case.query or {}):
            case.query["wait"] = 0
        case.call_and_validate(checks=KEPT, timeout=20)

    run()
