"""Rows of small tables, read by deltalake alone.

It loads in a tenth of a second. Arrow's datasets, which `Tables` reads by, load pandas too: that
takes longer than most commands take to answer.
"""

from __future__ import annotations

from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError


def select(path: str, sql: str) -> list[dict[str, object]]:
    """Answer a query of one table, called `rows` in it; no rows where there is no table."""
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        return []
    found = QueryBuilder().register("rows", table).execute(sql).read_all()
    columns = {name: found[name].to_pylist() for name in found.schema.names}
    return [{name: columns[name][i] for name in columns} for i in range(found.num_rows)]
