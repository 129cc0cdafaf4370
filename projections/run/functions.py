"""The functions of a workspace at work: batches of Arrow in, one array out, in either engine.

A file is run once in each process that computes it. What goes wrong in it is said with file, line
and the row that it went wrong with.
"""

from __future__ import annotations

import builtins
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from types import ModuleType
from typing import Any

import pyarrow as pa

from kernel.errors import ContractViolation
from projections.sql.operators.tree import Node, expressions_of, walk
from projections.sql.words.functions import FunctionFile, WorkspaceFunction, function_of

ArrowTypes = Callable[[str], pa.DataType]
"""Gives the Arrow type of a simple type of SQL."""


def functions_in(tree: Node) -> list[WorkspaceFunction]:
    """Return the functions that the expressions of a tree call, each once."""
    found: dict[str, WorkspaceFunction] = {}
    for node in walk(tree):
        parts = (part for each in expressions_of(node) for part in each.walk())
        for function in map(function_of, parts):
            if function is not None:
                found[function.known_as] = function
    return list(found.values())


def computing(function: WorkspaceFunction, types: ArrowTypes) -> Callable[..., pa.Array]:
    """Return what computes a function of columns that have its parameters' types, or narrower ones.

    Raises `ContractViolation` with the file, the line and the arguments where it cannot.
    """
    takes = [types(each.type) for each in function.takes]
    gives = types(function.gives)

    def computed(*columns: pa.Array) -> pa.Array:
        given = [
            _whole(column).cast(kind, safe=False)
            for column, kind in zip(columns, takes, strict=True)
        ]
        if function.vectorised:
            return _of_columns(function, given, gives)
        rows = zip(*(column.to_pylist() for column in given), strict=True)
        return _of_rows(function, [*rows], gives)

    return with_parameters(computed, len(takes))


def with_parameters(computed: Callable[..., pa.Array], count: int) -> Callable[..., pa.Array]:
    """Let a function of any columns say that it takes so many: engines look at what it declares."""

    def function(*columns: pa.Array) -> pa.Array:
        return computed(*columns)

    names = [f"column_{number}" for number in range(count)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, annotation=pa.Array) for name in names]
    signature = inspect.Signature(parameters, return_annotation=pa.Array)
    function.__dict__["__signature__"] = signature
    function.__annotations__ = {**dict.fromkeys(names, pa.Array), "return": pa.Array}
    return function


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _of_rows(
    function: WorkspaceFunction, rows: Sequence[Sequence[object]], gives: pa.DataType
) -> pa.Array:
    values = [_of_row(function, row) for row in rows]
    try:
        return _array(values, gives)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        for row, value in zip(rows, values, strict=True):
            try:
                _array([value], gives)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise _failed(function, row, error) from error
        raise


def _array(values: Sequence[Any], gives: pa.DataType) -> pa.Array:
    """Make an array of results. Arrow alone would cut a fraction or a time of day off silently."""
    made = pa.array(values, gives)
    if pa.types.is_integer(gives):
        for value in values:
            if value is not None and value != int(value):
                raise ValueError(f"{value} is no whole number")
    if pa.types.is_date(gives):
        for value in values:
            if isinstance(value, datetime):
                raise ValueError(f"{value} has a time of day: give .date(), or declare datetime")
    return made


def _of_row(function: WorkspaceFunction, row: Sequence[object]) -> object:
    for parameter, value in zip(function.takes, row, strict=True):
        if value is None and not parameter.nullable:
            return None
    try:
        return _loaded(function.file)[function.name](*row)
    except Exception as error:
        raise _failed(function, row, error) from error


def _of_columns(
    function: WorkspaceFunction, columns: Sequence[pa.Array], gives: pa.DataType
) -> pa.Array:
    try:
        return _called(function, columns, gives)
    except Exception as error:
        for place in range(len(columns[0])):
            one = [column.slice(place, 1) for column in columns]
            try:
                _called(function, one, gives)
            except Exception as alone:
                row = [column[0].as_py() for column in one]
                raise _failed(function, row, alone) from alone
        raise _failed(function, [], error) from error


def _called(
    function: WorkspaceFunction, columns: Sequence[pa.Array], gives: pa.DataType
) -> pa.Array:
    found = _loaded(function.file)[function.name](*columns)
    result = _whole(found) if isinstance(found, pa.Array | pa.ChunkedArray) else pa.array(found)
    if len(result) != len(columns[0]):
        raise ValueError(f"{len(result)} values for {len(columns[0])} rows")
    return result.cast(gives)


def _failed(
    function: WorkspaceFunction, row: Sequence[object], error: Exception
) -> ContractViolation:
    own = dict(function.file.texts)
    lines = [each for each in traceback.extract_tb(error.__traceback__) if each.filename in own]
    name, line = (lines[-1].filename, lines[-1].lineno) if lines else (function.file.name, None)
    # What is wrong with a result has no line of its own: it is the function's.
    place = f"{name}:{line or function.line}"
    given = ", ".join(f"{p.name}={v!r}" for p, v in zip(function.takes, row, strict=False))
    return ContractViolation(
        f"{place}: {type(error).__name__}: {error}, in {function.name}({given})",
        remedy="Correct the function so that it holds for every row, and replay the projection.",
    )


@lru_cache(maxsize=64)
def _loaded(file: FunctionFile) -> Mapping[str, Any]:
    """Run a file; what it imports of the same folder is run before it, from the same statement."""
    stems = {name.rpartition("/")[2].removesuffix(".py"): name for name, _ in file.texts}
    texts, modules = dict(file.texts), dict[str, ModuleType]()
    package = f"penstock_functions_{file.fingerprint}"

    def imported(name: str, *given: Any) -> ModuleType:
        # Python passes globals, locals, the names that are wanted, and how many folders up.
        beside = len(given) == 4 and given[3] == 1
        if beside and not name:
            # from . import _a, _b
            folder = ModuleType(package)
            folder.__dict__.update({each: module(each) for each in given[2]})
            return folder
        if not beside or name not in stems:
            found: ModuleType = builtins.__import__(name, *given)
            return found
        return module(name)

    def module(stem: str) -> ModuleType:
        if stem not in modules:
            made = modules[stem] = ModuleType(f"{package}_{stem}")
            # What makes classes, as dataclasses does, looks for their module there.
            sys.modules[made.__name__] = made
            made.__dict__["__builtins__"] = {**vars(builtins), "__import__": imported}
            exec(compile(texts[stems[stem]], stems[stem], "exec"), made.__dict__)
        return modules[stem]

    return module(file.name.rpartition("/")[2].removesuffix(".py")).__dict__
