"""Matchers of patterns, exact totals and functions of the workspace, as Spark calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf

from projections.run.database import arrow_type
from projections.run.exact_totals import parts_of, totals_of
from projections.run.functions import computing, functions_in
from projections.run.matcher import Matcher, matcher_of
from projections.sql.operators.tree import PARTS_TYPE, Match, Newest, walk
from projections.sql.rendering.match_text import given_columns, matcher_name, physical
from projections.sql.rendering.totals import EXACT_PARTS, EXACT_TOTAL, adds_doubles
from projections.sql.words.catalog import Column

if TYPE_CHECKING:
    from pyspark.sql._typing import UserDefinedFunctionLike

_MADE: Callable[..., UserDefinedFunctionLike] = arrow_udf
"""Spark derives the kind of function from its types, which its own stubs do not know."""


def register_functions(spark: SparkSession, tree: Newest | None) -> None:
    """Make the functions known that the SQL of a tree calls."""
    nodes = [node for node in walk(tree) if isinstance(node, Match)] if tree is not None else []
    if tree is not None and adds_doubles(tree):
        register_totals(spark)
    for node in nodes:
        matcher = matcher_of(node, lambda kind: arrow_type(Column(name="", type=physical(kind))))
        function = _MADE(_function(matcher), _structs(given_columns(node)))
        spark.udf.register(matcher_name(node), function)
    for called in functions_in(tree) if tree is not None else []:
        computed = computing(called, lambda kind: arrow_type(Column(name="", type=kind)))
        spark.udf.register(called.known_as, _MADE(computed, called.gives))


def register_totals(spark: SparkSession) -> None:
    """Make the functions of exact totals of doubles known."""
    spark.udf.register(EXACT_TOTAL, _MADE(totals_of, "double"))
    spark.udf.register(EXACT_PARTS, _MADE(parts_of, PARTS_TYPE))


def _function(matcher: Matcher) -> Callable[[pa.Array], pa.Array]:
    # Spark asks a function for the types that it takes, which an object cannot tell.
    def found(partitions: pa.Array) -> pa.Array:
        return matcher(partitions)

    return found


def _structs(columns: Sequence[Column]) -> str:
    fields = (f"g{i}: {physical(column.type)}" for i, column in enumerate(columns))
    return f"array<struct<{', '.join(fields)}>>"
