"""Rows of a source table as hashes, computed by PostgreSQL: by ranges, by keys, by columns.

What is hashed is the canonical text of `schemas.row_hash`, of the values as they leave the source:
masked and hashed columns as the connector makes them, excluded ones not at all. A row's key is
named by the canonical cells of its key columns, joined by `,`: the same text on both sides.

Everything reads what the connection's transaction sees; nothing here opens one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from cdc import ranges
from cdc.canonical import cell, has_text, md5_of, recoded
from cdc.columns import columns_of
from cdc.database import Connection, split_table
from cdc.masking import hand_salt, select_list
from cdc.options import PLAIN, TableOptions
from cdc.row_policies import heed_policies
from cdc.snapshot.chunks import from_clause
from kernel.errors import InvalidRequest
from schemas.key_ranges import WHOLE, Bound, KeyColumn, KeyOrder, KeyRange, ordered_key
from schemas.pg_types import SourceColumn
from schemas.row_hash import hash_text

SEVERAL = "several rows"
"""Stands for the hash of a key that the source has more than once: no row of the lake has it."""
_SAMPLES_PER_RANGE = 32
_FETCH_ROWS = 5_000
_ORDERED_AS_UTF8 = ("UTF8", "SQL_ASCII", "LATIN1")
_ONCE = sql.SQL("clock_timestamp() AS once")
"""Keeps PostgreSQL from computing a row's hash anew for each half of it: it does not merge a
subquery with a volatile column into its parent. Half of the time, measured; still parallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """How a table is compared. `key` are the key's columns, `ordered` None where it has no ranges.
    `relation` is what FROM takes. `recoded`: the server keeps text in another encoding than UTF-8.

    `compared` are sorted by name; `left_out` says why each other column is not compared.
    """

    name: str
    key: tuple[SourceColumn, ...]
    ordered: tuple[KeyColumn, ...] | None
    compared: tuple[SourceColumn, ...]
    left_out: tuple[tuple[str, str], ...]
    relation: sql.Composed
    options: TableOptions
    salt: str
    recoded: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the compared columns, in the order in which they are hashed."""
        return tuple(column.name for column in self.compared)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key's columns, in the key's order."""
        return tuple(column.name for column in self.key)

    @property
    def lake_names(self) -> tuple[str, ...]:
        """What the lake calls the columns of `names`."""
        return tuple(column.lake_name for column in self.compared)

    @property
    def lake_key(self) -> tuple[str, ...]:
        """What the lake calls the columns of `key_names`."""
        return tuple(column.lake_name for column in self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How rows are put into numbered groups: by ranges between `bounds`, or by a key's hash.

    With `buckets` a row's group is its key's hash modulo that number, and bounds are empty.
    """

    bounds: tuple[Bound, ...] = ()
    buckets: int = 1

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self.bounds) + 1 if self.bounds else self.buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupHash:
    """Number of rows of a group, and its hash: 32 hexadecimal digits."""

    rows: int = 0
    hash: str = "0" * 32


NOTHING = GroupHash()


def describe(
    connection: Connection,
    table: str,
    key: Sequence[str],
    *,
    options: TableOptions = PLAIN,
    salt: str = "",
) -> SourceTable:
    """Look at a table's columns. Raises `NotFound`, `InvalidRequest` for a key without a text."""
    heed_policies(connection, table)
    columns = columns_of(connection, table)
    compared: list[SourceColumn] = []
    left_out: list[tuple[str, str]] = []
    for column in sorted(columns, key=lambda c: c.name):
        reason = _left_out(column, options)
        if reason is None:
            compared.append(_as_it_leaves(column, options))
        else:
            left_out.append((column.name, reason))
    by_name = {column.name: column for column in compared}
    gone = sorted(set(key) - {column.name for column in columns})
    if gone:
        raise InvalidRequest(
            f"{table} has no column {', '.join(gone)}, of its key, any more: it was renamed or"
            " dropped",
            remedy="The pipeline learns of it within seconds: verify again then.",
        )
    lost = [name for name in key if name not in by_name]
    if lost or not key:
        raise InvalidRequest(
            f"{table} cannot be compared by rows: its key ({', '.join(key) or 'none'}) has no"
            " canonical text",
            remedy=f"Declare a key of comparable columns: --key {table}:COLUMN,…",
        )
    keys = tuple(by_name[name] for name in key)
    return SourceTable(
        name=table,
        key=keys,
        ordered=_ordered(connection, keys),
        compared=tuple(compared),
        left_out=tuple(left_out),
        relation=from_clause(connection, table),
        options=options,
        salt=salt,
        recoded=recoded(connection),
    )


def count(connection: Connection, table: SourceTable) -> int:
    """Count the table's rows."""
    row = connection.execute(
        sql.SQL("SELECT count(*) AS n FROM {}").format(table.relation)
    ).fetchone()
    return 0 if row is None else int(str(row["n"]))


def count_up_to(
    connection: Connection, table: str, area: KeyRange, key: Sequence[KeyColumn], most: int
) -> int:
    """Count the rows of a range; `most` + 1 stands for any more than `most`."""
    heed_policies(connection, table)
    row = connection.execute(
        sql.SQL("SELECT count(*) AS n FROM (SELECT FROM {} WHERE {} LIMIT {}) found").format(
            from_clause(connection, table), ranges.where(area, key), sql.Literal(most + 1)
        )
    ).fetchone()
    return 0 if row is None else int(str(row["n"]))


def estimated(connection: Connection, table: SourceTable) -> int:
    """Return the planner's number of rows; counts a table that was never analysed."""
    row = connection.execute(
        """
        SELECT sum(c.reltuples)::bigint AS n, bool_and(c.reltuples > 0) AS known
          FROM pg_class c
         WHERE c.relkind = 'r'
           AND (c.oid = %(name)s::regclass
                OR c.oid IN (SELECT relid FROM pg_partition_tree(%(name)s::regclass) WHERE isleaf))
        """,
        {"name": sql.Identifier(*split_table(table.name)).as_string(connection)},
    ).fetchone()
    if row is None or not row["known"]:
        return count(connection, table)
    return int(str(row["n"]))


def split_of(connection: Connection, table: SourceTable, groups: int, rows: int) -> Split:
    """Choose about `groups` groups of equal size, from a sample of the table's keys."""
    if groups <= 1:
        return Split()
    if table.ordered is None:
        return Split(buckets=groups)
    share = min(100.0, 100.0 * groups * _SAMPLES_PER_RANGE / max(rows, 1))
    found = connection.execute(
        sql.SQL(
            "SELECT {texts} AS bound FROM (SELECT {names}, row_number() OVER (ORDER BY {order}) AS"
            " __n, count(*) OVER () AS __of FROM {table} TABLESAMPLE BERNOULLI ({share})) sampled"
            " WHERE __n % greatest(__of / {groups}, 1) = 0 ORDER BY __n LIMIT {limit}"
        ).format(
            texts=ranges.key_texts(table.ordered),
            names=sql.SQL(", ").join(map(sql.Identifier, table.key_names)),
            order=ranges.key_order(table.ordered),
            table=table.relation,
            share=sql.Literal(share),
            groups=sql.Literal(groups),
            limit=sql.Literal(2 * groups),
        )
    ).fetchall()
    return Split(bounds=tuple(dict.fromkeys(_bound(row["bound"]) for row in found)))


def next_bound(
    connection: Connection, table: SourceTable, low: Bound | None, rows: int
) -> Bound | None:
    """Return the key that lies `rows` rows after `low`; None when the table ends before."""
    assert table.ordered is not None, f"{table.name} has no ranges"
    row = connection.execute(
        sql.SQL(
            "SELECT {texts} AS bound FROM {table} WHERE {where} ORDER BY {order}"
            " OFFSET {rows} LIMIT 1"
        ).format(
            texts=ranges.key_texts(table.ordered),
            table=table.relation,
            where=ranges.where(KeyRange(low=low), table.ordered),
            order=ranges.key_order(table.ordered),
            rows=sql.Literal(rows),
        )
    ).fetchone()
    return None if row is None else _bound(row["bound"])


def group_hashes(
    connection: Connection, table: SourceTable, split: Split, *, within: KeyRange = WHOLE
) -> dict[int, GroupHash]:
    """Hash every group in one pass over the range; groups without rows are left out."""
    found = connection.execute(
        sql.SQL(
            "SELECT g, count(*) AS rows, {high} AS high, {low} AS low"
            " FROM (SELECT {group} AS g, {hash} AS h, {once} FROM {rows} WHERE {where})"
            " hashed GROUP BY g"
        ).format(
            high=_half(1),
            low=_half(17),
            group=_group(table, split),
            hash=_row_hash(table),
            once=_ONCE,
            rows=_rows(connection, table),
            where=_where(table, within, None, None),
        )
    ).fetchall()
    return {
        int(str(row["g"])): GroupHash(
            rows=int(str(row["rows"])),
            hash=hash_text(int(str(row["high"])), int(str(row["low"]))),
        )
        for row in found
    }


def row_hashes(
    connection: Connection,
    table: SourceTable,
    *,
    within: KeyRange,
    group: tuple[Split, int] | None = None,
    keys: Sequence[str] | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield (key, hash of the row) of a range, of one group of a split, of some keys; unordered."""
    query = sql.SQL("SELECT {key} AS k, {hash} AS h FROM {rows} WHERE {where}").format(
        key=_cells(table.key),
        hash=_row_hash(table),
        rows=_rows(connection, table),
        where=_where(table, within, group, keys),
    )
    for row in connection.cursor().stream(query, size=_FETCH_ROWS):
        yield str(row["k"]), str(row["h"])


def by_key(rows: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map keys to the hashes of their rows; one of several rows to `SEVERAL`."""
    found: dict[str, str] = {}
    for key, digest in rows:
        found[key] = SEVERAL if key in found else digest
    return found


def column_hashes(
    connection: Connection, table: SourceTable, *, within: KeyRange, keys: Sequence[str]
) -> Mapping[str, tuple[str, ...]]:
    """Return, by key, the hash of each compared column's cell."""
    hashes = sql.SQL(", ").join(
        md5_of(cell(column), recoded=table.recoded) for column in table.compared
    )
    rows = connection.execute(
        sql.SQL("SELECT {key} AS k, ARRAY[{hashes}] AS h FROM {rows} WHERE {where}").format(
            key=_cells(table.key),
            hashes=hashes,
            rows=_rows(connection, table),
            where=_where(table, within, None, keys),
        )
    ).fetchall()
    return {str(row["k"]): _bound(row["h"]) for row in rows}


def _ordered(connection: Connection, keys: Sequence[SourceColumn]) -> tuple[KeyColumn, ...] | None:
    """Text compares by the server's bytes: where those have another order, it has no ranges."""
    found = ordered_key(keys)
    if found is None or connection.info.parameter_status("server_encoding") in _ORDERED_AS_UTF8:
        return found
    return None if any(column.order is KeyOrder.TEXT for column in found) else found


def _left_out(column: SourceColumn, options: TableOptions) -> str | None:
    if column.name in options.exclude:
        return "excluded"
    if column.generated:
        return "generated: not in the stream of changes"
    if column.name in options.veiled or has_text(column):
        return None
    kind = f"{column.type}[]" if column.is_array else column.type
    return f"type {kind} has no canonical text"


def _as_it_leaves(column: SourceColumn, options: TableOptions) -> SourceColumn:
    """A veiled value is text, whatever the column's type."""
    if column.name not in options.veiled:
        return column
    return SourceColumn(name=column.name, type="text", not_null=column.not_null)


def _rows(connection: Connection, table: SourceTable) -> sql.Composed:
    """Return what stands in FROM: the table, or a selection that veils what leaves veiled.

    The session gets the salt that the selection needs.
    """
    if not table.options.veiled:
        return table.relation
    hand_salt(connection, table.options, table.salt)
    return sql.SQL("(SELECT {} FROM {}) AS veiled").format(
        select_list(table.name, table.names, table.options), table.relation
    )


def _cells(columns: Sequence[SourceColumn]) -> sql.Composed:
    return sql.SQL(" || ',' || ").join(cell(column) for column in columns)


def _row_hash(table: SourceTable) -> sql.Composed:
    return md5_of(_cells(table.compared), recoded=table.recoded)


def _half(start: int) -> sql.SQL:
    # A bit string turns into a signed number: its sum is the same modulo 2^64.
    return sql.SQL(f"coalesce(sum(('x' || substr(h, {start}, 16))::bit(64)::bigint), 0)")


def _group(table: SourceTable, split: Split) -> sql.Composable:
    if split.bounds:
        assert table.ordered is not None, f"{table.name} has no ranges"
        return ranges.range_number(split.bounds, table.ordered)
    if split.buckets == 1:
        return sql.Literal(0)
    return sql.SQL("('x' || substr({}, 1, 8))::bit(32)::bigint % {}").format(
        md5_of(_cells(table.key), recoded=table.recoded), sql.Literal(split.buckets)
    )


def _where(
    table: SourceTable,
    within: KeyRange,
    group: tuple[Split, int] | None,
    keys: Sequence[str] | None,
) -> sql.Composed:
    conditions: list[sql.Composable] = []
    if not within.is_all:
        assert table.ordered is not None, f"{table.name} has no ranges"
        conditions.append(ranges.where(within, table.ordered))
    if group is not None:
        split, number = group
        conditions.append(sql.SQL("{} = {}").format(_group(table, split), sql.Literal(number)))
    if keys is not None:
        conditions.append(
            sql.SQL("{} = ANY ({})").format(_cells(table.key), sql.Literal(list(keys)))
        )
    if not conditions:
        return sql.Composed([sql.SQL("TRUE")])
    return sql.SQL(" AND ").join(conditions)


def _bound(value: object) -> Bound:
    match value:
        case [*texts]:
            return tuple(str(text) for text in texts)
    raise ValueError(f"not a list of texts: {value!r}")
