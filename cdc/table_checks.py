"""What must be true of each table before it is captured: kind, rights, identity, columns.

Nothing is changed here. A table that is named is refused with its reasons; one that only matches a
pattern is held back, and the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cdc.admission import Check, quoted
from cdc.columns import columns_of
from cdc.database import Connection, Row, split_table
from cdc.key_checks import identity_check, key_checks, set_identity
from cdc.name_checks import name_checks, twin_checks
from cdc.options import TableOptions
from cdc.row_policies import ACTIVE, HIDE_ROWS
from cdc.stream_columns import bars_full, generated_checks
from kernel.errors import NotFound
from schemas.pg_types import SourceColumn, refusal

_VEILS: dict[str, tuple[str, ...] | None] = {
    "exclude": None,
    "mask": ("text", "varchar", "bpchar"),
    "hash": ("text", "varchar"),
}
"""Types that the connector veils; it lets values of all others pass without a word. A char(n) is
padded there and not in an expression, so that its two hashes would differ."""

ORDINARY = "an ordinary, logged table"
HASHED_WHOLE = "REPLICA IDENTITY FULL, for large values that an UPDATE leaves alone"
LISTED_IDENTITY = "REPLICA IDENTITY DEFAULT, where excluded columns stay in the database"
MAY_BE_VEILED = "columns that may be excluded, masked or hashed"
PUBLISHABLE = "ownership, or a publication that covers it"
NOT_DEFERRABLE = "a primary key that is not DEFERRABLE"
HASH_CHARACTERS = 64
_FOUND = f"""
SELECT c.relkind, c.relpersistence,
       -- By the weakest of its partitions: each of them writes its own rows.
       CASE WHEN c.relkind = 'p' THEN (
         SELECT l.relreplident FROM pg_partition_tree(c.oid) p
           JOIN pg_class l ON l.oid = p.relid
          WHERE p.isleaf OR l.oid = c.oid
          ORDER BY position(l.relreplident::text IN 'nidf') LIMIT 1)
       ELSE c.relreplident END AS relreplident,
       ARRAY(
         SELECT l.oid::regclass::text FROM pg_partition_tree(c.oid) p
           JOIN pg_class l ON l.oid = p.relid
          WHERE c.relkind = 'p' AND p.isleaf
            AND (l.relpersistence <> 'p' OR l.relkind <> 'r')
          ORDER BY l.oid LIMIT 3) AS dry,
       {ACTIVE} AS policed, {HIDE_ROWS} AS hides,
       pg_get_userbyid(c.relowner) AS owner, current_user AS role,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS may,
       pg_has_role(c.relowner, 'USAGE') AS owns,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS keyed,
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary
                  AND NOT i.indimmediate) AS deferrable,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid
                  AND a.attgenerated <> '' AND NOT a.attisdropped) AS generated,
       CASE WHEN c.relkind = 'p' THEN EXISTS (
         SELECT FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid
          WHERE p.isleaf AND l.relreplident = 'f')
       ELSE c.relreplident = 'f' END AS mirrored
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %s AND c.relname = %s
"""
OLDEST_COLUMN_LISTS = 150000


def key_columns(connection: Connection, table: str) -> tuple[str, ...]:
    """Return the columns of a table's primary key in the key's order; empty without one.

    Those that its index has beside them (INCLUDE) tell no rows apart.
    """
    schema, name = split_table(table)
    rows = connection.execute(
        """
        SELECT a.attname AS name
          FROM pg_index i
          JOIN pg_class c ON c.oid = i.indrelid
          JOIN pg_namespace n ON n.oid = c.relnamespace
          CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
         WHERE i.indisprimary AND n.nspname = %s AND c.relname = %s
           AND k.place <= i.indnkeyatts
         ORDER BY k.place
        """,
        (schema, name),
    ).fetchall()
    return tuple(str(row["name"]) for row in rows)


def table_checks(
    connection: Connection,
    table: str,
    *,
    key: Sequence[str],
    options: TableOptions,
    published: bool = False,
    copied: bool = True,
) -> tuple[Check, ...]:
    """Check one table. `key` is the declared one, empty where its primary key counts.

    `published`: whether the source's publication covers it as it is to be. `copied`: whether we
    read the rows that are there, and not the connector.
    """
    return tuple(_table(connection, table, key, options, published, copied))


def _table(
    connection: Connection,
    table: str,
    key: Sequence[str],
    options: TableOptions,
    published: bool,
    copied: bool,
) -> Iterator[Check]:
    schema, name = split_table(table)
    found = connection.execute(_FOUND.encode(), (schema, name)).fetchone()
    subject = f"table {schema}.{name}"
    if found is None:
        yield Check(
            subject=subject,
            required="a table of that name",
            found="none",
            ok=False,
            fix=f"Check the name; there are: {_neighbours(connection)}",
        )
        return
    ordinary = _ordinary(subject, found)
    yield ordinary
    if not ordinary.ok:
        return
    yield from _rights(subject, schema, name, found, published)
    yield from _policies(subject, found, published, copied)
    barred = bars_full(connection, found)
    yield identity_check(connection, subject, f"{schema}.{name}", found, key, barred=barred)
    if found["deferrable"]:
        yield _deferrable(subject, f"{schema}.{name}")
    yield from _columns(connection, subject, f"{schema}.{name}", found, key, options, copied)


def _ordinary(subject: str, found: Row) -> Check:
    """Check that the changes of all rows are in the WAL."""
    dry = found["dry"] if isinstance(found["dry"], list) else []
    fix = None
    if found["relkind"] not in ("r", "p") or found["relpersistence"] != "p":
        fix = "Name tables only: nothing else has a stream of changes"
    elif dry:
        fix = f"ALTER TABLE {dry[0]} SET LOGGED; one that is foreign: detach it"
    return Check(
        subject=subject,
        required=ORDINARY,
        found=_kind(found) + (f", of which {', '.join(dry)} unlogged or foreign" if dry else ""),
        ok=fix is None,
        fix=fix,
    )


def _rights(subject: str, schema: str, name: str, found: Row, published: bool) -> Iterator[Check]:
    yield Check(
        subject=subject,
        required="SELECT",
        found="yes" if found["may"] else "no",
        ok=bool(found["may"]),
        fix=None if found["may"] else _grants(schema, name, found["role"]),
        repair=None if found["may"] else _grants(schema, name, found["role"]),
    )
    yield Check(
        subject=subject,
        required=PUBLISHABLE,
        found=f"owned by {found['owner']}" + (", published" if published else ""),
        ok=bool(found["owns"]) or published,
        fix=None
        if found["owns"] or published
        else f"--fix-as DSN of {found['owner']} or of a superuser, who then publishes it for"
        f" {found['role']}",
    )


def _policies(subject: str, found: Row, published: bool, copied: bool) -> Iterator[Check]:
    """Check that what is read of a table are all of its rows."""
    if found["hides"] or (found["policed"] and not copied):
        said = f"row-level policies hide rows from {found['role']}"
        if not found["hides"]:
            said = f"row-level policies apply to {found['role']}: the connector copies under none"
        # The stream has all rows: one that is captured goes on, and is neither copied nor compared.
        yield Check(
            subject=subject,
            required="rows that no row-level policy hides",
            found=said,
            ok=False,
            advice=published,
            fix=f"As a superuser: ALTER ROLE {quoted(found['role'])} BYPASSRLS",
        )


def _grants(schema: str, name: str, role: object) -> str:
    return (
        f"GRANT USAGE ON SCHEMA {quoted(schema)} TO {quoted(role)};"
        f" GRANT SELECT ON {quoted(schema, name)} TO {quoted(role)}"
    )


def _deferrable(subject: str, table: str) -> Check:
    # An UPDATE may give a row the key of one that has it still: no order of changes tells.
    return Check(
        subject=subject,
        required=NOT_DEFERRABLE,
        found="DEFERRABLE",
        ok=False,
        fix=f"Make the primary key of {table} anew, NOT DEFERRABLE",
    )


def _columns(
    connection: Connection,
    subject: str,
    table: str,
    found: Row,
    key: Sequence[str],
    options: TableOptions,
    copied: bool,
) -> Iterator[Check]:
    try:
        columns = {column.name: column for column in columns_of(connection, table)}
    except NotFound:
        columns = {}
    primary = key_columns(connection, table)
    yield from key_checks(subject, table, key, primary, columns, full=found["relreplident"] == "f")
    unmarked = [n for n in columns if n not in options.exclude and n in options.hash]
    barred = bars_full(connection, found)
    if unmarked and found["relreplident"] != "f":
        yield Check(
            subject=subject,
            required=HASHED_WHOLE,
            found=f"columns {', '.join(unmarked)}, identity default",
            ok=False,
            fix=f"Exclude them: {table} has generated columns, under which FULL does harm"
            if barred
            else set_identity(connection, table, "FULL"),
            repair=None if barred else set_identity(connection, table, "FULL"),
        )
    yield from name_checks(subject, table, key, options)
    sent = [name for name, column in columns.items() if not column.generated]
    keys = tuple(key) or primary
    yield from twin_checks(subject, table, sent, keys, options, copied=copied)
    yield from _veils(connection, subject, table, found, key, options, columns)
    yield from generated_checks(
        subject,
        table,
        keys,
        columns,
        options,
        mirrored=barred and bool(found["mirrored"]),
        repairable=bool(found["keyed"]) and found["relkind"] == "r" and not unmarked,
    )


def _veils(
    connection: Connection,
    subject: str,
    table: str,
    found: Row,
    key: Sequence[str],
    options: TableOptions,
    columns: Mapping[str, SourceColumn],
) -> Iterator[Check]:
    """Columns that cannot be captured as they are, or not be veiled as declared."""
    keys = tuple(key) or key_columns(connection, table)
    for name in (*options.exclude, *options.veiled):
        how = next(how for how in _VEILS if name in getattr(options, how))
        reason = _veil_reason(name, columns.get(name), keys, how)
        if reason is not None:
            yield Check(
                subject=subject,
                required=MAY_BE_VEILED,
                found=f"{name}: {reason[0]}",
                ok=False,
                fix=reason[1],
            )
    for column in columns.values():
        said = None if column.name in options.exclude else refusal(column)
        if said is not None:
            yield Check(
                subject=subject,
                required="columns whose values can be kept as they are",
                found=f"{column.name}: {said}",
                ok=False,
                fix=f'exclude = ["{column.name}"] for {table}, or change its type',
            )
    if options.withhold and connection.info.server_version < OLDEST_COLUMN_LISTS:
        yield Check(
            subject=subject,
            required="PostgreSQL 15, for excluded columns to stay in the database",
            found="older: the connector leaves them out",
            ok=False,
            advice=True,
        )
    if options.withhold and found["mirrored"] and options.exclude:
        yield Check(
            subject=subject,
            required=LISTED_IDENTITY,
            found="full: PostgreSQL would refuse each UPDATE of the application",
            ok=False,
            fix=f"Leave withhold out for {table}, or"
            f" {set_identity(connection, table, 'DEFAULT', of='f')}",
        )


def _veil_reason(
    name: str, column: SourceColumn | None, keys: Sequence[str], how: str
) -> tuple[str, str] | None:
    """Return why a column may not be excluded or veiled, and what to do."""
    if column is None:
        return "no such column", "Correct its name"
    if name in keys:
        return "it is part of the key", "Keep it: rows are told apart by it"
    types = _VEILS[how]
    if types is not None and (column.is_array or column.type not in types):
        kind = f"{column.type}[]" if column.is_array else column.type
        return f"{how} does not work on {kind}", "exclude it instead"
    return _hash_reason(column) if how == "hash" else None


def _hash_reason(column: SourceColumn) -> tuple[str, str] | None:
    length = column.modifier - 4
    if column.type == "varchar" and 0 <= length < HASH_CHARACTERS:
        return (
            f"a hash has {HASH_CHARACTERS} characters, varchar({length}) would cut it",
            f"ALTER the column to varchar({HASH_CHARACTERS}) or text, or exclude it",
        )
    return None


def _kind(found: Row) -> str:
    kinds = {
        "r": "table",
        "p": "partitioned table",
        "v": "view",
        "m": "materialized view",
        "f": "foreign table",
        "S": "sequence",
    }
    kind = kinds.get(str(found["relkind"]), str(found["relkind"]))
    persistence = {"u": "unlogged ", "t": "temporary "}.get(str(found["relpersistence"]), "")
    return persistence + kind


def _neighbours(connection: Connection) -> str:
    rows = connection.execute(
        """
        SELECT schemaname || '.' || tablename AS name FROM pg_tables
         WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 20
        """
    ).fetchall()
    return ", ".join(str(row["name"]) for row in rows) or "none"
