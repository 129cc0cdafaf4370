"""Gives DuckDB the functions of Spark that it lacks, or that differ there, over Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import duckdb
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from projections.run import spark_values
from projections.run.exact_totals import parts_of, totals_of
from projections.run.functions import with_parameters
from projections.sql.rendering.totals import EXACT_PARTS, EXACT_TOTAL
from projections.sql.words import spark_times

_ARROW = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
}


@dataclass(frozen=True, slots=True)
class _Function:
    """A function by its name, with DuckDB's types; `tries`: what cannot be read is NULL."""

    name: str
    computed: Callable[..., Any]
    takes: Sequence[str]
    gives: str
    tries: bool = False


def _read(name: str, computed: Callable[..., Any], gives: str, *further: str) -> list[_Function]:
    takes = ("VARCHAR", *further)
    return [
        _Function(f"cast_{name}", computed, takes, gives),
        _Function(f"try_{name}", computed, takes, gives, tries=True),
    ]


_TEXT, _PLACE = "VARCHAR", "BIGINT"
_FUNCTIONS = (
    _Function("upper", spark_values.upper, (_TEXT,), _TEXT),
    _Function("lower", spark_values.lower, (_TEXT,), _TEXT),
    _Function("reverse", spark_values.reverse, (_TEXT,), _TEXT),
    _Function("octets", spark_values.octets, (_TEXT,), "INTEGER"),
    _Function("crc32", spark_values.crc32, (_TEXT,), "BIGINT"),
    *(
        _Function(f"sha{bits}", partial(spark_values.sha, bits), (_TEXT,), _TEXT)
        for bits in (224, 384, 512)
    ),
    _Function("trim", spark_values.trim, (_TEXT, _TEXT), _TEXT),
    _Function("ltrim", spark_values.ltrim, (_TEXT, _TEXT), _TEXT),
    _Function("rtrim", spark_values.rtrim, (_TEXT, _TEXT), _TEXT),
    _Function("substring", spark_values.substring, (_TEXT, _PLACE, _PLACE), _TEXT),
    _Function("translate", spark_values.translate, (_TEXT, _TEXT, _TEXT), _TEXT),
    _Function("lpad", spark_values.lpad, (_TEXT, _PLACE, _TEXT), _TEXT),
    _Function("rpad", spark_values.rpad, (_TEXT, _PLACE, _TEXT), _TEXT),
    _Function("locate", spark_values.locate, (_TEXT, _TEXT, _PLACE), "INTEGER"),
    _Function("repeat", spark_values.repeat, (_TEXT, _PLACE), _TEXT),
    _Function("substring_index", spark_values.substring_index, (_TEXT, _TEXT, _PLACE), _TEXT),
    _Function("rlike", spark_values.rlike, (_TEXT, _TEXT), "BOOLEAN"),
    _Function("extract", spark_values.extract, (_TEXT, _TEXT, _PLACE), _TEXT),
    _Function("replace", spark_values.replaced, (_TEXT, _TEXT, _TEXT), _TEXT),
    _Function("round", spark_values.rounded, ("DOUBLE", _PLACE), "DOUBLE"),
    _Function("floor", spark_values.floor, ("DOUBLE",), "BIGINT"),
    _Function("ceil", spark_values.ceil, ("DOUBLE",), "BIGINT"),
    _Function("whole", spark_values.whole, ("DOUBLE", _PLACE), "BIGINT"),
    _Function("divided", spark_values.divided, (_TEXT, _TEXT, _PLACE, _PLACE), _TEXT),
    _Function("double", spark_values.nearest_double, (_TEXT,), "DOUBLE"),
    _Function("day_text", spark_times.day_text, ("BIGINT",), _TEXT),
    _Function("moment_text", spark_times.moment_text, ("BIGINT",), _TEXT),
    *_read("whole", spark_values.cast_whole, "BIGINT", _PLACE),
    *_read("double", spark_values.cast_double, "DOUBLE"),
    *_read("boolean", spark_values.cast_boolean, "BOOLEAN"),
    *_read("decimal", spark_values.cast_decimal, _TEXT, _PLACE, _PLACE),
    *_read("day", spark_times.cast_day, "INTEGER"),
    *_read("moment", spark_times.cast_moment, "BIGINT"),
)


def register_scalars(connection: duckdb.DuckDBPyConnection) -> None:
    """Make all functions known to a connection, under names that begin with `spark_`, and those of
    exact totals.
    """
    for name, computed, gives in (
        (EXACT_TOTAL, totals_of, "DOUBLE"),
        (EXACT_PARTS, parts_of, "DOUBLE[]"),
    ):
        connection.create_function(
            name,
            computed,
            ["DOUBLE[]"],
            gives,
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )
    for function in _FUNCTIONS:
        connection.create_function(
            f"spark_{function.name}",
            _of_columns(function),
            [*function.takes],
            function.gives,
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )


def _of_columns(function: _Function) -> Callable[..., pa.Array]:
    def value(row: Sequence[Any]) -> Any:
        if None in row:
            return None
        try:
            return function.computed(*row)
        except ValueError:
            if function.tries:
                return None
            raise

    def computed(*columns: pa.Array | pa.ChunkedArray) -> pa.Array:
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        return pa.array([value(row) for row in rows], _ARROW[function.gives])

    return with_parameters(computed, len(function.takes))
