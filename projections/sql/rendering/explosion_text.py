"""The query of an `Exploded`: rows once for each of their elements."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from projections.sql.operators.shape import ORDER
from projections.sql.operators.tree import Exploded

if TYPE_CHECKING:
    from projections.sql.rendering.dialect import Dialect


def exploded(node: Exploded, rows: str, dialect: Dialect, more: str = "") -> str:
    """Write the query; `more` are columns that are passed on beside."""
    columns = f"{', '.join([*map(dialect.name, node.kept), *ORDER])}{more}"
    own = []
    if node.place is not None:
        counted = f"__i + {dialect.whole_number(node.first)}" if node.first else "__i"
        own.append(f", {counted} AS {dialect.name(node.place)}")
    for each in node.elements:
        value = reduce(dialect.field, each.path, "__e")
        own.append(f", {value} AS {dialect.name(each.name)}")
    return f"SELECT {columns}{''.join(own)} FROM ({dialect.elements(columns, rows, node)}) AS e"
