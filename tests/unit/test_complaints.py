"""Mistakes in JSON and in schemas are told in the words of JSON: nobody sent us Python."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from pydantic import ValidationError

from kernel.errors import InvalidRequest, SchemaViolation
from schemas.compatibility import parse
from schemas.complaints import complaint_of
from schemas.json_values import shown
from service.bodies import moment_of
from service.lifecycle_routes import PolicyBody
from service.schema_routes import SchemaBody
from service.subscription_bodies import AckBody, SubscriptionBody

PYTHON = re.compile(r"\bNone\b|\bTrue\b|NoneType|Decimal\(|dict|instance of|constrained|subscript")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ([None, {"a": True}], '[null, {"a": true}]'),
        (Decimal("1" + 30 * "0"), "1" + 30 * "0"),
        ("it's\n", '"it\'s\\n"'),
        ("x" * 300, f"'{'x' * 100}…'"),
        (["x" * 300], '["' + "x" * 98 + "…"),
    ],
)
def test_a_value_is_shown_as_it_was_sent_up_to_a_length(value: object, text: str) -> None:
    assert shown(value) == text


@pytest.mark.parametrize(
    ("model", "document", "told"),
    [
        (SubscriptionBody, None, "$: expected an object"),
        (SubscriptionBody, {"filter": 1}, "$.filter: expected an object"),
        (SubscriptionBody, {"start": None}, "$.start: expected a whole number, or expected 'end'"),
        (SubscriptionBody, {"start": -1}, "$.start: must be at least 0, or expected 'end'"),
        (SubscriptionBody, {"a b": 1}, "$.a b: there is no such field"),
        (AckBody, {"ids": [None]}, "$.ids[0]: expected a UUID"),
        (AckBody, {}, "$.ids: required, and missing"),
        (PolicyBody, {"max_count": 0}, "$.max_count: must be greater than 0"),
        (
            SchemaBody,
            {"subject": "a.b", "schema": True},
            "$.schema: expected an object, or expected a text",
        ),
    ],
)
def test_what_is_wrong_with_a_body_is_told_with_its_place(
    model: type[SubscriptionBody], document: object, told: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(document)
    assert complaint_of(refused.value.errors(), "$") == told


@pytest.mark.parametrize(
    "text",
    [
        *("null", "7", "[null]", "[7]", "{}", '"nosuch"', '{"type": null}', "[true]"),
        '{"type": "array", "items": 7}',
        '{"type": "record", "name": "a b", "fields": []}',
        '{"type": "record", "name": null, "fields": []}',
        '{"type": "record", "name": "r", "namespace": "a b", "fields": []}',
        '{"type": "record", "name": "r", "fields": [7]}',
        '{"type": "record", "name": "r", "fields": [{"type": "int"}]}',
        '{"type": "record", "name": "r", "fields": [{"name": "a", "type": null}]}',
        '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"},'
        ' {"name": "a", "type": "int"}]}',
    ],
)
def test_what_is_no_schema_is_told_so(text: str) -> None:
    with pytest.raises(SchemaViolation) as refused:
        parse(text)
    assert not PYTHON.search(refused.value.message), refused.value.message


@pytest.mark.parametrize("at", [5, 1.5, True, ["2013-01-01T05:15:00Z"], {}, "z", "2013-01-01"])
def test_what_is_no_time_is_told_whatever_it_is(at: object) -> None:
    with pytest.raises(InvalidRequest, match="no time with an offset") as refused:
        moment_of(at, "$.events[0].occurred_at")
    assert refused.value.message.startswith("$.events[0].occurred_at: ")
