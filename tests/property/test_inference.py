"""Whatever JSON comes in whatever order: inferred schemas fit it, and stay able to read it all."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.errors import SchemaViolation
from schemas.compatibility import complaints
from schemas.inference import widened
from schemas.json_codec import JsonCodec
from tests.support.oracles.json_values import json_objects
from tests.support.services.tier import examples

OBJECTS = json_objects("a", "b", "c", "d")


def without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: without_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [without_nulls(item) for item in value]
        case _:
            return value


@settings(max_examples=examples(30, matrix=100))
@given(st.lists(OBJECTS, min_size=1, max_size=6))
def test_every_accepted_object_is_read_back_by_every_later_schema(
    objects: list[dict[str, Any]],
) -> None:
    schema: str | None = None
    history: list[str] = []
    for data in objects:
        try:
            wider = widened("order.Placed", schema, data)
            codec = JsonCodec(wider)
            encoded = codec.encode(data)
        except SchemaViolation:
            # A type that changes its kind is refused, and so is a whole number that would lose
            # digits among fractions; the schema stays.
            continue
        for earlier in history:
            assert complaints(reader=wider, writer=earlier) == []
        assert codec.inferred
        assert without_nulls(codec.decode(encoded)) == without_nulls(data)
        # What fits needs no further widening.
        assert widened("order.Placed", wider, data) == wider
        schema = wider
        history.append(wider)


@given(st.lists(OBJECTS, min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_the_schema_names_the_same_fields_in_any_order(
    objects: list[dict[str, Any]], random: Any
) -> None:
    def fields(ordered: list[dict[str, Any]]) -> set[str] | None:
        schema: str | None = None
        for data in ordered:
            try:
                schema = widened("order.Placed", schema, data)
            except SchemaViolation:
                return None
        assert schema is not None
        return {field["name"] for field in _fields(schema)}

    shuffled = objects[:]
    random.shuffle(shuffled)
    assert fields(objects) == fields(shuffled)


def _fields(schema: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(schema)["fields"]
    return found
