"""Schemas by subject, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from penstock_client.errors import Incompatible, NotFound, Refused, UnknownType
from penstock_client.testing.avro import AvroSchema
from penstock_client.testing.bodies import Document

Mode = Literal["infer", "strict"]


class MemorySchemas:
    """What is registered. In mode `infer` a type without a schema takes any data."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._versions: dict[str, list[Document]] = {}
        self._inferred: dict[str, int] = {}
        self._next_id = 1
        self.levels: dict[str, str] = {}

    def check(self, category: str, type_: str, data: Mapping[str, Any], index: int) -> int:
        """Return the id of the schema that the data fits.

        Raises `UnknownType`, `SchemaViolation`.
        """
        subject = f"{category}.{type_}"
        versions = self._versions.get(subject)
        if versions is not None:
            AvroSchema(versions[-1]["schema"]).check(data, subject, index)
            schema_id: int = versions[-1]["id"]
            return schema_id
        if self._mode == "strict":
            raise UnknownType(
                f"{subject} has no schema",
                remedy=f"Register one first: penstock schema add {subject} FILE.avsc",
                event_type=subject,
                index=index,
            )
        if subject not in self._inferred:
            self._inferred[subject] = self._new_id()
        return self._inferred[subject]

    def add(self, subject: str, schema: Mapping[str, Any]) -> tuple[Document, bool]:
        """Register a schema; return it and whether it is new. Raises `Incompatible`."""
        for known in self._versions.get(subject, []):
            if known["schema"] == schema:
                return known, False
        complaints = self.complaints(subject, schema)
        if complaints:
            raise Incompatible(
                f"{subject}: {complaints[0]}",
                remedy="Give new fields a default, and keep the types of old ones.",
                complaints=complaints,
            )
        versions = self._versions.setdefault(subject, [])
        added: Document = {
            "subject": subject,
            "id": self._new_id(),
            "version": len(versions) + 1,
            "schema": schema,
        }
        versions.append(added)
        return added, True

    def complaints(self, subject: str, schema: Mapping[str, Any]) -> list[str]:
        """Return what keeps a schema from reading what is stored."""
        if subject.count(".") != 1:
            raise Refused(f"{subject!r} is no subject", remedy="Name it CATEGORY.TYPE")
        try:
            parsed = AvroSchema(schema)
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"the schema cannot be used: {error}") from error
        if self.level(subject) == "NONE":
            return []
        return [
            complaint
            for older in self._versions.get(subject, [])
            for complaint in parsed.cannot_read(AvroSchema(older["schema"]))
        ]

    def level(self, subject: str) -> str:
        """Return the level of a subject. All but `NONE` are one here: read what is stored."""
        return self.levels.get(subject, "BACKWARD_TRANSITIVE")

    def latest(self) -> list[Document]:
        """Return the newest version of each subject."""
        return [versions[-1] for _, versions in sorted(self._versions.items())]

    def versions(self, subject: str) -> list[Document]:
        """Return all versions of one subject, or raise `NotFound`."""
        if subject not in self._versions:
            raise NotFound(f"{subject} has no schema", remedy="penstock schema list")
        return self._versions[subject]

    def _new_id(self) -> int:
        given, self._next_id = self._next_id, self._next_id + 1
        return given
