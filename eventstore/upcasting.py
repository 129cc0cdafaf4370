"""Old events in the newest shape of their type.

    bytes of version v -> [Avro resolution | upcaster v -> v+1]* -> JSON values of the newest

The version of an event is the number that the registry gave its schema under `<category>.<type>`.
Where the workspace has an upcaster from a version, it makes the step; every other step is Avro's
own schema resolution (new fields get their defaults). What comes out fits the newest schema, or is
an error that names the upcaster. Stored events never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import fastavro
import orjson

from eventstore.names import subject_of
from kernel.errors import DeciderFailed, Incompatible, Misconfigured, NotFound, SchemaViolation
from schemas.avro_bodies import BodyReader
from schemas.compatibility import parse
from schemas.json_codec import JsonCodec, json_default
from schemas.records import FORMAT_AVRO, RecordedEvent
from schemas.registry import RegisteredSchema, SchemaRegistry
from schemas.wire import HEADER_BYTES

Data = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcaster:
    """One step for one event type: `upcast` takes the data of `version`, as JSON values, and
    returns the data of `version + 1`. Pure: the same for the same data, for ever.
    """

    event: str
    version: int
    upcast: Callable[[Data], Data]


class KeptVersions(Protocol):
    """Schema versions kept beside the events, so that old ones are read while the registry is
    away.
    """

    async def versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        """Return the versions that are kept of a subject, oldest first."""
        ...

    async def keep(self, versions: Sequence[RegisteredSchema]) -> None:
        """Keep versions; those that are there already stay as they are."""
        ...


class MemoryVersions:
    """Versions kept in this process."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[RegisteredSchema, ...]] = {}

    async def versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        """Return the versions that are kept of a subject."""
        return self._kept.get(subject, ())

    async def keep(self, versions: Sequence[RegisteredSchema]) -> None:
        """Keep versions."""
        for new in versions:
            kept = self._kept.get(new.subject, ())
            if all(old.version != new.version for old in kept):
                self._kept[new.subject] = tuple(sorted((*kept, new), key=lambda v: v.version))


class Upcasting:
    """Turns recorded events into JSON values of the newest version. One per service.

    `learn` asks what has to be asked; `data` and `newest` only compute. `generation` grows
    whenever the newest version of a type that was seen before becomes another one: whoever folds
    several events begins again when it grew meanwhile.
    """

    def __init__(
        self,
        upcasters: Iterable[Upcaster],
        registry: SchemaRegistry,
        kept: KeptVersions,
    ) -> None:
        self.generation = 0
        self._registry = registry
        self._kept = kept
        self._types: dict[str, _Type] = {}
        self._steps: dict[str, dict[int, Upcaster]] = {}
        for upcaster in upcasters:
            steps = self._steps.setdefault(upcaster.event, {})
            if upcaster.version in steps or upcaster.version < 1:
                raise Misconfigured(
                    f"upcaster of {upcaster.event} from version {upcaster.version}: "
                    + ("there are two" if upcaster.version in steps else "versions begin at 1"),
                    remedy="Keep one upcaster for each version that needs one.",
                )
            steps[upcaster.version] = upcaster

    async def learn(self, events: Iterable[RecordedEvent]) -> None:
        """Get to know the schemas of events. Raises `Unavailable` when one is new here and the
        registry does not answer, `NotFound` when the registry does not have it.
        """
        for event in events:
            subject = subject_of(event.category, event.type)
            known = self._types.get(subject)
            if known is None or event.schema_id not in known.numbers:
                await self._learn(subject, event.schema_id)

    async def learn_of(self, subject: str) -> None:
        """Get to know a type whose events are not at hand. Raises like `learn`."""
        await self._learn(subject, None)

    def know(self, types: Mapping[str, Sequence[RegisteredSchema]]) -> None:
        """Take the versions of types as they are given, where another `Upcasting` learned them."""
        for subject, versions in types.items():
            known = self._types.get(subject)
            if known is None or known.versions != versions:
                self._types[subject] = _Type(subject, versions, self._steps.get(subject, {}))

    def types_of(self, events: Iterable[RecordedEvent]) -> dict[str, tuple[RegisteredSchema, ...]]:
        """Return all versions of the types of events that were learned of, for `know`."""
        subjects = {subject_of(event.category, event.type) for event in events}
        return {subject: self._types[subject].versions for subject in subjects}

    def upcasts(self, event: RecordedEvent) -> bool:
        """Say whether an event's type has upcasters: its data are read where their code is."""
        return subject_of(event.category, event.type) in self._steps

    def newest(self, event: RecordedEvent) -> tuple[str, int]:
        """Return an event's subject, and the version that its data are given in."""
        subject = subject_of(event.category, event.type)
        return subject, self._types[subject].target

    def target(self, subject: str) -> int | None:
        """Return the version that data of a subject are given in, None for one never seen."""
        known = self._types.get(subject)
        return None if known is None else known.target

    def data(self, event: RecordedEvent) -> Data:
        """Return the data of an event that was learned of, as JSON values of the newest version.

        Raises `Incompatible` where no upcaster makes a step that Avro cannot, `DeciderFailed` for
        an upcaster that raises or whose result does not fit.
        """
        if event.data_format != FORMAT_AVRO:
            raise Incompatible(f"event {event.id} has the unknown data format {event.data_format}")
        known = self._types[subject_of(event.category, event.type)]
        return known.read(event.data[HEADER_BYTES:], known.numbers[event.schema_id])

    async def _learn(self, subject: str, schema_id: int | None) -> None:
        before = self._types.get(subject)
        steps = self._steps.get(subject, {})
        found = await self._kept.versions(subject)
        if not _has(found, schema_id) or found[-1].version in steps:
            found = await asyncio.to_thread(self._registry.versions, subject)
            await self._kept.keep(found)
        if not _has(found, schema_id):
            raise NotFound(
                f"schema {schema_id or ''} is not among the versions of {subject} in the registry",
                remedy="Check that registry.url names the registry that these events were "
                "written with.",
            )
        learned = _Type(subject, found, steps)
        if before is not None and before.target != learned.target:
            self.generation += 1
        self._types[subject] = learned


def _has(versions: Sequence[RegisteredSchema], schema_id: int | None) -> bool:
    """Whether a schema is among them; None stands for any."""
    return any(schema_id in (None, each.id) for each in versions)


class _Type:
    """All versions of one event type, and the way from each to the newest."""

    def __init__(
        self, subject: str, versions: Sequence[RegisteredSchema], steps: Mapping[int, Upcaster]
    ) -> None:
        self.subject = subject
        self.versions = tuple(versions)
        self.numbers = {each.id: each.version for each in versions}
        self._texts = {each.version: each.schema for each in versions}
        self._steps = steps
        self._codecs: dict[int, JsonCodec] = {}
        self._parsed: dict[int, Any] = {}
        self._readers: dict[int, BodyReader] = {}
        self._last = max(self._texts)
        # An upcaster from the newest version is ahead of the registry: its result is the newest.
        self.target = self._last
        while self.target in steps:
            self.target += 1
        self._order = sorted(step for step in steps if step < self.target)

    def read(self, body: bytes, version: int) -> Data:
        """Walk from `version` to the newest one."""
        at = self._next_step(version)
        data = self._resolved(body, version, min(at, self._last))
        while at in self._steps:
            data = self._upcast(data, at)
            at += 1
            if at <= self._last:
                # Encoding checks the upcaster's result; reading it again fills in defaults.
                after = self._next_step(at)
                data = self._resolved(self._encoded(data, at), at, min(after, self._last))
                at = after
            else:
                data = self._as_json(data, at)
        return data

    def _next_step(self, version: int) -> int:
        """The first version at or behind `version` that has an upcaster, else the newest one."""
        return next((step for step in self._order if step >= version), self.target)

    def _upcast(self, data: Data, version: int) -> Data:
        step = self._steps[version]
        try:
            result = step.upcast(data)
        except Exception as error:
            raise _failed(step, f"raised {type(error).__name__}: {error}") from error
        if not isinstance(result, dict):
            raise _failed(step, f"returned {type(result).__name__}, not a dict")
        return result

    def _encoded(self, data: Data, version: int) -> bytes:
        try:
            return self._codec(version).encode(data)
        except SchemaViolation as error:
            step = self._steps[version - 1]
            raise _failed(step, f"returned what is not version {version}: {error}") from error

    def _resolved(self, body: bytes, written: int, read: int) -> Data:
        """Read bytes of one version as another one."""
        try:
            value = self._reader(written).read(
                body, None if read == written else self._schema(read)
            )
        except SchemaViolation as error:
            raise Incompatible(
                f"{self.subject}: data are not what version {written} says: {error.message}",
                remedy="Whoever appended them did not encode them: see POST /v1/encode.",
            ) from error
        except fastavro.read.SchemaResolutionError as error:
            raise Incompatible(
                f"{self.subject}: version {written} cannot be read as version {read}: {error}",
                remedy=f"Add an upcaster from a version between {written} and {read - 1} to "
                "upcasters/, and restart the service.",
            ) from error
        return _json(value)

    def _as_json(self, data: Data, version: int) -> Data:
        """Return what no schema checks as JSON values: it may hold objects of users' classes."""
        try:
            return _json(data)
        except TypeError as error:
            raise _failed(self._steps[version - 1], f"returned no JSON: {error}") from error

    def _schema(self, version: int) -> Any:
        if version not in self._parsed:
            self._parsed[version] = parse(self._texts[version])
        return self._parsed[version]

    def _reader(self, version: int) -> BodyReader:
        if version not in self._readers:
            self._readers[version] = BodyReader(self._schema(version))
        return self._readers[version]

    def _codec(self, version: int) -> JsonCodec:
        if version not in self._codecs:
            self._codecs[version] = JsonCodec(self._texts[version])
        return self._codecs[version]


def _json(data: Any) -> Data:
    values: Data = orjson.loads(orjson.dumps(data, default=json_default, option=orjson.OPT_UTC_Z))
    return values


def _failed(step: Upcaster, what: str) -> DeciderFailed:
    code = getattr(step.upcast, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}: " if code is not None else ""
    return DeciderFailed(
        f"{place}upcaster of {step.event} from version {step.version} {what}",
        file=None if code is None else code.co_filename,
        line=None if code is None else code.co_firstlineno,
    )
