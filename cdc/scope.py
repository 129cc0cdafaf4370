"""Which tables a source captures at this moment: the named ones, and those that match a pattern.

    Source -> scope_of -> Scope(tables, held, checks) -> publication, connector, catalog

Resolved anew each time: a table that is made later and matches joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cdc.admission import Check, server_checks
from cdc.columns import columns_of, described
from cdc.database import Connection
from cdc.key_checks import IDENTITY, NO_ARRAYS, NO_NULLS, TOLD_WHOLE, unique_checks
from cdc.name_checks import FOLDER_NAME, OWN_TOPIC, TOLD_APART, measured_topic, topic_checks
from cdc.options import COPY, TableOptions, matches
from cdc.replication import wholly_published
from cdc.sources import Source
from cdc.stream_columns import KEY_IS_SENT, PLAIN_IDENTITY
from cdc.table_checks import (
    HASHED_WHOLE,
    LISTED_IDENTITY,
    MAY_BE_VEILED,
    NOT_DEFERRABLE,
    OLDEST_COLUMN_LISTS,
    ORDINARY,
    PUBLISHABLE,
    key_columns,
    table_checks,
)
from kernel.errors import Misconfigured

_OWN_ROWS = "a table that is no partition of another one of the source"
_APART = frozenset(
    (
        *(TOLD_APART, OWN_TOPIC, FOLDER_NAME, NO_ARRAYS, NO_NULLS, TOLD_WHOLE),
        *(KEY_IS_SENT, PLAIN_IDENTITY, IDENTITY, LISTED_IDENTITY, HASHED_WHOLE),
        *(ORDINARY, NOT_DEFERRABLE, _OWN_ROWS),
    )
)
"""What a table lacks that is held where its source runs on."""

_TABLES = """
SELECT n.nspname || '.' || c.relname AS name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
   AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
   AND position('.' IN c.relname) = 0 AND position('.' IN n.nspname) = 0
 ORDER BY 1
"""

_IDENTITIES = """
SELECT n.nspname || '.' || c.relname AS name,
       (c.oid, c.relispartition, c.relkind, c.relpersistence, c.relreplident, i.indexrelid,
         i.indkey, ARRAY(
         SELECT a.attname FROM pg_attribute a
          WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey) ORDER BY a.attnum), ARRAY(
         SELECT a.attnum FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated <> ''
            AND NOT a.attisdropped ORDER BY a.attnum), ARRAY(
         SELECT DISTINCT concat(l.relkind, l.relpersistence, l.relreplident)
           FROM pg_partition_tree(c.oid) p JOIN pg_class l ON l.oid = p.relid
          WHERE p.isleaf ORDER BY 1))::text
       AS identity
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
 WHERE n.nspname || '.' || c.relname = ANY (%s)
"""

_ROOTS = """
SELECT n.nspname || '.' || c.relname AS name, an.nspname || '.' || ac.relname AS root
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN LATERAL pg_partition_ancestors(c.oid) AS a (oid)
  JOIN pg_class ac ON ac.oid = a.oid JOIN pg_namespace an ON an.oid = ac.relnamespace
 WHERE c.relispartition AND a.oid <> c.oid AND n.nspname || '.' || c.relname = ANY (%(meant)s)
   AND an.nspname || '.' || ac.relname = ANY (%(meant)s)
"""

_TWINS = r"""
SELECT n.nspname || '.' || c.relname AS name, array_agg(a.attname ORDER BY a.attnum) AS columns
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname || '.' || c.relname = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped
 GROUP BY n.nspname, c.relname
HAVING count(*) > count(DISTINCT lower(a.attname)) OR bool_or(a.attname ~ '[^\x01-\x7f]')
 ORDER BY 1
"""
"""Of a name the catalog knows the case of ASCII letters alone: where there are others, all columns
decide."""

_COLUMNS = """
SELECT n.nspname || '.' || c.relname AS name, a.attname AS column,
       (a.attnum, a.atttypid, a.atttypmod)::text AS type,
       NOT a.attnotnull OR EXISTS (
           SELECT FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'n'
              AND NOT k.convalidated AND a.attnum = ANY (k.conkey)) AS nullable
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname || '.' || c.relname = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY 1, a.attnum
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a source captures now.

    `tables` maps each captured table to its key columns, `columns` those whose publication lists
    columns to them. `held` says why a table that matches a pattern is not captured. `checks` are
    all that were made, of held tables as advice. `publishable` are the tables that lack nothing,
    or nothing but to be published by a role that may.
    """

    tables: Mapping[str, tuple[str, ...]]
    columns: Mapping[str, tuple[str, ...]]
    options: Mapping[str, TableOptions]
    held: Mapping[str, str]
    checks: tuple[Check, ...]
    publishable: tuple[str, ...] = ()
    described: str = ""
    """Column types that the connector does not see (`cdc.columns.described`)."""
    server: int = 0
    """The version of its server, as 170004."""

    @property
    def bare(self) -> Mapping[tuple[str, str], str]:
        """Columns, by table and name, that cannot be excluded or veiled as declared, and why."""
        found = {}
        for check in self.checks:
            if check.required == MAY_BE_VEILED and not check.ok and not check.advice:
                column, _, why = check.found.partition(": ")
                found[check.subject.removeprefix("table "), column] = why
        return found


def scope_of(
    source: Source,
    connection: Connection,
    name: str,
    *,
    slot: bool = True,
    runs: bool = False,
) -> Scope:
    """Resolve patterns and check server, role and every table; changes nothing.

    `name` is that of the publication and of the slot; `slot`: whether the slot is looked at. Of a
    source that `runs` a table whose columns, topic or rows can no longer be told apart is held,
    named or not: the connector would not start again with it, or nothing could follow it; whether
    rows have equal declared keys is asked of one that does not run. Tables come in the order
    declared, those of a pattern by name.
    """
    checks = list(server_checks(connection, name, slot=slot))
    covered = wholly_published(connection, name) or {}
    tables: dict[str, tuple[str, ...]] = {}
    held: dict[str, str] = {}
    sound: list[str] = []
    publishable: list[str] = []
    declared = _declared(source, connection)
    made = _checked(source, connection, declared, covered, with_rows=not runs)
    for table, named in declared.items():
        key, found = source.keys.get(table, ()), made[table]
        failed = [check for check in found if not check.ok and not check.advice]
        if not failed:
            sound.append(table)
        lacks = {check.required for check in failed}
        if lacks <= {PUBLISHABLE}:
            publishable.append(table)
        if not failed or (named and not (runs and lacks & _APART)):
            checks.extend(found)
            tables[table] = tuple(key or key_columns(connection, table))
        else:
            checks.extend(_advice(check) for check in found)
            held[table] = "; ".join(f"{c.required} is required, found {c.found}" for c in failed)
    if not tables:
        raise _nothing_left(source, held)
    return Scope(
        tables=tables,
        columns=columns_listed(source, connection, tables),
        options={table: source.options_of(table) for table in tables},
        held=held,
        checks=tuple(checks),
        publishable=tuple(publishable),
        described=described(connection, sound),
        server=connection.info.server_version,
    )


def _nothing_left(source: Source, held: Mapping[str, str]) -> Misconfigured:
    reasons = "; ".join(f"{table}: {reason}" for table, reason in held.items())
    if reasons:
        return Misconfigured(
            f"source {source.name}: no table can be captured: {reasons}",
            remedy=f"penstock source check {source.name} names what each of them lacks.",
        )
    return Misconfigured(
        f"source {source.name}: no table matches {', '.join(source.patterns)}",
        remedy="Correct the pattern, or make a table first.",
    )


def _checked(
    source: Source,
    connection: Connection,
    declared: Mapping[str, bool],
    covered: Mapping[str, tuple[str, ...] | None],
    *,
    with_rows: bool,
) -> dict[str, tuple[Check, ...]]:
    """Check each table by itself, and its topic against those before it: captured ones come first.

    A table that is not captured takes no topic. `with_rows`: the rows of a table whose key is
    declared are looked at, too.
    """
    found: dict[str, tuple[Check, ...]] = {}
    taken: dict[str, str] = {}
    rows = connection.execute(_ROOTS.encode(), {"meant": list(declared)}).fetchall()
    roots = {str(row["name"]): str(row["root"]) for row in rows}
    for table in sorted(declared, key=lambda each: each not in covered):
        own = table_checks(
            connection,
            table,
            key=source.keys.get(table, ()),
            options=source.options_of(table),
            published=_is_published(source, connection, table, covered),
            copied=source.snapshot == COPY,
        )
        topic = measured_topic(table)
        others = (*topic_checks(f"table {table}", table, taken.get(topic)), *_parts(table, roots))
        key = source.keys.get(table, ()) if with_rows and _sound(own) else ()
        found[table] = (*own, *others, *(unique_checks(connection, table, key) if key else ()))
        if declared[table] or _sound(found[table]):
            taken.setdefault(topic, table)
    return found


def _sound(checks: Iterable[Check]) -> bool:
    return all(check.ok or check.advice for check in checks)


def _parts(table: str, roots: Mapping[str, str]) -> Iterator[Check]:
    """Check that the rows of a table come as its own: those of a partition come as its root's."""
    if table in roots:
        yield Check(
            subject=f"table {table}",
            required=_OWN_ROWS,
            found=f"a partition of {roots[table]}, which has all of its changes",
            ok=False,
            fix=f"Leave {table} out: its rows are in {roots[table]}",
        )


def captured_tables(source: Source, connection: Connection) -> tuple[str, ...]:
    """Return the tables that a source means now, refused ones included; cheap."""
    return tuple(_declared(source, connection))


def fingerprint(source: Source, connection: Connection, publication: str) -> tuple[object, ...]:
    """Return what decides on a source's scope: when it differs, the scope is to be resolved anew.

    The tables that are meant, with the identity and the key that PostgreSQL gives them (a table
    that was dropped and made again is another one, a key whose column was renamed is another key),
    what the publication covers, the columns of tables whose columns are listed, and the types of
    columns that are to be left out or veiled: the connector lets them pass under another name; and
    which tables have columns that differ by case alone, and which columns of declared keys may be
    null. Cheap: six queries, without a look at rights.
    """
    meant = captured_tables(source, connection)
    rows = connection.execute(_IDENTITIES.encode(), (list(meant),)).fetchall()
    there = {str(row["name"]): str(row["identity"]) for row in rows}
    covered = wholly_published(connection, publication) or {}
    lists = columns_listed(source, connection, there)
    return (
        tuple((table, there.get(table)) for table in meant),
        tuple(sorted(covered.items())),
        tuple(sorted(lists.items())),
        _veiled(source, connection, there),
        _nullable(source, connection),
        tuple(str(row) for row in connection.execute(_TWINS.encode(), (list(there),)).fetchall()),
    )


def joining(scope: Scope, connection: Connection, publication: str) -> tuple[str, ...]:
    """Return the tables that the publication is to cover and does not, or not all their columns."""
    covered = wholly_published(connection, publication) or {}

    def lacks(table: str) -> bool:
        before, now = covered.get(table, ()), scope.columns.get(table)
        return before is not None and (now is None or not set(now) <= set(before))

    return tuple(table for table in scope.tables if table not in covered or lacks(table))


def _declared(source: Source, connection: Connection) -> dict[str, bool]:
    """Map each table that is meant to whether it is named, not only matched."""
    found: dict[str, bool] = {
        table: True for table in source.tables if table not in source.patterns
    }
    if source.patterns:
        names = [str(row["name"]) for row in connection.execute(_TABLES.encode()).fetchall()]
        for pattern in source.patterns:
            found |= {name: False for name in names if matches(pattern, name) and name not in found}
    return found


def _is_published(
    source: Source,
    connection: Connection,
    table: str,
    covered: Mapping[str, tuple[str, ...] | None],
) -> bool:
    if table not in covered:
        return False
    wanted, listed = columns_listed(source, connection, (table,)).get(table), covered[table]
    return (None if wanted is None else set(wanted)) == (None if listed is None else set(listed))


def _veiled(
    source: Source, connection: Connection, tables: Iterable[str]
) -> tuple[tuple[str, str, str], ...]:
    """Return (table, column, type) of the columns that are declared excluded, masked or hashed."""
    options = {table: source.options_of(table) for table in tables}
    names = {table: {*said.exclude, *said.veiled} for table, said in options.items()}
    wanted = [table for table, columns in names.items() if columns]
    if not wanted:
        return ()
    rows = connection.execute(_COLUMNS.encode(), (wanted,)).fetchall()
    found = ((str(row["name"]), str(row["column"]), str(row["type"])) for row in rows)
    return tuple(each for each in found if each[1] in names[each[0]])


def _nullable(source: Source, connection: Connection) -> tuple[tuple[str, str], ...]:
    """Return (table, column) of the columns of declared keys that may be null."""
    if not source.keys:
        return ()
    rows = connection.execute(_COLUMNS.encode(), ([*source.keys],)).fetchall()
    found = ((str(row["name"]), str(row["column"])) for row in rows if row["nullable"])
    return tuple(each for each in found if each[1] in source.keys[each[0]])


def columns_listed(
    source: Source, connection: Connection, tables: Iterable[str]
) -> dict[str, tuple[str, ...]]:
    """Return the columns to publish of tables whose excluded ones stay in the database."""
    if connection.info.server_version < OLDEST_COLUMN_LISTS:
        return {}
    found = {}
    for table in tables:
        options = source.options_of(table)
        if options.withhold and options.exclude:
            found[table] = tuple(
                column.name
                for column in columns_of(connection, table)
                if column.name not in options.exclude and not column.generated
            )
    return found


def _advice(check: Check) -> Check:
    return Check(
        subject=check.subject,
        required=check.required,
        found=check.found,
        ok=check.ok,
        fix=check.fix,
        advice=True,
        repair=check.repair,
        restart=check.restart,
    )
