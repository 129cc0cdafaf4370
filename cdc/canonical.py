"""The canonical text of a column's values (`schemas.row_hash`) as an SQL expression.

Text is what the lake holds, so that equal texts mean equal values: what a lake type cannot hold
(`schemas.pg_exact`) is null or saturated here as there. The session must print as
`cdc.columns.set_text_output` sets it; `format('%s', x)` then is the output function of any type,
where `x::text` would strip a char(n).
"""

from __future__ import annotations

from psycopg import sql

from cdc.database import Connection
from schemas.pg_types import SourceColumn, decimal_of

_OUTPUT = "format('%s', {x})"

_EXPRESSIONS = {
    "bool": "CASE WHEN {x} THEN 'true' ELSE 'false' END",
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
}


def recoded(connection: Connection) -> bool:
    """Whether the server keeps text in another encoding than the lake, which has UTF-8.

    SQL_ASCII is none: its bytes are what they are.
    """
    encoding = connection.info.parameter_status("server_encoding")
    return encoding not in ("UTF8", "SQL_ASCII")


def md5_of(text: sql.Composable, *, recoded: bool) -> sql.Composed:
    """Return SQL for the hash of a text in UTF-8: md5(text) hashes the bytes that the server keeps.

    Where those are UTF-8 the plain form is taken, which is faster.
    """
    form = "md5(convert_to({}, 'UTF8'))" if recoded else "md5({})"
    return sql.SQL(form).format(text)


def has_text(column: SourceColumn) -> bool:
    """Whether the column's values are compared: generated columns are not captured."""
    return not column.generated


def cell(column: SourceColumn, value: sql.Composable | None = None) -> sql.Composed:
    """Return SQL for the canonical text of a column with its length, `N` for null.

    `value` stands for the column where the source shows another value (masked, hashed).
    """
    return _sized(_canonical(column, value or sql.Identifier(column.name)))


def _sized(text: sql.Composable) -> sql.Composed:
    return sql.SQL("coalesce(length({0}) || ':' || {0}, 'N')").format(text)


def _canonical(column: SourceColumn, value: sql.Composable) -> sql.Composed:
    expression = _expression(column)
    if not column.is_array:
        return _nullable(expression, value)
    item = _sized(_nullable(expression, sql.SQL("item")))
    depths = range(1, column.dimensions + 1)
    fits = " AND ".join(
        ["array_ndims({value}) = {depth}", *(f"array_lower({{value}}, {d}) = 1" for d in depths)]
    )
    sizes = " || 'x' || ".join(f"array_length({{value}}, {d})" for d in depths)
    # Several dimensions are told by their sizes, then all items; the empty array has none.
    before = "" if column.dimensions == 1 else f"coalesce({sizes}, '') || "
    # In the FROM clause, unnest would cut composite items into their fields.
    return sql.SQL(
        f"CASE WHEN cardinality({{value}}) = 0 OR ({fits}) THEN {before}'[' ||"
        " (SELECT coalesce(string_agg({item}, ',' ORDER BY place), '') FROM (SELECT"
        " unnest({value}) AS item, generate_series(1, cardinality({value})) AS place) items)"
        " || ']' END"
    ).format(value=value, item=item, depth=sql.Literal(column.dimensions))


def _nullable(expression: str, value: sql.Composable) -> sql.Composed:
    # A composite of nulls IS NULL, but it is a value.
    return sql.SQL(f"CASE WHEN {{x}} IS DISTINCT FROM NULL THEN {expression} END").format(x=value)


def _expression(column: SourceColumn) -> str:
    """Return SQL for the text of value {x}."""
    if column.type == "bit" and column.modifier == 1:
        return "CASE WHEN {x} = B'1' THEN 'true' ELSE 'false' END"
    if column.type == "numeric":
        return "nullif({x}, 'NaN')::text" if decimal_of(column.modifier) else "{x}::text"
    if column.kind != "b":
        return _OUTPUT
    return _EXPRESSIONS.get(column.type, _OUTPUT)
