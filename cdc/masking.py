"""Columns that leave the source as something else: what they become, said in SQL.

The connector veils values in the stream; whoever reads the source itself (a bulk snapshot, a
comparison) selects by these expressions and gets the same values. Key columns are never veiled.
"""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from cdc.database import Connection
from cdc.options import MASK, TableOptions

_SALT = "penstock.salt"


def hand_salt(connection: Connection, options: TableOptions, salt: str) -> None:
    """Tell the session the salt of hashed columns, for queries of `select_list`.

    In their own text it would be read in `pg_stat_activity` and in the server's log. A ROLLBACK of
    the transaction in which this is called takes it back.
    """
    if options.hash:
        connection.execute("SELECT set_config(%s, %s, false)", (_SALT, salt))


def column_value(column: str, options: TableOptions) -> sql.Composable:
    """Return the expression for a column's value as it arrives in the lake."""
    name = sql.Identifier(column)
    if column in options.mask:
        return sql.Literal(MASK)
    if column in options.hash:
        return sql.SQL(
            "encode(sha256(convert_to(current_setting({}) || {}, 'UTF8')), 'hex')"
        ).format(sql.Literal(_SALT), name)
    return name


def select_list(table: str, columns: Sequence[str], options: TableOptions) -> sql.Composed:
    """Return the list of a SELECT: the columns in the order given, without the excluded ones.

    Each keeps its name. `table` qualifies nothing: it names the table in errors only. Where columns
    are hashed the session is to have the salt (`hand_salt`).
    Raises `ValueError` when nothing is left.
    """
    kept = [column for column in columns if column not in options.exclude]
    if not kept:
        raise ValueError(f"{table}: every column is excluded")
    parts: list[sql.Composable] = [
        sql.Identifier(column)
        if column not in options.veiled
        else sql.SQL("{} AS {}").format(column_value(column, options), sql.Identifier(column))
        for column in kept
    ]
    return sql.SQL(", ").join(parts)
