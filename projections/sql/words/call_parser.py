"""Calls of Spark's functions, of which sqlglot would read many as calls of its own.

It knows functions by classes, and writes them for Spark again: not always what was written, as
`array_sort` for `sort_array`. Where the dialect has no use for such a class, the call stays a name
and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from sqlglot import exp
from sqlglot.parsers.spark import SparkParser

from projections.sql.words.spark_functions import CLASSES, OPERATORS, PASSED_ON

_Build = Callable[..., exp.Expr]
_OF_WORDS = ("CHAR", "CHR", "TRANSFORM", "PI", "E")
"""Passed on, though sqlglot has a grammar for each."""


def _as_written(name: str, build: _Build) -> _Build:
    """Return what reads a call of a name: as a class of the dialect, or else as it is written."""

    # Without a default, sqlglot gives the dialect only when it is asked for.
    def made(args: Sequence[exp.Expr], *, dialect: Any) -> exp.Expr:
        if args or name not in ("UNIX_TIMESTAMP", "TO_UNIX_TIMESTAMP"):
            with suppress(IndexError):  # It may want more arguments: Spark is to say so.
                read = _built(build, [each.copy() for each in args], dialect)
                if type(read).__name__ in CLASSES | OPERATORS:
                    return read
            return exp.Anonymous(this=name.lower(), expressions=list(args))
        return _built(build, [], dialect)

    return made


def _end_of(kind: type[exp.Expr]) -> _Build:
    """Return what reads FIRST(x, true) and its like, whose second argument passes over NULL."""

    def made(args: Sequence[exp.Expr]) -> exp.Expr:
        match args:
            case [value] | [value, exp.Boolean(this=False)]:
                return kind(this=value)
            case [value, exp.Boolean(this=True)]:
                return exp.IgnoreNulls(this=kind(this=value))
            case _:
                return exp.Anonymous(this=kind.key, expressions=list(args))

    return made


_ENDS = {
    "FIRST": exp.First,
    "FIRST_VALUE": exp.FirstValue,
    "LAST": exp.Last,
    "LAST_VALUE": exp.LastValue,
    "ANY_VALUE": exp.AnyValue,
}


def _built(build: _Build, args: list[exp.Expr], dialect: Any) -> exp.Expr:
    try:
        return build(args)
    except TypeError:
        return build(args, dialect=dialect)


class CallParser(SparkParser):
    """Spark's parser, which leaves calls of functions that are passed on as they are written."""

    FUNCTIONS = {
        name: _as_written(name, build) if name.lower() in PASSED_ON else build
        for name, build in SparkParser.FUNCTIONS.items()
    } | {name: _end_of(kind) for name, kind in _ENDS.items()}
    FUNCTION_PARSERS = {  # noqa: RUF012
        name: parser
        for name, parser in SparkParser.FUNCTION_PARSERS.items()
        if name not in _OF_WORDS
    }
    NO_PAREN_FUNCTION_PARSERS = {  # noqa: RUF012
        name: parser
        for name, parser in SparkParser.NO_PAREN_FUNCTION_PARSERS.items()
        if name not in _OF_WORDS
    }
