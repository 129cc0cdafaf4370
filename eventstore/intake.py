"""From the JSON of an event to the bytes that are stored, and back: which schema, and whose.

    NewEvent -> [schema of its type] -> EncodedEvent        RecordedEvent -> JSON values

Schemas that were ever used are kept beside the events, so that the registry is needed only for
new ones: appends of known types and all reads go on while it is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from eventstore.codecs import Codecs
from eventstore.names import subject_of
from eventstore.store import EncodedEvent
from kernel.errors import (
    Incompatible,
    Misconfigured,
    NotFound,
    SchemaViolation,
    Unavailable,
    UnknownType,
)
from schemas.compatibility import Level, complaints_at, is_same
from schemas.inference import widened
from schemas.json_codec import JsonCodec
from schemas.records import NewEvent, RecordedEvent
from schemas.registry import RegisteredSchema, SchemaRegistry
from schemas.wire import frame

Mode = Literal["infer", "strict"]
ASK_AGAIN_S = 1.0
"""A bad event makes the service look for a newer schema at most this often per type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSchemas:
    """All schemas beside the events: text by id, and the id that each subject is written with."""

    schemas: Mapping[int, str]
    subjects: Mapping[str, int]


class SchemaCache(Protocol):
    """Schemas kept where the events are."""

    async def load(self) -> KeptSchemas:
        """Return all of them."""
        ...

    async def schema(self, schema_id: int) -> str | None:
        """Return the text of a schema, None when it is not kept."""
        ...

    async def written(self, subject: str) -> tuple[int, str] | None:
        """Return what `subject` is written with now: another service may have kept it."""
        ...

    async def keep(self, subject: str, schema_id: int, schema_json: str) -> None:
        """Keep a schema and write `subject` with it from now on. Durable when it returns."""
        ...

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Keep other tasks and services from changing the schema of a type meanwhile."""
        ...


class Intake:
    """Encodes new events and decodes recorded ones. One per service; `load` it first."""

    def __init__(
        self, registry: SchemaRegistry, cache: SchemaCache, mode: Mode, codecs: Codecs
    ) -> None:
        self.mode = mode
        self._registry = registry
        self._cache = cache
        self._codecs = codecs
        self._writing: dict[str, tuple[int, JsonCodec]] = {}
        self._asked: dict[str, float] = {}

    async def load(self) -> None:
        """Learn what is kept beside the events."""
        kept = await self._cache.load()
        for schema_id, text in kept.schemas.items():
            self._codecs.learn(schema_id, text)
        for subject, schema_id in kept.subjects.items():
            self._writing[subject] = (schema_id, self._codecs.codec(schema_id))

    async def encode(self, category: str, events: Sequence[NewEvent]) -> tuple[EncodedEvent, ...]:
        """Encode events of one category, in order.

        Raises `UnknownType` or `SchemaViolation` (with the event's `index`), and `Unavailable`
        when a schema is needed that is not known here and the registry does not answer.
        """
        encoded = []
        for index, event in enumerate(events):
            subject = subject_of(category, event.type)
            try:
                encoded.append(self._encode(subject, event))
            except (SchemaViolation, UnknownType):
                try:
                    encoded.append(await self._encode_anew(subject, event))
                except (SchemaViolation, UnknownType) as error:
                    error.fields.update(index=index, event_type=subject)
                    raise
        return tuple(encoded)

    def encode_known(
        self, category: str, events: Sequence[NewEvent]
    ) -> tuple[EncodedEvent, ...] | None:
        """Encode events without asking anybody. None when that is not enough: see `encode`."""
        try:
            return tuple([self._encode(subject_of(category, e.type), e) for e in events])
        except (SchemaViolation, UnknownType):
            return None

    async def decode(self, event: RecordedEvent) -> dict[str, Any]:
        """Return the data of a recorded event as JSON values (see `JsonCodec.decode`).

        Raises `Incompatible` for a data format that is not known, `Unavailable` when its schema
        is not known here and the registry does not answer.
        """
        body = self._codecs.body(event)
        return (await self.codec(event.schema_id)).decode(body)

    async def codec(self, schema_id: int) -> JsonCodec:
        """Return the codec of a schema. Raises `Unavailable` when it is not known here and the
        registry does not answer.
        """
        if not self._codecs.known(schema_id):
            text = await self._cache.schema(schema_id)
            if text is None:
                text = await asyncio.to_thread(self._registry.schema, schema_id)
            self._codecs.learn(schema_id, text)
        return self._codecs.codec(schema_id)

    def writes(self, category: str, type_: str) -> bool:
        """Return whether a type has a schema that new events of it are written with."""
        return subject_of(category, type_) in self._writing

    async def add(
        self, subject: str, schema_json: str, level: Level = Level.BACKWARD_TRANSITIVE
    ) -> tuple[RegisteredSchema, bool]:
        """Register a schema by hand; return it and whether it is new.

        Raises `SchemaViolation` for a text that cannot be an event's schema, `Incompatible` with
        `complaints` when it does not get on with earlier ones, `Unavailable` without a registry.
        """
        async with self._cache.alone():
            complaints = await self.complaints(subject, schema_json, level)
            if complaints:
                raise Incompatible(
                    f"{subject}: {complaints[0]}",
                    remedy="Make the change readable from old data (new fields need defaults), "
                    "use a new event type, or add an upcaster and another level of compatibility.",
                    complaints=complaints,
                )
            before = await asyncio.to_thread(self._registry.latest, subject)
            registered = await self._register(subject, schema_json)
        return registered, before is None or before.id != registered.id

    async def complaints(
        self, subject: str, schema_json: str, level: Level = Level.BACKWARD_TRANSITIVE
    ) -> list[str]:
        """Return what stops a schema from being added; nothing is registered."""
        JsonCodec(schema_json)
        versions = await asyncio.to_thread(self._registry.versions, subject)
        earlier = [(version.version, version.schema) for version in versions]
        return complaints_at(level, earlier, schema_json)

    async def versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        """Return all versions of a subject, oldest first. Raises `NotFound` for an unknown one."""
        found = await asyncio.to_thread(self._registry.versions, subject)
        if not found:
            raise NotFound(f"no schema is registered for {subject}", subject=subject)
        return found

    async def all_latest(self, wanted: Callable[[str], bool]) -> list[RegisteredSchema]:
        """Return the newest version of each subject that is wanted, of those that can be read."""

        def gather() -> list[RegisteredSchema]:
            found = []
            for subject in filter(wanted, self._registry.subjects()):
                # One that refers to what is gone, or to another language, is somebody else's.
                with contextlib.suppress(NotFound, SchemaViolation):
                    found.append(self._registry.latest(subject))
            return [latest for latest in found if latest is not None]

        return await asyncio.to_thread(gather)

    def _encode(self, subject: str, event: NewEvent) -> EncodedEvent:
        try:
            schema_id, codec = self._writing[subject]
        except KeyError:
            raise UnknownType(
                f"no schema is registered for event type {subject}",
                remedy=f"Register one first: penstock schema add {subject} FILE.avsc",
            ) from None
        return EncodedEvent(
            id=event.id,
            type=event.type,
            schema_id=schema_id,
            data=frame(schema_id, codec.encode(event.data)),
            metadata=event.metadata,
            tags=event.tags,
            occurred_at=event.occurred_at,
        )

    async def _encode_anew(self, subject: str, event: NewEvent) -> EncodedEvent:
        """Ask the registry for a newer schema; in infer mode make one. One task at a time."""
        async with self._cache.alone():
            # Whoever was here before may have brought what we came for.
            with contextlib.suppress(SchemaViolation, UnknownType):
                return self._encode(subject, event)
            kept = await self._cache.written(subject)
            if kept is not None:
                self._adopt(subject, *kept)
                with contextlib.suppress(SchemaViolation, UnknownType):
                    return self._encode(subject, event)
            latest = await self._latest(subject)
            if latest is not None:
                await self._write_with(subject, latest.id, latest.schema)
            try:
                return self._encode(subject, event)
            except (SchemaViolation, UnknownType):
                if not self._may_infer(subject):
                    raise
            before = None if latest is None else latest.schema
            await self._register(subject, widened(subject, before, event.data))
            return self._encode(subject, event)

    async def _latest(self, subject: str) -> RegisteredSchema | None:
        """Ask the registry, but not about every bad event, nor when its answer cannot help."""
        fixed = subject in self._writing and not self._may_infer(subject)
        now = asyncio.get_running_loop().time()
        if fixed and now - self._asked.get(subject, -math.inf) < ASK_AGAIN_S:
            return None
        try:
            latest = await asyncio.to_thread(self._registry.latest, subject)
        except Unavailable:
            if fixed:
                return None
            raise
        self._asked[subject] = now
        return latest

    def _may_infer(self, subject: str) -> bool:
        """Only schemas that were inferred may follow the data; a registered one is a contract."""
        known = self._writing.get(subject)
        return self.mode == "infer" and (known is None or known[1].inferred)

    async def _register(self, subject: str, schema_json: str) -> RegisteredSchema:
        schema_id = await asyncio.to_thread(self._registry.register, subject, schema_json)
        await self._write_with(subject, schema_id, schema_json)
        latest = await asyncio.to_thread(self._registry.latest, subject)
        version = 1 if latest is None else latest.version
        return RegisteredSchema(subject=subject, id=schema_id, version=version, schema=schema_json)

    async def _write_with(self, subject: str, schema_id: int, schema_json: str) -> None:
        JsonCodec(schema_json)
        known = await self._cache.schema(schema_id)
        if known is not None and not is_same(known, schema_json):
            # Events under this id would be read by the other one.
            raise Misconfigured(
                f"the registry has the schema of {subject} under id {schema_id}, and the store has "
                "another one there: it is not the registry that its events were written with",
                remedy="Set registry.url to that one; where it was lost, fill an empty one: "
                "penstock store restore-registry",
            )
        await self._cache.keep(subject, schema_id, schema_json)
        self._adopt(subject, schema_id, schema_json)

    def _adopt(self, subject: str, schema_id: int, schema_json: str) -> None:
        self._codecs.learn(schema_id, schema_json)
        self._writing[subject] = (schema_id, self._codecs.codec(schema_id))
