"""What typed tables say of captured tables, against `current`: the newest fact of each key.

Facts keep the values that they came with, so that values are compared only where the newest fact
came behind the last DDL of its table. Which keys there are, all facts tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow.compute as pc

from lake.layers import read_whole
from lake.layout import Lake, changes_log, current_name
from lake.table_columns import SCHEMA_TABLE
from lake.tables import TableAt, Tables
from pipeline.typed.columns import truncates_name
from schemas.records import Operation
from schemas.schema_change import SchemaChange, parse_schema_change

Row = Mapping[str, Any]
Place = tuple[int, int]


def differing_facts(lake: Lake, source: str, at: Mapping[str, TableAt]) -> list[str]:
    """Return where typed tables of a source differ from its current tables, at their versions."""
    tables = Tables()
    messages = tables.read(lake.path(changes_log(source)), where=pc.field("table") == SCHEMA_TABLE)
    truncates = tables.read(lake.path(truncates_name(source)))
    told: dict[str, tuple[int, SchemaChange]] = {}
    found = [] if messages is None else messages.sort_by("commit_order").to_pylist()
    for row in found:
        change = parse_schema_change(row["counts"])
        told[change.table] = row["commit_order"], change
    wrong: list[str] = []
    for table, (since, change) in told.items():
        facts = tables.read(lake.path(f"typed/{source}.{table}"))
        current = read_whole(lake, tables, current_name(source, table), at=at)
        if facts is None or current is None:
            continue
        gone = [] if truncates is None else truncates.to_pylist()
        last = max((_place(row) for row in gone if row["table"] == table), default=(-1, -1))
        names = [*(column.name for column in change.by_attnum().values()), "_exact"]
        newest = newest_facts(facts.to_pylist(), change.key, after=last)
        wrong += compared(table, newest, current.to_pylist(), change.key, names, since)
    return wrong


def newest_facts(
    facts: Sequence[Row], key: Sequence[str], *, after: Place = (-1, -1)
) -> dict[tuple[object, ...], Row]:
    """Return the last fact of each key that is not deleted, by key."""
    newest: dict[tuple[object, ...], Row] = {}
    for row in sorted(facts, key=_place):
        own = tuple(row[name] for name in key)
        newest.pop(own, None)
        if row["_operation"] != Operation.DELETE.value and _place(row) > after:
            newest[own] = row
    return newest


def compared(
    table: str,
    newest: Mapping[tuple[object, ...], Row],
    current: Sequence[Row],
    key: Sequence[str],
    names: Sequence[str],
    since: int,
) -> list[str]:
    """Return the differences of one table; values of facts behind `since` alone."""
    rows = {tuple(row[name] for name in key): row for row in current}
    wrong = [f"{table}: {own} is in its facts alone" for own in newest.keys() - rows.keys()]
    wrong += [f"{table}: {own} is not in its facts" for own in rows.keys() - newest.keys()]
    for own in newest.keys() & rows.keys():
        fact, row = newest[own], rows[own]
        if fact["_seq_hi"] <= since:
            continue
        wrong += [
            f"{table}: {name} of {own} is {fact.get(name)!r:.200}, and {row.get(name)!r:.200}"
            for name in names
            if _plain(fact.get(name)) != _plain(row.get(name))
        ]
    return wrong


def _place(row: Row) -> Place:
    return row["_seq_hi"], row["_seq_lo"]


def _plain(value: object) -> object:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return repr(value)
    return value.normalize() if isinstance(value, Decimal) else value
