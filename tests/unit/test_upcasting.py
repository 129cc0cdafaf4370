"""Old events in the newest shape: steps of Avro and of upcasters, in any mix."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pytest

from eventstore.upcasting import MemoryVersions, Upcaster, Upcasting
from kernel.errors import DeciderFailed, Incompatible, Misconfigured, NotFound, Unavailable
from kernel.positions import Position, Version
from schemas.json_codec import JsonCodec
from schemas.records import FORMAT_SEALED, RecordedEvent
from schemas.registry import MemoryRegistry, RegisteredSchema
from schemas.wire import frame
from tests.support.store.deciding import schema

AT = datetime(2013, 1, 1, tzinfo=UTC)
Data = dict[str, Any]


def event(registry: MemoryRegistry, version: int, **data: int) -> RecordedEvent:
    """An event as it was stored when `version` was the newest."""
    registered = registry.versions("counter.added")[version - 1]
    return RecordedEvent(
        store_id="s",
        position=Position(1),
        id=uuid.uuid4(),
        stream="counter-1",
        version=Version(0),
        category="counter",
        type="added",
        schema_id=registered.id,
        data_format=0,
        data=frame(registered.id, JsonCodec(registered.schema).encode(data)),
        subject=None,
        key_id=None,
        metadata={},
        tags=(),
        occurred_at=AT,
        recorded_at=AT,
    )


def released(*schemas: str) -> MemoryRegistry:
    registry = MemoryRegistry()
    for text in schemas:
        registry.register("counter.added", text)
    return registry


def read(registry: MemoryRegistry, recorded: RecordedEvent, *upcasters: Upcaster) -> Data:
    upcasting = Upcasting(upcasters, registry, MemoryVersions())
    asyncio.run(upcasting.learn([recorded]))
    return upcasting.data(recorded)


def step(version: int, **change: int | None) -> Upcaster:
    """An upcaster that sets fields, and removes those that are None."""

    def upcast(data: Data) -> Data:
        kept = {name: value for name, value in data.items() if name not in change}
        return kept | {name: value for name, value in change.items() if value is not None}

    return Upcaster(event="counter.added", version=version, upcast=upcast)


def test_avro_alone_fills_in_defaults() -> None:
    registry = released(schema(a=...), schema(a=..., b=2), schema(a=..., b=2, c=3))
    assert read(registry, event(registry, 1, a=1)) == {"a": 1, "b": 2, "c": 3}
    assert read(registry, event(registry, 2, a=1, b=5)) == {"a": 1, "b": 5, "c": 3}


def test_steps_of_both_kinds_follow_each_other() -> None:
    texts = (schema(a=...), schema(a=..., b=2), schema(x=...), schema(x=..., y=7), schema(z=...))
    registry = released(*texts)
    to_x = Upcaster(
        event="counter.added", version=2, upcast=lambda data: {"x": data["a"] * 10 + data["b"]}
    )
    to_z = Upcaster(
        event="counter.added", version=4, upcast=lambda data: {"z": data["x"] * 10 + data["y"]}
    )
    for version, data, newest in (
        (1, {"a": 1}, 127),
        (2, {"a": 1, "b": 3}, 137),
        (3, {"x": 5}, 57),
        (4, {"x": 5, "y": 6}, 56),
        (5, {"z": 9}, 9),
    ):
        recorded = event(registry, version, **data)
        assert read(registry, recorded, to_z, to_x) == {"z": newest}, version


def test_one_upcaster_after_another() -> None:
    registry = released(schema(a=...), schema(b=...), schema(c=...))
    steps = (step(1, a=None, b=2), step(2, b=None, c=3))
    assert read(registry, event(registry, 1, a=1), *steps) == {"c": 3}
    assert read(registry, event(registry, 2, b=1), *steps) == {"c": 3}


def test_code_may_be_ahead_of_the_registry() -> None:
    registry = released(schema(a=...))
    steps = (step(1, a=None, b=2), step(2, c=3))
    assert read(registry, event(registry, 1, a=1), *steps) == {"b": 2, "c": 3}


class Kind(StrEnum):
    DONE = "done"


def test_what_no_schema_checks_is_made_plain_or_told() -> None:
    """The code is ahead of the registry, and the service has no classes of the code."""
    registry = released(schema(a=...))
    kind, odd = (
        Upcaster(event="counter.added", version=1, upcast=lambda _, given=given: {"b": given})
        for given in (Kind.DONE, object())
    )
    found = read(registry, event(registry, 1, a=1), kind)["b"]
    assert (type(found), found) == (str, "done")
    with pytest.raises(DeciderFailed, match=r"test_upcasting.py:\d+: .*returned no JSON.*object"):
        read(registry, event(registry, 1, a=1), odd)


def test_a_break_without_an_upcaster_says_where_one_is_missing() -> None:
    registry = released(schema(a=...), schema(b=...))
    with pytest.raises(Incompatible, match="version 1 cannot be read as version 2") as broken:
        read(registry, event(registry, 1, a=1))
    assert "upcaster" in broken.value.remedy


def failing(data: Data) -> Data:
    raise ValueError("no")


def answering_a_list(data: Data) -> Any:
    return [data]


def answering_what_misfits(data: Data) -> Data:
    return {"b": "two"}


@pytest.mark.parametrize(
    ("upcast", "told"),
    [
        (failing, "raised ValueError: no"),
        (answering_a_list, "returned list"),
        (answering_what_misfits, r"what is not version 2: \$.b"),
    ],
)
def test_an_upcaster_that_fails_is_named(upcast: Any, told: str) -> None:
    registry = released(schema(a=...), schema(b=...))
    upcaster = Upcaster(event="counter.added", version=1, upcast=upcast)
    with pytest.raises(DeciderFailed, match=told) as failed:
        read(registry, event(registry, 1, a=1), upcaster)
    code = upcast.__code__
    assert failed.value.message.startswith(f"{__file__}:{code.co_firstlineno}: ")


def test_two_upcasters_from_one_version_are_a_mistake() -> None:
    for steps in ((step(1), step(1)), (step(0),)):
        with pytest.raises(Misconfigured):
            Upcasting(steps, MemoryRegistry(), MemoryVersions())


class Away(MemoryRegistry):
    """A registry that nobody reaches."""

    def versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        raise Unavailable("away")


def test_known_versions_need_no_registry() -> None:
    registry, kept = released(schema(a=...)), MemoryVersions()
    recorded = event(registry, 1, a=1)
    asyncio.run(Upcasting((), registry, kept).learn([recorded]))
    later = Upcasting((), Away(), kept)
    asyncio.run(later.learn([recorded]))
    assert later.data(recorded) == {"a": 1}
    with pytest.raises(Unavailable):
        asyncio.run(Upcasting((), Away(), MemoryVersions()).learn([recorded]))


def test_what_is_not_known_is_told() -> None:
    registry = released(schema(a=...))
    recorded = event(registry, 1, a=1)
    with pytest.raises(NotFound, match="not among the versions"):
        asyncio.run(Upcasting((), MemoryRegistry(), MemoryVersions()).learn([recorded]))
    upcasting = Upcasting((), registry, MemoryVersions())
    asyncio.run(upcasting.learn([recorded]))
    with pytest.raises(Incompatible, match="unknown data format"):
        upcasting.data(replace(recorded, data_format=FORMAT_SEALED))
