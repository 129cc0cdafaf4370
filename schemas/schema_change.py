"""A table of the source as DDL left it: what the event triggers of `cdc.ddl` tell.

    JSON of a logical message -> parse_schema_change -> SchemaChange

Columns are known by `attnum`, which a rename does not change and which is never used again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kernel.errors import SchemaViolation
from schemas.lake_columns import captured_columns, numbers
from schemas.pg_types import SourceColumn

MESSAGE_PREFIX = "penstock.ddl"
"""Prefix of the logical messages that carry one."""

REWRITE_TYPE = 4
"""Bit of `rewritten`: a column's values were computed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """A column after the change.

    `declared` is its type as DDL writes it. `missing` is PostgreSQL's text of the value that rows
    have which were there before the column; None with `default` means that each row has its own.
    `labels` are an enum's, by oid, which a renamed label keeps.
    """

    attnum: int
    column: SourceColumn
    declared: str
    default: bool
    missing: str | None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return what the column is called in the lake."""
        return self.column.lake_name


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A table right after a DDL command, or as it is (`kind` describe).

    `kind`: create, alter, drop, describe. `renamed` is the attnum that a RENAME COLUMN was about,
    0 without. `rewritten` are PostgreSQL's reasons for rewriting the table, as bits. `using`: the
    command computes values, as far as its text shows. `key` are lake names; `key_alone`: none of
    them is only included in it, as in older messages. `root` is the partitioned table whose
    partition this is; `partitions` the leaves of a partitioned one, `filled` those of them that had
    rows, None where nobody looked, `unlogged` those that are. A `leaf` is not partitioned itself.
    `identity` is its replica identity, a letter of the catalog's.
    `type_kind` is the kind of the type that was altered.
    """

    kind: str
    tag: str
    oid: int
    table: str
    persistence: str = "p"
    root: int | None = None
    partitions: frozenset[int] = frozenset()
    filled: frozenset[int] | None = None
    unlogged: frozenset[int] = frozenset()
    leaf: bool = True
    identity: str = "d"
    key: tuple[str, ...] = ()
    key_alone: bool = False
    columns: tuple[TableColumn, ...] = ()
    renamed: int = 0
    rewritten: int = 0
    using: bool = False
    type_kind: str | None = None

    def by_attnum(self) -> dict[int, TableColumn]:
        """Return the columns that are in the stream of changes, by attnum."""
        return {c.attnum: c for c in self.columns if not c.column.generated}


def parse_schema_change(text: str) -> SchemaChange:
    """Read a message's JSON. Raises `SchemaViolation`, `later` for one of a later version.

    Whoever may connect to the source's database may write a message of ours with anything in it.
    """
    try:
        told: dict[str, Any] = json.loads(text)
        if int(told["version"]) > 1:
            raise SchemaViolation(
                f"a schema change of version {told['version']}",
                remedy="A later version of Penstock made the event triggers: update this one.",
                later=True,
            )
        filled = told.get("filled")
        listed: list[dict[str, Any]] = told.get("columns") or []
        sent = [each for each in listed if not each["generated"]]
        number = dict(
            zip(
                (each["attnum"] for each in sent),
                numbers([each["name"] for each in sent]),
                strict=True,
            )
        )
        return SchemaChange(
            kind=told["kind"],
            tag=told["tag"],
            oid=told["oid"],
            table=f"{told['schema']}.{told['table']}",
            persistence=told.get("persistence", "p"),
            root=told.get("root"),
            partitions=frozenset(told.get("partitions") or ()),
            filled=None if filled is None else frozenset(filled),
            unlogged=frozenset(told.get("unlogged") or ()),
            leaf=told.get("partitions") is None,
            identity=told.get("identity", "d"),
            key=captured_columns(told.get("key") or ()),
            key_alone=bool(told.get("key_alone")),
            columns=tuple(_column(each, number.get(each["attnum"], 1)) for each in listed),
            renamed=told.get("renamed") or 0,
            rewritten=told.get("rewritten") or 0,
            using=bool(told.get("using")),
            type_kind=told.get("type_kind"),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SchemaViolation(f"not a schema change: {error!r}") from error


def _column(told: Mapping[str, Any], number: int) -> TableColumn:
    return TableColumn(
        attnum=told["attnum"],
        column=SourceColumn(
            name=told["name"],
            type=told["type"],
            kind=told["kind"],
            modifier=told["modifier"],
            is_array=told["is_array"],
            dimensions=told["dimensions"],
            not_null=told["not_null"],
            generated=told["generated"],
            delimiter=told.get("delimiter", ","),
            number=number,
        ),
        declared=told["declared"],
        default=told["default"],
        missing=told["missing"],
        labels=told["labels"] or {},
    )
