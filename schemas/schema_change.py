"""A table of the source as DDL left it: what the event triggers of `cdc.ddl` tell.

    JSON of a logical message -> parse_schema_change -> SchemaChange

Columns are known by `attnum`, which a rename does not change and which is never used again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kernel.errors import SchemaViolation
from schemas.lake_columns import captured_columns, numbers
from schemas.pg_types import SourceColumn

Told = TypeVar("Told")

MESSAGE_PREFIX = "penstock.ddl"
"""Prefix of the logical messages that carry one."""

VERSION = 1
"""The form of messages that this version reads."""

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
    them is only included in it, as in older messages; `deferrable`: rows may share one for a while,
    up to a transaction's end. `root` is the partitioned table whose
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
    deferrable: bool = False
    columns: tuple[TableColumn, ...] = ()
    renamed: int = 0
    rewritten: int = 0
    using: bool = False
    type_kind: str | None = None

    def by_attnum(self) -> dict[int, TableColumn]:
        """Return the columns that are in the stream of changes, by attnum."""
        return {c.attnum: c for c in self.columns if not c.column.generated}


def parse_schema_change(text: str) -> SchemaChange:
    """Read a message's JSON. Raises `SchemaViolation`, also for one of a later version.

    Of one of a later version it carries `table`, which it is about, and `later`, the version.
    Whoever may connect to the source's database may write a message of ours with anything in it.
    """
    try:
        told: dict[str, Any] = json.loads(text)
        version = _taken(told, "version", int)
        if version > VERSION:
            raise SchemaViolation(
                f"a schema change of version {version}",
                remedy="A later version of Penstock made the event triggers: update this one.",
                later=version,
                table=_table(told),
            )
        return _read(told)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as e:
        raise SchemaViolation(f"not a schema change: {e!r}") from e


def _read(told: Mapping[str, Any]) -> SchemaChange:
    listed = _listed(told, "columns", dict)
    sent = [each for each in listed if not _taken(each, "generated", str)]
    places = [_taken(each, "attnum", int) for each in sent]
    number = dict(zip(places, numbers([_taken(each, "name", str) for each in sent]), strict=True))
    filled = told.get("filled")
    return SchemaChange(
        kind=_taken(told, "kind", str),
        tag=_taken(told, "tag", str),
        oid=_taken(told, "oid", int),
        table=_table(told),
        persistence=_taken(told, "persistence", str, "p"),
        root=_taken(told, "root", int) if told.get("root") is not None else None,
        partitions=frozenset(_listed(told, "partitions", int)),
        filled=None if filled is None else frozenset(_listed(told, "filled", int)),
        unlogged=frozenset(_listed(told, "unlogged", int)),
        leaf=told.get("partitions") is None,
        identity=_taken(told, "identity", str, "d"),
        key=captured_columns(_listed(told, "key", str)),
        key_alone=bool(told.get("key_alone")),
        deferrable=bool(told.get("deferrable")),
        columns=tuple(_column(each, number.get(each["attnum"], 1)) for each in listed),
        renamed=_taken(told, "renamed", int, 0),
        rewritten=_taken(told, "rewritten", int, 0),
        using=bool(told.get("using")),
        type_kind=_taken(told, "type_kind", str) if told.get("type_kind") is not None else None,
    )


def _column(told: Mapping[str, Any], number: int) -> TableColumn:
    missing, labels = told["missing"], told["labels"] or {}
    return TableColumn(
        attnum=_taken(told, "attnum", int),
        column=SourceColumn(
            name=_taken(told, "name", str),
            type=_taken(told, "type", str),
            kind=_taken(told, "kind", str),
            modifier=_taken(told, "modifier", int),
            is_array=_taken(told, "is_array", bool),
            dimensions=_taken(told, "dimensions", int),
            not_null=_taken(told, "not_null", bool),
            generated=_taken(told, "generated", str),
            delimiter=_taken(told, "delimiter", str, ","),
            number=number,
        ),
        declared=_taken(told, "declared", str),
        default=bool(told["default"]),
        missing=None if missing is None else _taken(told, "missing", str),
        labels={_own(oid, "an oid", str): _taken(labels, oid, str) for oid in labels},
    )


def _table(told: Mapping[str, Any]) -> str:
    return f"{_taken(told, 'schema', str)}.{_taken(told, 'table', str)}"


def _taken(
    told: Mapping[str, Any], name: str, kind: type[Told], default: Told | None = None
) -> Told:
    """Return a value of its type; `default` where it is absent or null.

    JSON gives any type for a name, and one that is none of its own would fail far from here.
    """
    value = told.get(name)
    if value is None and default is not None:
        return default
    return _own(value, name, kind)


def _listed(told: Mapping[str, Any], name: str, kind: type[Told]) -> tuple[Told, ...]:
    return tuple(_own(each, name, kind) for each in _taken(told, name, list, []))


def _own(value: object, name: str, kind: type[Told]) -> Told:
    # A bool is an int to Python, and none to PostgreSQL.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{name} is {value!s:.80}")
    if isinstance(value, str):
        value.encode()  # JSON can spell half of a character, which nothing could write down.
    return value
