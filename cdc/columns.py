"""What PostgreSQL's catalog says of a table's columns, and the session in which text is exact."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from cdc.database import Connection, split_table
from kernel.errors import NotFound
from schemas.lake_columns import numbers
from schemas.pg_types import Caveat, SourceColumn, type_text

TEXT_SETTINGS = {
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "iso_8601",
    "TimeZone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
}
"""Settings under which a value has one text, the one that `schemas.pg_text` reads. `xmloption`
and the rest change nothing that is printed; money follows `lc_monetary`: see `schemas.pg_text`."""

# A true array is the one that its item names (typarray); int2vector only looks like one. Domains
# are followed on both sides of an array, but not through a second array: its items are text.
# A NOT NULL that is NOT VALID (PostgreSQL 18) says nothing of older rows.
_COLUMNS = """
WITH RECURSIVE base AS (
    SELECT a.attrelid, a.attnum, a.attname, a.atttypid AS declared, a.atttypid AS root,
           a.atttypid AS type,
           a.atttypmod AS modifier,
           a.attndims::int AS dimensions, a.attnotnull, a.attgenerated, false AS is_array,
           false AS domain
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
      JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT b.attrelid, b.attnum, b.attname, b.declared,
           CASE WHEN b.is_array OR e.oid IS NOT NULL THEN b.root ELSE t.typbasetype END,
           coalesce(e.oid, t.typbasetype),
           CASE WHEN e.oid IS NULL AND t.typtypmod >= 0 THEN t.typtypmod ELSE b.modifier END,
           CASE WHEN b.is_array THEN b.dimensions ELSE greatest(b.dimensions, t.typndims) END,
           b.attnotnull, b.attgenerated, b.is_array OR e.oid IS NOT NULL,
           b.domain OR e.oid IS NULL
      FROM base b JOIN pg_type t ON t.oid = b.type
      LEFT JOIN pg_type e ON e.typarray = t.oid AND NOT b.is_array
     WHERE t.typtype = 'd' OR e.oid IS NOT NULL
)
SELECT b.attname AS name, b.root, b.domain, t.typname AS type, t.typtype::text AS kind,
       b.modifier, b.is_array,
       CASE WHEN b.is_array THEN greatest(b.dimensions, 1) ELSE 0 END AS dimensions,
       b.attnotnull AND NOT EXISTS (
           SELECT FROM pg_constraint k
            WHERE k.conrelid = b.attrelid AND k.contype = 'n' AND NOT k.convalidated
              AND b.attnum = ANY (k.conkey)) AS not_null,
       b.attgenerated::text AS generated, t.typdelim::text AS delimiter,
       CASE WHEN t.typname = 'money' AND '1234.56'::numeric::money::text !~ '^[^0-9.,]*1,?234[.]56$'
            THEN 'locale'
            WHEN t.typname = 'interval' AND NOT b.is_array
             AND current_setting('server_version_num')::int >= 170000
             AND NOT EXISTS (
                 SELECT FROM pg_constraint k
                  WHERE k.convalidated AND k.contype = 'c'
                    AND (k.conrelid = b.attrelid AND b.attnum = ANY (k.conkey)
                         AND pg_get_constraintdef(k.oid)
                             = format('CHECK (isfinite(%%I))', b.attname)
                         OR k.contypid = b.declared
                         AND pg_get_constraintdef(k.oid) = 'CHECK (isfinite(VALUE))'))
            THEN 'infinite' ELSE '' END AS caveat
  FROM base b JOIN pg_type t ON t.oid = b.type
 WHERE t.typtype <> 'd'
   AND (b.is_array OR NOT EXISTS (SELECT FROM pg_type e WHERE e.typarray = t.oid))
 ORDER BY b.attnum
"""


def columns_of(connection: Connection, table: str) -> tuple[SourceColumn, ...]:
    """Return all columns in table order, domains resolved, generated ones included.

    Raises `NotFound` when there is no such table, or none with columns.
    """
    schema, name = split_table(table)
    rows = connection.execute(_COLUMNS, (schema, name)).fetchall()
    if not rows:
        raise NotFound(f"no table {schema}.{name} in the source database")
    sent = [str(row["name"]) for row in rows if not str(row["generated"]).strip("\0")]
    number = dict(zip(sent, numbers(sent), strict=True))
    return tuple(
        SourceColumn(
            name=str(row["name"]),
            type=str(row["type"]),
            kind=str(row["kind"]),
            modifier=int(str(row["modifier"])),
            is_array=bool(row["is_array"]),
            dimensions=int(str(row["dimensions"])),
            not_null=bool(row["not_null"]),
            generated=str(row["generated"]).strip("\0"),
            delimiter=str(row["delimiter"]),
            root=int(str(row["root"])),
            domain=bool(row["domain"]),
            caveat=_caveat(str(row["caveat"])),
            number=number.get(str(row["name"]), 1),
        )
        for row in rows
    )


def described(connection: Connection, tables: Iterable[str]) -> str:
    """Describe the columns whose type the connector does not see, for `PostgresText`.

    Those are arrays (their dimensions, and what their items are) and domains, which it takes for a
    type of their own: `schema.table.column:oid:type`, each part URL-encoded, joined by commas.
    """
    return ",".join(
        ":".join((quote(f"{table}.{column.name}", safe="."), str(column.root), spelled))
        for table in tables
        for column in columns_of(connection, table)
        if column.is_array or (column.domain and column.type not in _DOMAINS_SEEN)
        for spelled in (quote(type_text(column), safe=""),)
    )


_DOMAINS_SEEN = frozenset(
    (
        *("bool", "int2", "int4", "int8", "oid", "float4", "float8", "text", "varchar", "bpchar"),
        *("bytea", "time", "timestamp", "timestamptz", "uuid", "json", "jsonb"),
    )
)
"""Base types of domains whose values the connector brings whole, as those types."""


def _caveat(found: str) -> Caveat:
    match found:
        case "infinite" | "locale":
            return found
        case _:
            return ""


def set_text_output(connection: Connection) -> None:
    """Make this session print values in their one text (`TEXT_SETTINGS`)."""
    for name, value in TEXT_SETTINGS.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))
