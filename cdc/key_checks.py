"""Which keys tell rows apart, declared ones and those of tables, and what a change says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import psycopg

from cdc.admission import Check, quoted
from cdc.database import Connection, Row, split_table
from schemas.pg_types import SourceColumn

IDENTITY = "a primary key, or REPLICA IDENTITY FULL and a declared key"
NO_ARRAYS = "a key without arrays"
NO_NULLS = "NOT NULL for the columns of its declared key"
UNIQUE = "a declared key that no two rows have"
GUARDED = "a unique index on its declared key"
TOLD_WHOLE = "REPLICA IDENTITY FULL, for a declared key that is not the primary key"

_IDENTITIES = {"d": "default", "f": "full", "i": "index", "n": "nothing"}
_LOOKED_AT = 1_000_000
_LOOK_TIMEOUT = "10s"
_UNIQUE_INDEX = """
SELECT c.relkind = 'p' AS parted, (
  SELECT bool_or(i.indimmediate) FROM pg_index i
   WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid
     AND i.indpred IS NULL AND i.indexprs IS NULL
     AND NOT EXISTS (
       SELECT FROM unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
         JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        WHERE k.place <= i.indnkeyatts AND a.attname <> ALL (%s))) AS immediate
  FROM pg_class c WHERE c.oid = %s::regclass
"""


def identity_check(
    connection: Connection,
    subject: str,
    table: str,
    found: Row,
    key: Sequence[str],
    *,
    barred: bool,
) -> Check:
    """Check what PostgreSQL tells of a row that is updated or deleted; `found` has it of a table.

    `barred`: FULL would make it refuse the changes (`stream_columns.bars_full`).
    """
    keyed, identity = bool(found["keyed"]), str(found["relreplident"])
    by_key = keyed and identity in ("d", "f")
    declared = bool(key) and identity == "f"
    has = "primary key" if keyed else f"declared key {', '.join(key)}" if key else "no key"
    fix = repair = None
    if not (by_key or declared):
        full = None if barred else "FULL"
        wanted = full if key and not keyed else "DEFAULT" if keyed else None
        lesser = "nid" if wanted == "FULL" else "ni"
        repair = set_identity(connection, table, wanted, of=lesser) if wanted else None
        fix = (
            repair
            if repair
            else f"ALTER TABLE {_quoted(table)} ADD PRIMARY KEY (…)"
            if barred
            else f"ALTER TABLE {_quoted(table)} ADD PRIMARY KEY (…). Or"
            f" {set_identity(connection, table, 'FULL')}, and declare a unique key:"
            f" --key {table}:COLUMN"
        )
    return Check(
        subject=subject,
        required=IDENTITY,
        found=f"{has}, replica identity {_IDENTITIES.get(identity, identity)}",
        ok=by_key or declared,
        fix=fix,
        repair=repair,
    )


def set_identity(connection: Connection, table: str, identity: str, *, of: str = "nid") -> str:
    """Return the SQL that gives a table, and each of its partitions, an identity.

    Those get it that have one `of` these letters: ALTER TABLE of a partitioned table alters none of
    its partitions.
    """
    schema, name = split_table(table)
    # By catalogs: a cast to `regclass` asks for a right to the schema.
    rows = connection.execute(
        """
        WITH asked AS (
          SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
           WHERE n.nspname = %(schema)s AND c.relname = %(name)s)
        SELECT n.nspname AS schema, l.relname AS name
          FROM pg_class l JOIN pg_namespace n ON n.oid = l.relnamespace
         WHERE l.relreplident::text = ANY (%(of)s)
           AND (l.oid IN (SELECT oid FROM asked) OR l.oid IN (
             SELECT p.relid FROM asked, pg_partition_tree(asked.oid) p WHERE p.isleaf))
         ORDER BY l.oid
        """,
        {"schema": schema, "name": name, "of": list(of)},
    ).fetchall()
    names = [quoted(row["schema"], row["name"]) for row in rows] or [_quoted(table)]
    return "; ".join(f"ALTER TABLE {name} REPLICA IDENTITY {identity}" for name in names)


def _quoted(table: str) -> str:
    return quoted(*split_table(table))


def key_checks(
    subject: str,
    table: str,
    key: Sequence[str],
    primary: Sequence[str],
    columns: Mapping[str, SourceColumn],
    *,
    full: bool,
) -> Iterator[Check]:
    """Check the declared key of a table, empty where its `primary` one counts.

    `full`: its replica identity is FULL.
    """
    name = _quoted(table)
    whole = f"ALTER TABLE {name} REPLICA IDENTITY FULL"
    missing = [each for each in key if each not in columns]
    if missing:
        yield Check(
            subject=subject,
            required="the columns of its declared key",
            found=f"no column {', '.join(missing)}",
            ok=False,
            fix="Correct --key",
        )
    empty = [each for each in key if each in columns and not columns[each].not_null]
    if empty:
        yield Check(
            subject=subject,
            required=NO_NULLS,
            found=f"{', '.join(empty)} may be null: rows without a key cannot be told apart",
            ok=False,
            fix=f"ALTER TABLE {name} ALTER COLUMN {quoted(empty[0])} SET NOT NULL,"
            " or declare others",
        )
    if key and primary and set(key) != set(primary) and not full:
        yield Check(
            subject=subject,
            required=TOLD_WHOLE,
            found=f"declared {', '.join(key)}: a DELETE tells {', '.join(primary)} alone",
            ok=False,
            fix=f"Leave the declared key out, or {whole}",
        )
    lists = [each for each in key or primary if each in columns and columns[each].is_array]
    if lists:
        yield Check(
            subject=subject,
            required=NO_ARRAYS,
            found=f"{', '.join(lists)}: rows cannot be told apart by arrays",
            ok=False,
            fix=f"{whole}, and declare another unique key: --key {table}:COLUMN",
        )


def unique_checks(connection: Connection, table: str, key: Sequence[str]) -> Iterator[Check]:
    """Look whether rows of a table have equal declared keys: they would be one row of the lake.

    A unique index answers that; without one a million rows are looked at, for ten seconds at most.
    A constraint that is DEFERRABLE lets rows have one key for a while, and no order of their
    changes tells which of them is left.
    """
    name = _quoted(table)
    row = connection.execute(_UNIQUE_INDEX, (list(key), name)).fetchone()
    if row is None or row["immediate"]:
        return
    columns = ", ".join(key)
    if row["immediate"] is False:
        yield Check(
            subject=f"table {table}",
            required=UNIQUE,
            found=f"DEFERRABLE: an UPDATE may give a row the {columns} that another one has still",
            ok=False,
            fix=f"Make the unique constraint of {name} anew, NOT DEFERRABLE",
        )
        return
    rows, doubled = _doubled(connection, name if row["parted"] else f"ONLY {name}", key)
    if doubled:
        yield Check(
            subject=f"table {table}",
            required=UNIQUE,
            found=f"{doubled} values of {columns} in several rows",
            ok=False,
            fix=f"Declare columns that are unique together, or make {columns} unique in {name}",
        )
        return
    yield Check(
        subject=f"table {table}",
        required=GUARDED,
        found="none, and its rows could not be looked at in time"
        if rows is None
        else f"none; among {rows} rows no two have the same {columns}",
        ok=False,
        fix=f"CREATE UNIQUE INDEX ON {name} ({', '.join(map(quoted, key))})",
        advice=True,
    )


def _doubled(connection: Connection, relation: str, key: Sequence[str]) -> tuple[int | None, int]:
    """Return how many rows were looked at, None where that took too long, and doubled values."""
    columns = ", ".join(map(quoted, key))
    query = (
        "SELECT coalesce(sum(n), 0)::bigint AS rows, count(*) FILTER (WHERE n > 1) AS doubled"
        f" FROM (SELECT count(*) AS n FROM (SELECT {columns} FROM {relation} LIMIT {_LOOKED_AT}) r"
        f" GROUP BY {columns}) g"
    )
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL statement_timeout = '{_LOOK_TIMEOUT}'".encode())
            row = connection.execute(query.encode()).fetchone()
    except (psycopg.errors.QueryCanceled, psycopg.errors.UndefinedFunction):
        # A type without an order or equality of its own cannot be grouped by.
        return None, 0
    assert row is not None
    return int(str(row["rows"])), int(str(row["doubled"]))
