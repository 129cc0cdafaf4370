# Written by generate_sync.py from penstock_client/_async/schemas.py: edit that file.
"""Schemas of event types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock_client._sync.connection import Connection
from penstock_client.model import Level, Schema, SchemaCheck
from penstock_client.wire import schema_check_of, schema_of, segment


class Schemas:
    """The schemas that the service checks data against. A subject is `category.type`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(
        self, subject: str, schema: Mapping[str, Any] | str, *, level: Level | None = None
    ) -> Schema:
        """Register an Avro schema; one that is there already is returned as it is.

        `level` is set with it. Raises `Incompatible` when it does not get on with earlier versions.
        """
        body = {"subject": subject, "schema": schema}
        if level is not None:
            body["compatibility"] = level
        return schema_of(self._connection.call("POST", "/v1/schemas", body=body))

    def check(self, subject: str, schema: Mapping[str, Any] | str) -> SchemaCheck:
        """Say whether `add` would take it; nothing is registered."""
        body = {"subject": subject, "schema": schema}
        return schema_check_of(
            self._connection.call("POST", "/v1/schemas", body=body, params={"check": "true"})
        )

    def list(self) -> tuple[Schema, ...]:
        """Return the newest version of each event type's schema."""
        document = self._connection.call("GET", "/v1/schemas")
        return tuple(schema_of(each) for each in document["schemas"])

    def versions(self, subject: str) -> tuple[Schema, ...]:
        """Return all versions of one schema, oldest first. Raises `NotFound`."""
        document = self._connection.call("GET", f"/v1/schemas/{segment(subject)}")
        return tuple(schema_of(each) for each in document["versions"])

    def level(self, subject: str) -> Level:
        """Return what new versions of a schema must get on with. Raises `NotFound`."""
        document = self._connection.call("GET", f"/v1/schemas/{segment(subject)}")
        found: Level = document["compatibility"]
        return found

    def set_level(self, subject: str, level: Level) -> None:
        """Set what versions to come must get on with; those that are there stay."""
        path = f"/v1/schemas/{segment(subject)}/compatibility"
        self._connection.call("PUT", path, body={"level": level})
