"""A registry that was lost gets its schemas back under the ids by which records name them."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from eventstore.codecs import Codecs
from eventstore.intake import Intake
from kernel.errors import Conflict, Incompatible, InvalidRequest, Misconfigured
from schemas.compatibility import is_same
from schemas.records import NewEvent
from schemas.registry import MemoryRegistry
from schemas.registry_refill import MOST_LOST, agreed, refill
from tests.support.store.memory import MemorySchemaCache


def record(name: str) -> str:
    fields = [{"name": "a", "type": "long"}]
    return json.dumps({"type": "record", "name": name, "fields": fields})


def event(type_: str, data: dict[str, object]) -> NewEvent:
    return NewEvent(id=uuid4(), type=type_, data=data, metadata={}, tags=(), occurred_at=None)


SCHEMAS = {2: record("placed"), 3: record("placed_again"), 5: record("row")}
SUBJECTS = {"order.placed": [2, 3], "order.moved": [3]}


def test_each_schema_has_its_id_and_its_names_again() -> None:
    registry = MemoryRegistry()
    done = refill(registry, SCHEMAS, SUBJECTS)
    assert (done.schemas, done.subjects, done.lost) == (3, 2, 2)
    assert {number: registry.schema(number) for number in SCHEMAS} == SCHEMAS
    assert [each.id for each in registry.versions("order.placed")] == [2, 3]
    assert [each.id for each in registry.versions("order.moved")] == [3]
    assert registry.register("shop.public.orders-value", SCHEMAS[5]) == 5, "its producer's own name"
    assert registry.register("new.type", record("new")) == 6


def test_what_was_interrupted_is_gone_on_with_by_the_same_call() -> None:
    registry = MemoryRegistry()
    refill(registry, {2: SCHEMAS[2]}, {"order.placed": [2]})
    refill(registry, SCHEMAS, SUBJECTS)
    assert refill(registry, SCHEMAS, SUBJECTS).schemas == 3
    assert [each.id for each in registry.versions("order.placed")] == [2, 3]


def test_a_registry_that_gives_other_ids_is_refused() -> None:
    registry = MemoryRegistry()
    registry.register("of.another", record("other"))
    with pytest.raises(Conflict, match="it is not empty"):
        refill(registry, SCHEMAS, SUBJECTS)


def test_what_lake_and_store_know_by_other_schemas_is_refused() -> None:
    """Whichever a registry got, the records of the other one would be read by it."""
    spelled = json.dumps(json.loads(SCHEMAS[2]), indent=1)
    assert agreed({2: SCHEMAS[2], 5: SCHEMAS[5]}, {2: spelled, 3: SCHEMAS[3]}) == {
        2: spelled,
        3: SCHEMAS[3],
        5: SCHEMAS[5],
    }
    with pytest.raises(Incompatible, match=r"under the ids 2, 3 \(placed and row\)") as refused:
        agreed(SCHEMAS, {2: SCHEMAS[5], 3: SCHEMAS[2]})
    assert "penstock store verify" in refused.value.remedy
    with pytest.raises(Incompatible, match=r"under the id 5 \(row and placed\)"):
        agreed(SCHEMAS, SCHEMAS | {5: SCHEMAS[2]})


def test_what_a_registry_has_respelled_is_one_schema_of_lake_and_store() -> None:
    """The lake notes the registry's text, the store keeps that of whoever added it."""
    field = {"name": "a", "type": {"type": "long"}, "doc": "how many"}
    own = {"doc": "An order.", "type": "record", "name": "placed", "fields": [field]}
    assert agreed(SCHEMAS, {2: json.dumps(own)})[2] == json.dumps(own)
    no_schema = json.dumps({**own, "fields": [{"name": "a"}]})
    with pytest.raises(Incompatible, match=r"under the id 2 \(placed and placed\)"):
        agreed(SCHEMAS, {2: no_schema})


@pytest.mark.parametrize("number", [0, MOST_LOST + 2])
def test_ids_that_no_registry_counts_to_are_refused(number: int) -> None:
    registry = MemoryRegistry()
    with pytest.raises(InvalidRequest, match="no registry that counts"):
        refill(registry, {number: record("far")}, {})
    assert registry.subjects() == ()


def test_no_event_is_written_by_a_schema_that_the_store_knows_as_another_one() -> None:
    """The registry was lost, and another one counts from 1 again."""

    async def encoded() -> Misconfigured:
        cache = MemorySchemaCache()
        first = Intake(MemoryRegistry(), cache, "infer", Codecs())
        await first.encode("order", [event("placed", {"a": 1})])
        second = Intake(MemoryRegistry(), cache, "infer", Codecs())
        await second.load()
        await second.encode("order", [event("placed", {"a": 2})])
        with pytest.raises(Misconfigured, match="under id 1, and the store has another") as told:
            await second.encode("parcel", [event("sent", {"b": "x"})])
        assert (await cache.load()).subjects == {"order.placed": 1}
        return told.value

    assert "penstock store restore-registry" in asyncio.run(encoded()).remedy


class _OneIdPerShape(MemoryRegistry):
    """A registry that looks for a schema by its canonical form, as registries may."""

    def register(self, subject: str, schema_json: str) -> int:
        known = (text for text in self._schemas.values() if is_same(text, schema_json))
        return super().register(subject, next(known, schema_json))


def test_documentation_of_a_type_is_no_other_schema() -> None:
    fields: list[dict[str, object]] = [
        {"name": "a", "type": "long", "doc": "how many", "default": 0}
    ]
    own = {"type": "record", "name": "Placed", "namespace": "shop", "fields": fields}
    respelled = {"default": 0, "type": {"type": "long"}, "name": "a"}
    more = {"doc": "An order.", "fields": [respelled], "type": "record", "name": "shop.Placed"}
    other = {**own, "fields": [{"name": "a", "type": "long", "default": 1}]}

    async def tried() -> None:
        registry, cache = _OneIdPerShape(), MemorySchemaCache()
        intake = Intake(registry, cache, "strict", Codecs())
        first, new = await intake.add("order.placed", json.dumps(own))
        assert new
        again, new = await intake.add("order.placed", json.dumps(more, indent=2))
        assert (again.id, new) == (first.id, False)
        (told,) = await intake.encode("order", [event("placed", {})])
        assert told.schema_id == first.id
        assert (await intake.add("order.placed", json.dumps(other)))[1], "its default is written"

    asyncio.run(tried())
