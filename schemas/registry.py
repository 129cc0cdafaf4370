"""Where Avro schemas live: the Confluent API of a registry, or memory.

Ids are the registry's content ids, the ones inside the five-byte framing: a schema never changes
under its id, so lookups are cached for the life of the process and cost nothing afterwards.
Subjects of events are `<category>.<type>`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

import httpx
import orjson

from kernel.errors import Incompatible, NotFound, SchemaViolation, Unavailable
from schemas.compatibility import Level, complaints, complaints_at
from schemas.schema_references import with_types

API_PATH = "/apis/ccompat/v7"
_TIMEOUT_S = 10.0
_SCHEMAS: dict[tuple[str, int], str] = {}
_FOREIGN: dict[tuple[str, int], str] = {}
"""Languages of the schemas that are none of Avro's."""
_AVRO = "AVRO"
# One client per registry and process: decoders are made anew for every batch.
_CLIENTS: dict[str, httpx.Client] = {}
_CLIENTS_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """One version of a subject. `version` counts from 1 within the subject."""

    subject: str
    id: int
    version: int
    schema: str


class SchemaLookup(Protocol):
    """Finds the schema that bytes were written with. Safe to call from several threads."""

    def schema(self, schema_id: int) -> str:
        """Return the Avro JSON text of a schema id.

        Raises `NotFound` for an id that the registry does not have, `Unavailable` when it does
        not answer (retry with back-off; never treat that as bad data).
        """
        ...


class SchemaRegistry(SchemaLookup, Protocol):
    """A lookup that schemas can be added to."""

    def register(self, subject: str, schema_json: str) -> int:
        """Add a version of `subject` and return its id; the same schema again is the same id.

        It does not check compatibility (`compatible` does). Raises `SchemaViolation` when the
        text is not an Avro schema, `Unavailable` when the registry does not answer.
        """
        ...

    def latest(self, subject: str) -> RegisteredSchema | None:
        """Return the newest version of `subject`, or None when it has none."""
        ...

    def versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        """Return every version of `subject`, oldest first; empty when it has none."""
        ...

    def subjects(self) -> tuple[str, ...]:
        """Return all subjects, sorted."""
        ...

    def compatible(self, subject: str, schema_json: str) -> list[str]:
        """Return what stops `schema_json` from reading every earlier version; empty is good."""
        ...


class ConfluentRegistry:
    """A registry behind the Confluent HTTP API (Apicurio's `ccompat`, for one).

    Pickles as its address alone: connections open on first use in each process and are shared.
    """

    def __init__(self, url: str, *, api_path: str = API_PATH) -> None:
        self.url = url.rstrip("/")
        self._api_path = api_path

    def __reduce__(self) -> tuple[object, ...]:
        return _confluent, (self.url, self._api_path)

    def close(self) -> None:
        """Close this process's connections to the registry; the next call opens new ones."""
        with _CLIENTS_LOCK:
            client = _CLIENTS.pop(self.url, None)
        if client is not None:
            client.close()

    def schema(self, schema_id: int) -> str:
        """Return the Avro JSON text of a schema id, from the cache after the first time.

        Raises `SchemaViolation` for a schema of another language.
        """
        known, foreign = (each.get((self.url, schema_id)) for each in (_SCHEMAS, _FOREIGN))
        if foreign is not None:
            raise _not_avro(schema_id, foreign)
        if known is None:
            answer = self._call("GET", f"/schemas/ids/{schema_id}")
            if answer is None:
                raise NotFound(
                    f"the registry at {self.url} has no schema with id {schema_id}",
                    remedy="Check that registry.url names the registry that wrote these records.",
                )
            language = _language(answer)
            if language != _AVRO:
                _FOREIGN[(self.url, schema_id)] = language
                raise _not_avro(schema_id, language)
            known = _SCHEMAS[(self.url, schema_id)] = self._whole(answer)
        return known

    def register(self, subject: str, schema_json: str) -> int:
        """Add a version of `subject` and return its id; the same schema again is the same id."""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        answer = self._call("POST", path, {"schema": schema_json, "schemaType": "AVRO"})
        if answer is None:
            raise NotFound(f"the registry at {self.url} has no API at {self._api_path}")
        return int(answer["id"])

    def latest(self, subject: str) -> RegisteredSchema | None:
        """Return the newest version of `subject`, or None when it has none."""
        return self._version(subject, "latest")

    def versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        """Return every version of `subject`, oldest first; empty when it has none."""
        numbers = self._call("GET", f"/subjects/{quote(subject, safe='')}/versions") or []
        found = (self._version(subject, str(number)) for number in sorted(numbers))
        return tuple(version for version in found if version is not None)

    def subjects(self) -> tuple[str, ...]:
        """Return all subjects, sorted."""
        return tuple(sorted(self._call("GET", "/subjects") or []))

    def compatible(self, subject: str, schema_json: str) -> list[str]:
        """Return what stops `schema_json` from reading every earlier version; empty is good."""
        return _against_all(self.versions(subject), schema_json)

    def _version(self, subject: str, version: str) -> RegisteredSchema | None:
        found = self._call("GET", f"/subjects/{quote(subject, safe='')}/versions/{version}")
        if found is None:
            return None
        registered = RegisteredSchema(
            subject=subject,
            id=int(found["id"]),
            version=int(found["version"]),
            schema=self._whole(found),
        )
        if _language(found) == _AVRO:
            _SCHEMAS[(self.url, registered.id)] = registered.schema
        return registered

    def _whole(self, answer: Any) -> str:
        """Return the text of a schema; of Avro, with the types of others that it refers to."""
        text = str(answer["schema"])
        if _language(answer) != _AVRO:
            return text
        others = []
        for each in answer.get("references") or ():
            found = self._version(str(each["subject"]), str(each["version"]))
            if found is None:
                raise NotFound(
                    f"the registry at {self.url} has no version {each['version']} of"
                    f" {each['subject']}, to which a schema refers"
                )
            others.append(found.schema)
        try:
            return with_types(text, others) if others else text
        except ValueError as error:
            raise SchemaViolation(f"not an Avro schema: {error}") from error

    def _call(self, method: str, path: str, body: object = None) -> Any:
        """Send one request; None for 404. The one seam at which HTTP errors become ours."""
        try:
            answer = self._http().request(
                method,
                self._api_path + path,
                content=None if body is None else orjson.dumps(body),
                headers={"content-type": "application/json"},
            )
        except httpx.HTTPError as error:
            raise Unavailable(f"schema registry {self.url} does not answer: {error}") from error
        match answer.status_code:
            case 200 | 201:
                return orjson.loads(answer.content)
            case 404:
                return None
            case 409:
                raise Incompatible(
                    f"the registry refused {path}: {answer.text[:500]}",
                    remedy="Compare with the latest version: penstock schema list",
                )
            case 400 | 422:
                raise SchemaViolation(f"the registry refused {path}: {answer.text[:500]}")
            case status:
                raise Unavailable(f"schema registry {self.url} answered {status} to {path}")

    def _http(self) -> httpx.Client:
        with _CLIENTS_LOCK:
            if self.url not in _CLIENTS:
                # A proxy from the environment must not stand between us and our own machine.
                local = urlsplit(self.url).hostname in {"127.0.0.1", "localhost", "::1"}
                _CLIENTS[self.url] = httpx.Client(
                    base_url=self.url, timeout=_TIMEOUT_S, trust_env=not local
                )
            return _CLIENTS[self.url]


class MemoryRegistry:
    """A registry that lives in this process: for tests, and for use without a network."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ids: dict[str, int] = {}
        self._schemas: dict[int, str] = {}
        self._subjects: dict[str, list[RegisteredSchema]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def schema(self, schema_id: int) -> str:
        """Return the Avro JSON text of a schema id."""
        try:
            return self._schemas[schema_id]
        except KeyError:
            raise NotFound(f"no schema with id {schema_id}") from None

    def register(self, subject: str, schema_json: str) -> int:
        """Add a version of `subject` and return its id; the same schema again is the same id."""
        content = _canonical(schema_json)
        with self._lock:
            schema_id = self._ids.setdefault(content, len(self._ids) + 1)
            self._schemas.setdefault(schema_id, schema_json)
            versions = self._subjects.setdefault(subject, [])
            if all(version.id != schema_id for version in versions):
                versions.append(
                    RegisteredSchema(
                        subject=subject,
                        id=schema_id,
                        version=len(versions) + 1,
                        schema=schema_json,
                    )
                )
        return schema_id

    def latest(self, subject: str) -> RegisteredSchema | None:
        """Return the newest version of `subject`, or None when it has none."""
        return next(iter(self._subjects.get(subject, [])[-1:]), None)

    def versions(self, subject: str) -> tuple[RegisteredSchema, ...]:
        """Return every version of `subject`, oldest first; empty when it has none."""
        return tuple(self._subjects.get(subject, []))

    def subjects(self) -> tuple[str, ...]:
        """Return all subjects, sorted."""
        return tuple(sorted(self._subjects))

    def compatible(self, subject: str, schema_json: str) -> list[str]:
        """Return what stops `schema_json` from reading every earlier version; empty is good."""
        return _against_all(self.versions(subject), schema_json)


def _confluent(url: str, api_path: str) -> ConfluentRegistry:
    return ConfluentRegistry(url, api_path=api_path)


def _against_all(versions: tuple[RegisteredSchema, ...], schema_json: str) -> list[str]:
    earlier = [(version.version, version.schema) for version in versions]
    return complaints_at(Level.BACKWARD_TRANSITIVE, earlier, schema_json)


def _language(answer: Any) -> str:
    return str(answer.get("schemaType") or _AVRO)


def _not_avro(schema_id: int, language: str) -> SchemaViolation:
    read = "records of JSON Schema are read with format = 'json'" if language == "JSON" else None
    return SchemaViolation(
        f"schema {schema_id} is of {language}, not Avro: {read or f'{language} is not read'}"
    )


def _canonical(schema_json: str) -> str:
    try:
        parsed = orjson.loads(schema_json)
    except orjson.JSONDecodeError as error:
        raise SchemaViolation(f"not an Avro schema: not JSON: {error}") from error
    complaints(reader=schema_json, writer=schema_json)
    return orjson.dumps(parsed).decode()
