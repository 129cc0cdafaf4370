"""The source's side of a comparison: the hash of `schemas.row_hash`, computed by PostgreSQL.

Text is what the lake holds (`docs/reference/capture.md`), so that equal hashes mean equal rows.
Types without such a text (points, composites, hstore) and generated columns are left out; the
names that were compared are part of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from cdc.database import Connection, connected, split_table
from kernel.errors import NotFound
from schemas.row_hash import TableHash, hash_text

_AS_OUTPUT = frozenset(
    (
        "text",
        "varchar",
        "bpchar",
        "name",
        "citext",
        "uuid",
        "json",
        "jsonb",
        "xml",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "tsvector",
        "ltree",
        "bit",
        "pg_lsn",
        "jsonpath",
        "int4range",
        "int8range",
        "numrange",
        "tsrange",
        "daterange",
        "int4multirange",
        "int8multirange",
        "nummultirange",
        "tsmultirange",
        "datemultirange",
    )
)
"""Types whose text is PostgreSQL's own: `format('%s', x)` calls the output function, `x::text`
would strip a char(n)."""

_EXPRESSIONS = {
    "bool": "CASE WHEN {x} THEN 'true' ELSE 'false' END",
    "int2": "{x}::text",
    "int4": "{x}::text",
    "int8": "{x}::text",
    "oid": "{x}::text",
    "float4": "CASE WHEN {x} = 'NaN' THEN '7fc00000' ELSE encode(float4send({x}), 'hex') END",
    "float8": (
        "CASE WHEN {x} = 'NaN' THEN '7ff8000000000000' ELSE encode(float8send({x}), 'hex') END"
    ),
    "money": "{x}::numeric::text",
    "bytea": "encode({x}, 'hex')",
    "date": (
        "(least(greatest({x}, date '0001-01-01'), date '9999-12-31') - date '1970-01-01')::text"
    ),
    "timestamp": (
        "(extract(epoch FROM least(greatest({x}, timestamp '0001-01-01'),"
        " timestamp '9999-12-31 23:59:59.999999')) * 1000000)::bigint::text"
    ),
    "timestamptz": (
        "(extract(epoch FROM least(greatest({x}, timestamptz '0001-01-01 00:00:00+00'),"
        " timestamptz '9999-12-31 23:59:59.999999+00')) * 1000000)::bigint::text"
    ),
    "time": "{x}::text",
    "timetz": "replace(({x} AT TIME ZONE 'UTC')::text, '+00', 'Z')",
    "interval": (
        "'P' || extract(year FROM {x}) || 'Y' || extract(month FROM {x}) || 'M'"
        " || extract(day FROM {x}) || 'DT' || extract(hour FROM {x}) || 'H'"
        " || extract(minute FROM {x}) || 'M' || trim_scale(extract(second FROM {x})) || 'S'"
    ),
    "varbit": "coalesce(nullif(ltrim({x}::text, '0'), ''), '0')",
}

_IN_ARRAYS = frozenset(
    (
        "bool",
        "int2",
        "int4",
        "int8",
        "float4",
        "float8",
        "numeric",
        "text",
        "varchar",
        "bpchar",
        "uuid",
        "json",
        "jsonb",
        "bytea",
        "date",
        "time",
        "timestamp",
        "timestamptz",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the source: its type (of the items, for an array) with domains resolved.

    `kind` is PostgreSQL's typtype, `modifier` its atttypmod, -1 without one.
    """

    name: str
    type: str
    kind: str
    modifier: int
    is_array: bool


def source_rows_hash(dsn: str, table: str) -> TableHash:
    """Hash the table's present rows. Raises `NotFound` when there is no such table."""
    with connected(dsn) as connection:
        return hash_of(connection, table, compared_columns(connection, table))


def hash_of(connection: Connection, table: str, columns: Sequence[Column]) -> TableHash:
    """Hash the rows that this connection's transaction sees, over `columns` in their order."""
    row = connection.execute(source_hash_sql(table, columns)).fetchone()
    assert row is not None, "an aggregate without GROUP BY has one row"
    return int(str(row["rows"])), hash_text(int(str(row["high"])), int(str(row["low"])))


def compared_columns(connection: Connection, table: str) -> tuple[Column, ...]:
    """Return the columns that have a canonical text, sorted by name. Raises `NotFound`."""
    schema, name = split_table(table)
    rows = connection.execute(
        """
        WITH RECURSIVE base AS (
            SELECT a.attname, a.atttypid AS type, a.atttypmod AS modifier
              FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
              JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0
               AND NOT a.attisdropped AND a.attgenerated = ''
            UNION ALL
            SELECT b.attname, t.typbasetype, t.typtypmod
              FROM base b JOIN pg_type t ON t.oid = b.type WHERE t.typtype = 'd'
        )
        SELECT b.attname AS name, b.modifier, e.oid IS NOT NULL AS is_array,
               coalesce(e.typname, t.typname) AS type, coalesce(e.typtype, t.typtype) AS kind
          FROM base b JOIN pg_type t ON t.oid = b.type
          LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
         WHERE t.typtype <> 'd'
        """,
        (schema, name),
    ).fetchall()
    if not rows:
        raise NotFound(f"no table {schema}.{name} in the source database")
    columns = [
        Column(
            name=str(row["name"]),
            type=str(row["type"]),
            kind=str(row["kind"]),
            modifier=int(str(row["modifier"])),
            is_array=bool(row["is_array"]),
        )
        for row in rows
    ]
    # Sorted as Python sorts, by code point: the database's collation may differ.
    return tuple(sorted((c for c in columns if _expression(c)), key=lambda c: c.name))


def source_hash_sql(table: str, columns: Sequence[Column]) -> sql.Composed:
    """Return the query for `rows`, `high` and `low`: count, and sums of the halves of row hashes.

    Sums are numerics, not yet modulo 2^64. Columns without a canonical text are a mistake of the
    caller (`compared_columns` leaves them out).
    """
    cells = sql.SQL(" || ',' || ").join(_cell(column) for column in columns)
    # A bit string turns into a signed number: adding 2^64 to negative ones undoes that.
    half = "sum(mod(('x' || substr(h, {}, 16))::bit(64)::bigint::numeric + {}, {}))"
    high, low = (sql.SQL(half.format(start, 2**64, 2**64)) for start in (1, 17))
    return sql.SQL(
        "SELECT count(*) AS rows, coalesce({high}, 0) AS high, coalesce({low}, 0) AS low"
        " FROM (SELECT md5({cells}) AS h FROM {table}) hashed"
    ).format(high=high, low=low, cells=cells, table=sql.Identifier(*split_table(table)))


def _cell(column: Column) -> sql.Composed:
    return _sized(_canonical(column, sql.Identifier(column.name)))


def _sized(text: sql.Composable) -> sql.Composed:
    return sql.SQL("coalesce(length({0}) || ':' || {0}, 'N')").format(text)


def _canonical(column: Column, value: sql.Composable) -> sql.Composed:
    expression = _expression(column)
    assert expression is not None, f"{column.name} has no canonical text"
    if not column.is_array:
        return _nullable(expression, value)
    item = _sized(_nullable(expression, sql.SQL("item")))
    return sql.SQL(
        "CASE WHEN {value} IS NULL THEN NULL ELSE '[' || (SELECT coalesce(string_agg({item}, ','"
        " ORDER BY place), '') FROM unnest({value}) WITH ORDINALITY AS u(item, place)) || ']' END"
    ).format(value=value, item=item)


def _nullable(expression: str, value: sql.Composable) -> sql.Composed:
    return sql.SQL(f"CASE WHEN {{x}} IS NULL THEN NULL ELSE {expression} END").format(x=value)


def _expression(column: Column) -> str | None:
    """Return SQL for the text of value {x}; None when the type has none."""
    if column.is_array and column.kind != "e" and column.type not in _IN_ARRAYS:
        return None
    if column.type == "bit" and column.modifier == 1:
        return "CASE WHEN {x} = B'1' THEN 'true' ELSE 'false' END"
    if column.type == "numeric":
        return "nullif({x}, 'NaN')::text" if _is_decimal(column.modifier) else "{x}::text"
    if column.kind == "e" or column.type in _AS_OUTPUT:
        return "format('%s', {x})"
    return _EXPRESSIONS.get(column.type)


def _is_decimal(modifier: int) -> bool:
    """Whether the lake holds numeric(p, s) as a decimal: at most 38 digits."""
    if modifier < 0:
        return False
    precision = ((modifier - 4) >> 16) & 0xFFFF
    scale = (((modifier - 4) & 0x7FF) ^ 1024) - 1024
    return max(precision - min(scale, 0), scale) <= 38
