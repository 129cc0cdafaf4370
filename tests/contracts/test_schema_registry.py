"""What every schema registry keeps to, memory and the real one alike."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from apps.settings import Settings
from kernel.errors import NotFound, SchemaViolation, Unavailable
from schemas.registry import ConfluentRegistry, MemoryRegistry, SchemaRegistry

pytestmark = pytest.mark.xdist_group("stack")


@pytest.fixture(params=["memory", "confluent"])
def registry(request: pytest.FixtureRequest) -> Iterator[SchemaRegistry]:
    if request.param == "memory":
        yield MemoryRegistry()
        return
    stack: Settings = request.getfixturevalue("stack")
    real = ConfluentRegistry(stack.required("registry.url"))
    yield real
    real.close()


@pytest.fixture
def subject() -> str:
    return f"order.T{uuid.uuid4().hex}"


def schema(*fields: str, **defaults: object) -> str:
    """Return a schema of long fields; its name makes its content this test's own."""
    made = [{"name": name, "type": "long"} for name in fields]
    made += [{"name": name, "type": "long", "default": value} for name, value in defaults.items()]
    return json.dumps({"type": "record", "name": "T", "namespace": "order", "fields": made})


def test_what_was_registered_is_found(registry: SchemaRegistry, subject: str) -> None:
    assert registry.latest(subject) is None
    assert registry.versions(subject) == ()
    first = registry.register(subject, schema(f"a{subject[7:]}"))
    again = registry.register(subject, schema(f"a{subject[7:]}"))
    assert first == again
    latest = registry.latest(subject)
    assert latest is not None
    assert (latest.subject, latest.id, latest.version) == (subject, first, 1)
    assert json.loads(latest.schema) == json.loads(registry.schema(first))
    assert subject in registry.subjects()


@pytest.mark.matrix
def test_each_of_many_subjects_is_listed(registry: SchemaRegistry, subject: str) -> None:
    """Two for each captured table: one that lists a thousand loses some."""
    many = {f"{subject}.{place}" for place in range(1_001)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda each: registry.register(each, schema("a")), sorted(many)))
    assert many <= set(registry.subjects())


def test_versions_are_kept_in_order(registry: SchemaRegistry, subject: str) -> None:
    one = registry.register(subject, schema("a"))
    two = registry.register(subject, schema("a", b=0))
    assert one != two
    assert [(v.version, v.id) for v in registry.versions(subject)] == [(1, one), (2, two)]
    latest = registry.latest(subject)
    assert latest is not None
    assert latest.version == 2


def test_compatibility_looks_at_every_version(registry: SchemaRegistry, subject: str) -> None:
    assert registry.compatible(subject, schema("a")) == []
    registry.register(subject, schema("a"))
    registry.register(subject, schema("a", b=0))
    assert registry.compatible(subject, schema("a", b=0, c=0)) == []
    # The second version alone could be read with this one, the first one cannot.
    (complaint,) = registry.compatible(subject, schema("a", "b"))
    assert complaint == "version 1: $.b: new field without a default"


def test_unknown_ids_and_texts_that_are_no_schemas(registry: SchemaRegistry, subject: str) -> None:
    with pytest.raises(NotFound):
        registry.schema(2_000_000_000)
    for text in ("{", '{"type": "unheard"}'):
        with pytest.raises(SchemaViolation):
            registry.register(subject, text)
    assert registry.latest(subject) is None


def test_it_travels_to_other_processes(registry: SchemaRegistry, subject: str) -> None:
    schema_id = registry.register(subject, schema("a"))
    copy: SchemaRegistry = pickle.loads(pickle.dumps(registry))
    assert json.loads(copy.schema(schema_id)) == json.loads(schema("a"))


def test_threads_may_share_it(registry: SchemaRegistry, subject: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: registry.register(subject, schema("a")), range(16)))
    assert len(ids) == 1
    assert len(registry.versions(subject)) == 1


def test_a_registry_that_is_away() -> None:
    away = ConfluentRegistry("http://127.0.0.1:1")
    for call in (lambda: away.schema(1), lambda: away.latest("order.T"), away.subjects):
        with pytest.raises(Unavailable, match="does not answer"):
            call()
    away.close()
