"""A function of Spark that the small executor computes with the same bits, and how it is written.

Each is known for certain types of its arguments only, by the type that it gives and by DuckDB's
words for it. Where DuckDB has no such function, or one that differs, its words call a function of
Python (`projections.run.spark_scalars`), whose name begins with `spark_`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from projections.sql.values.expressions import never_fails

TypeOf = Callable[[exp.Expr], str]
WHOLE = ("INT", "BIGINT")
TEXT = "STRING"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A call with arguments of known types.

    `gives` is the type of its value, `parts` are the arguments that are computed, `written` makes
    DuckDB's words of theirs.
    """

    gives: str
    parts: tuple[exp.Expr, ...]
    written: Callable[[Sequence[str]], str]


Rule = Callable[[exp.Expr, TypeOf], Scalar | None]


def quoted(text: str) -> str:
    """Write a text as a literal of DuckDB."""
    return "'" + text.replace("'", "''") + "'"


def form(gives: str, template: str, *parts: exp.Expr) -> Scalar:
    """Return a call whose words are a template with the places {0}, {1} for its arguments."""
    return Scalar(gives, parts, lambda words: template.format(*words))


def is_null(node: exp.Expr, words: str) -> str:
    """Write in DuckDB's words that a value is NULL.

    Of what it knows never to be NULL it computes nothing, though it may be an error.
    """
    return f"{words} IS NULL" if never_fails(node) else f"CAST({words} AS VARCHAR) IS NULL"


def literal_text(node: exp.Expr | None) -> str | None:
    """Return a text that is written as a literal."""
    return node.name if isinstance(node, exp.Literal) and node.is_string else None


def literal_number(node: exp.Expr | None) -> int | None:
    """Return a whole number of INT that is written as a literal, with or without a sign."""
    sign = -1 if isinstance(node, exp.Neg) else 1
    inner = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(inner, exp.Literal) or inner.is_string or not inner.name.isdigit():
        return None
    return sign * int(inner.name) if int(inner.name) < 2**31 else None


def of_texts(function: str, gives: str = TEXT) -> Rule:
    """Return the rule of a function whose arguments are texts."""

    def rule(node: exp.Expr, types: TypeOf) -> Scalar | None:
        parts = arguments(node)
        places = ", ".join(f"{{{number}}}" for number in range(len(parts)))
        if any(types(part) != TEXT for part in parts):
            return None
        return form(gives, f"{function}({places})", *parts)

    return rule


def arguments(node: exp.Expr) -> tuple[exp.Expr, ...]:
    """Return what a call is given, in the order in which it is written."""
    if isinstance(node, exp.Anonymous):
        return tuple(node.expressions)
    return tuple(
        part
        for value in node.args.values()
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, exp.Expr)
    )
