"""The canonical text of a column's values (`schemas.row_hash`) as an SQL expression.

Text is what the lake holds, so that equal texts mean equal values. The session must print as
`cdc.columns.set_text_output` sets it.
"""

from __future__ import annotations

from psycopg import sql

from schemas.pg_types import SourceColumn, decimal_of

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


def has_text(column: SourceColumn) -> bool:
    """Whether the column's values have a canonical text, so that they can be compared."""
    return not column.generated and _expression(column) is not None


def cell(column: SourceColumn) -> sql.Composed:
    """Return SQL for the canonical text of a column with its length, `N` for null."""
    return _sized(_canonical(column, sql.Identifier(column.name)))


def _sized(text: sql.Composable) -> sql.Composed:
    return sql.SQL("coalesce(length({0}) || ':' || {0}, 'N')").format(text)


def _canonical(column: SourceColumn, value: sql.Composable) -> sql.Composed:
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


def _expression(column: SourceColumn) -> str | None:
    """Return SQL for the text of value {x}; None when the type has none."""
    if column.is_array and column.kind != "e" and column.type not in _IN_ARRAYS:
        return None
    if column.type == "bit" and column.modifier == 1:
        return "CASE WHEN {x} = B'1' THEN 'true' ELSE 'false' END"
    if column.type == "numeric":
        return "nullif({x}, 'NaN')::text" if decimal_of(column.modifier) else "{x}::text"
    if column.kind == "e" or column.type in _AS_OUTPUT:
        return "format('%s', {x})"
    return _EXPRESSIONS.get(column.type)
