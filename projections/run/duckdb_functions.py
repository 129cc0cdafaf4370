"""Matchers of patterns and functions of the workspace, as DuckDB calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from projections.run.database import arrow_type
from projections.run.functions import computing, functions_in, with_parameters
from projections.run.matcher import matcher_of
from projections.sql.operators.tree import Match, Newest, walk
from projections.sql.rendering.match_text import (
    given_columns,
    matcher_name,
    physical,
    taken_columns,
)
from projections.sql.words.catalog import Column
from projections.sql.words.duckdb_types import duckdb_type


def register_called(connection: duckdb.DuckDBPyConnection, tree: Newest) -> None:
    """Make the functions known to a connection that the SQL of a tree calls."""
    nodes = [node for node in walk(tree) if isinstance(node, Match)]
    for name, node in {matcher_name(node): node for node in nodes}.items():
        taken, given = taken_columns(node), given_columns(node)
        connection.create_function(
            name,
            matcher_of(node, lambda kind: arrow_type(Column(name="", type=physical(kind)))),
            [_structs("f", taken)],
            _structs("g", given),
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )
    for function in functions_in(tree):
        computed = computing(function, lambda kind: arrow_type(Column(name="", type=kind)))
        connection.create_function(
            function.known_as,
            _without_zone(computed, len(function.takes)),
            [duckdb_type(each.type) for each in function.takes],
            duckdb_type(function.gives),
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )


def _without_zone(computed: Callable[..., pa.Array], count: int) -> Callable[..., pa.Array]:
    """Give moments back as DuckDB has them, in UTC without a zone."""

    def function(*columns: pa.Array) -> pa.Array:
        values = computed(*columns)
        return values.cast(pa.timestamp("us")) if pa.types.is_timestamp(values.type) else values

    return with_parameters(function, count)


def _structs(prefix: str, columns: Sequence[Column]) -> str:
    """Return DuckDB's type of a list of structs with numbered fields."""
    fields = (f"{prefix}{i} {duckdb_type(physical(c.type))}" for i, c in enumerate(columns))
    return f"STRUCT({', '.join(fields)})[]"
