"""Ranges of keys as SQL of the source, in the order that the lake keeps."""

from __future__ import annotations

from collections.abc import Sequence

from psycopg import sql

from schemas.key_ranges import Bound, KeyColumn, KeyOrder, KeyRange


def where(range_: KeyRange, key: Sequence[KeyColumn]) -> sql.Composed:
    """Return a condition that holds for the keys in the range; TRUE for all.

    Row comparison, so that an index on the key serves it; for text only one in COLLATE "C".
    """
    parts = [
        sql.SQL("{} {} {}").format(key_row(key), sql.SQL(operator), bound_row(bound, key))
        for bound, operator in ((range_.low, ">="), (range_.high, "<"))
        if bound is not None
    ]
    return sql.SQL(" AND ").join(parts) if parts else sql.Composed([sql.SQL("TRUE")])


def key_row(key: Sequence[KeyColumn]) -> sql.Composed:
    """Return the key as a row that compares as the lake does."""
    return _row([sql.SQL("{}{}").format(sql.Identifier(c.name), _collation(c)) for c in key])


def bound_row(bound: Bound, key: Sequence[KeyColumn]) -> sql.Composed:
    """Return a bound as a row of the key's types."""
    values = [
        sql.SQL("{}::{}").format(sql.Literal(text), sql.Identifier("pg_catalog", column.type))
        for text, column in zip(bound, key, strict=True)
    ]
    return _row(values)


def key_order(key: Sequence[KeyColumn]) -> sql.Composed:
    """Return what ORDER BY takes to sort by the key."""
    names = [sql.SQL("{}{}").format(sql.Identifier(c.name), _collation(c)) for c in key]
    return sql.SQL(", ").join(names)


def key_texts(key: Sequence[KeyColumn]) -> sql.Composed:
    """Return the key as an array of texts: a bound, when fetched."""
    texts = [sql.SQL("{}::text").format(sql.Identifier(column.name)) for column in key]
    return sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(texts))


def range_number(bounds: Sequence[Bound], key: Sequence[KeyColumn]) -> sql.Composed:
    """Return the number of a row's range among those that ascending bounds cut, by bisection."""

    def between(first: int, last: int) -> sql.Composable:
        if first == last:
            return sql.Literal(first)
        middle = (first + last) // 2
        return sql.SQL("CASE WHEN {} < {} THEN {} ELSE {} END").format(
            key_row(key),
            bound_row(bounds[middle], key),
            between(first, middle),
            between(middle + 1, last),
        )

    return sql.Composed([between(0, len(bounds))])


def _collation(column: KeyColumn) -> sql.SQL:
    return sql.SQL(' COLLATE "C"' if column.order is KeyOrder.TEXT else "")


def _row(values: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL("({})").format(sql.SQL(", ").join(values))
