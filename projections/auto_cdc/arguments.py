"""What the caller asked for, checked once: names resolved against the source's columns."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from kernel.errors import InvalidRequest
from projections.auto_cdc.names import is_own
from schemas.identifiers import spark_name

Names = Sequence[str] | Sequence[Column] | Sequence[str | Column]
"""Columns, by name or as `Column`; identifiers without qualifiers."""


Choice = tuple[Names | None, Names | None]
"""Columns that are wanted, columns that are not; at most one of the two is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments of `create_auto_cdc_flow` that say what a table becomes of changes."""

    keys: Names
    sequence_by: str | Column
    scd_type: int | str | None
    deletes: str | Column | None
    truncates: str | Column | None
    columns: Choice
    tracked: Choice
    ignore_nulls: bool
    ignore_nulls_in: Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The arguments resolved: names of columns, in the source's order, keys first.

    `tracked`: columns whose change opens a version (SCD type 2). `partial`: columns in which a
    null means that the change says nothing of them. `sequence` is the type of the sequence.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    tracked: tuple[str, ...]
    partial: tuple[str, ...]
    sequence: DataType
    scd_type: int
    truncates: bool

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns of the source that the target has."""
        return (*self.keys, *self.values)


def checked(arguments: Arguments) -> Arguments:
    """Refuse what contradicts itself, before anything is read, and settle the SCD type.

    Raises `InvalidRequest`.
    """
    choices: Mapping[str, Choice] = {
        "column_list": arguments.columns,
        "track_history_column_list": arguments.tracked,
        "ignore_null_updates_column_list": arguments.ignore_nulls_in,
    }
    for name, (wanted, unwanted) in choices.items():
        if wanted is not None and unwanted is not None:
            other = name.replace("column_list", "except_column_list")
            raise InvalidRequest(f"{name} and {other} exclude each other")
    if not arguments.keys:
        raise InvalidRequest("keys is empty: name at least one column that identifies a row")
    scd_type = _scd_type(arguments.scd_type)
    if scd_type == 1 and arguments.tracked != (None, None):
        raise InvalidRequest("track_history_… belongs to stored_as_scd_type = 2")
    if scd_type == 2 and arguments.truncates is not None:
        raise InvalidRequest(
            "apply_as_truncates belongs to stored_as_scd_type = 1",
            remedy="For a history that TRUNCATE closes, capture the table with history = true.",
        )
    return replace(arguments, scd_type=scd_type)


def _scd_type(given: int | str | None) -> int:
    found = {"1": 1, "2": 2}.get(str(1 if given is None else given))
    if found is None:
        raise InvalidRequest(f"stored_as_scd_type is 1 or 2, not {given!r}")
    return found


def resolved(arguments: Arguments, rows: DataFrame) -> Shape:
    """Look all names up in the source. Raises `InvalidRequest` for what is not there."""
    keys = _names(rows, arguments.keys, "keys")
    selected = _selection(rows, rows.columns, arguments.columns)
    lost = [key for key in keys if key not in selected]
    if lost:
        raise InvalidRequest(f"the columns of the target leave out the key {', '.join(lost)}")
    values = [name for name in selected if name not in keys]
    odd = [name for name in selected if not _comparable(rows.schema[name].dataType)]
    if odd:
        raise InvalidRequest(
            f"column {odd[0]} is of type {rows.schema[odd[0]].dataType.simpleString()}, whose "
            "values cannot be compared",
            remedy="Turn it into text, an array or a struct in the source, or leave it out.",
        )
    reserved = [name for name in selected if is_own(name)]
    if reserved:
        raise InvalidRequest(
            f"the source has a column {reserved[0]}, which is a name of Penstock's own",
            remedy="Leave it out with except_column_list, or rename it in the source.",
        )
    partial: Sequence[str] = values if arguments.ignore_nulls else []
    if arguments.ignore_nulls_in != (None, None):
        partial = _selection(rows, values, arguments.ignore_nulls_in)
    tracked = _selection(rows, values, arguments.tracked)
    return Shape(
        keys=tuple(keys),
        values=tuple(values),
        tracked=tuple(tracked),
        partial=tuple(partial),
        sequence=_sequence(rows, arguments.sequence_by),
        scd_type=_scd_type(arguments.scd_type),
        truncates=arguments.truncates is not None,
    )


def expression(given: str | Column) -> Column:
    """Take SQL text or a `Column`."""
    return functions.expr(given) if isinstance(given, str) else given


def _names(rows: DataFrame, given: Names, argument: str) -> list[str]:
    columns = [functions.col(_column(n)) if isinstance(n, str) else n for n in given]
    names: list[str] = []
    for column, said in zip(columns, given, strict=True):
        try:
            name = rows.select(column).columns[0]
        except PySparkException:
            name = None
        if name is None or name not in rows.columns:
            text = said if isinstance(said, str) else str(said)
            near = difflib.get_close_matches(text, rows.columns, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidRequest(
                f"{argument}: {text} is not a column of the source{hint}",
                remedy=f"Columns of the source: {', '.join(rows.columns)}",
            )
        names.append(name)
    return names


def _column(name: str) -> str:
    return name if name.startswith("`") else spark_name(name)


def _selection(rows: DataFrame, among: Sequence[str], choice: Choice) -> list[str]:
    wanted, unwanted = choice
    if wanted is not None:
        chosen = set(_names(rows, wanted, "column list"))
        return [name for name in among if name in chosen]
    if unwanted is not None:
        left_out = set(_names(rows, unwanted, "except column list"))
        return [name for name in among if name not in left_out]
    return list(among)


def _sequence(rows: DataFrame, given: str | Column) -> DataType:
    try:
        kind = rows.select(expression(given)).schema[0].dataType
    except PySparkException as error:
        raise InvalidRequest(f"sequence_by cannot be computed: {str(error)[:300]}") from error
    if not _orderable(kind):
        raise InvalidRequest(
            f"sequence_by is of type {kind.simpleString()}, which has no order",
            remedy="Use a number, a time, text, or a struct of them.",
        )
    return kind


def _comparable(kind: DataType) -> bool:
    match kind:
        case StructType():
            return all(_comparable(field.dataType) for field in kind.fields)
        case ArrayType():
            return _comparable(kind.elementType)
        case _:
            return not isinstance(kind, MapType) and kind.typeName() != "variant"


def _orderable(kind: DataType) -> bool:
    match kind:
        case StructType():
            return all(_orderable(field.dataType) for field in kind.fields)
        case ArrayType():
            return _orderable(kind.elementType)
        case MapType():
            return False
        case _:
            return kind.typeName() not in ("variant", "geometry", "geography", "void")
