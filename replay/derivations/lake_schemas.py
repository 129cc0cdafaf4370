"""Schemas by id as the lake itself keeps them, so that its log is read without a registry."""

from __future__ import annotations

from kernel.errors import NotFound
from lake.layout import Lake
from lake.tables import Tables


class LakeSchemas:
    """Finds the schemas that the lake has noted beside its log. See `SchemaLookup`."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._lake = lake
        self._tables = tables
        self._known: dict[int, str] = {}

    def schema(self, schema_id: int) -> str:
        """Return the Avro JSON text of a schema id. Raises `NotFound`."""
        if schema_id not in self._known:
            rows = self._tables.read(self._lake.avro_schemas, columns=["schema_id", "schema"])
            found = [] if rows is None else rows.to_pylist()
            self._known = {row["schema_id"]: row["schema"] for row in found}
        if schema_id not in self._known:
            raise NotFound(
                f"the lake has not noted schema {schema_id}, which rows of its log are written by",
                remedy="Put it back into log/_schemas, as from a copy of the lake, and give the "
                "same command again: it goes on where it was",
            )
        return self._known[schema_id]
