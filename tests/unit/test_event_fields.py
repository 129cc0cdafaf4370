"""The registry is asked for what may have changed, and not for all of it all the time."""

from __future__ import annotations

import json

import pytest

from kernel.errors import NotFound, PenstockError, SchemaViolation
from projections.run import event_fields
from projections.run.event_fields import EventFields
from schemas.registry import MemoryRegistry, RegisteredSchema


class Counting(MemoryRegistry):
    """Notes what was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def latest(self, subject: str) -> RegisteredSchema | None:
        self.asked.append(subject)
        return super().latest(subject)


def schema(*fields: str) -> str:
    named = [{"name": name, "type": "long", "default": 0} for name in fields]
    return json.dumps({"type": "record", "name": "Data", "fields": named})


def test_a_new_subject_is_asked_at_once_and_a_known_one_in_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_fields, "LOOK_S", 0.0)
    monkeypatch.setattr(event_fields, "FEW", 1)
    registry = Counting()
    for number in range(12):
        registry.register(f"order.type{number:02}", schema("a"))
        registry.register(f"shop.public.t{number}-value", schema("a"))
    fields = EventFields(registry)
    assert len(fields.columns()) == 12
    assert len(registry.asked) == 12
    registry.asked.clear()
    fields.columns()
    assert registry.asked == ["order.type00", "order.type01"]
    registry.register("order.new", schema("a"))
    registry.register("order.type11", schema("a", "b"))
    registry.asked.clear()
    assert fields.columns()["order.new"].names == ["a"]
    assert registry.asked == ["order.new", "order.type02", "order.type03"]
    for _ in range(event_fields.ROUND_LOOKS):
        found = fields.columns()
    assert found["order.type11"].names == ["a", "b"]


@pytest.mark.parametrize("error", [NotFound("version 1 of a.b"), SchemaViolation("not Avro")])
def test_a_subject_of_others_that_cannot_be_read_hides_no_event_type(error: PenstockError) -> None:
    class Shared(Counting):
        def latest(self, subject: str) -> RegisteredSchema | None:
            found = super().latest(subject)
            if subject == "com.other":
                raise error
            return found

    registry = Shared()
    for subject in ("com.other", "order.placed"):
        registry.register(subject, schema("a"))
    assert [*EventFields(registry).columns()] == ["order.placed"]
