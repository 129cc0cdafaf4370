"""What is at a path of a JSON document, in words of other systems."""

from __future__ import annotations

import re

from sqlglot import exp

from projections.sql.values.expressions import render, unwrapped
from projections.sql.words.tokens import spark_expression

_PATH = re.compile(r"\$(\.[A-Za-z_]\w*|\[\d+\]|\['[^'\\]*'\])*")
"""Paths of one place each, which variants have, too."""


def path_of_steps(node: exp.Expr) -> exp.Expr | None:
    """Write a -> 'b' ->> 'c' as one path."""
    if "scalar_only" not in node.args:
        return None  # The function, whose path is that of Spark.
    steps: list[str] = []
    begins = "$"
    inner: exp.Expr = node
    while isinstance(inner, exp.JSONExtract | exp.JSONExtractScalar):
        path = inner.expression
        if not isinstance(path, exp.Literal):
            return None
        if path.is_string and path.name.startswith("$"):
            begins, inner = path.name, inner.this
            break
        steps.insert(0, f"['{path.name}']" if path.is_string else f"[{path.name}]")
        inner = unwrapped(inner.this)
    if any("'" in step[2:-2] for step in steps if step.startswith("['")):
        return None
    return _at_path(inner, exp.Literal.string(begins + "".join(steps)))


def json_value(node: exp.Expr) -> exp.Expr | None:
    """Read JSON_VALUE(x, '$.a') as what is at a path."""
    if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Literal):
        return None
    return _at_path(node.expressions[0], node.expressions[1])


def _at_path(document: exp.Expr, path: exp.Expr) -> exp.Expr:
    return exp.JSONExtractScalar(this=document, expression=path, only_json_types=False)


def json_query(node: exp.Expr) -> exp.Expr | None:
    """Read JSON_QUERY(x, '$.a'): an object or an array; what else is there is NULL to it."""
    given = _place(node)
    if given is None:
        return None
    document, path = given
    kind = f"schema_of_variant({_variant(document, path)})"
    at_path = f"get_json_object({document}, {path})"
    return spark_expression(
        f"(CASE WHEN {kind} LIKE 'OBJECT%' OR {kind} LIKE 'ARRAY%' THEN {at_path} END)"
    )


def json_exists(node: exp.Expr) -> exp.Expr | None:
    """Read JSON_EXISTS(x, '$.a'): whether there is something, and be it null."""
    given = _place(node)
    if given is None:
        return None
    document, path = given
    found = f"{_variant(document, path)} IS NOT NULL"
    return spark_expression(f"(CASE WHEN {document} IS NOT NULL THEN {found} END)")


def _place(node: exp.Expr) -> tuple[str, str] | None:
    """Return the texts of a document and of a path that is written out."""
    document, *further = node.expressions or [exp.Null()]
    path = further[0] if len(further) == 1 else None
    if not isinstance(path, exp.Literal) or not path.is_string or not _PATH.fullmatch(path.name):
        return None
    return render(document), render(path)


def _variant(document: str, path: str) -> str:
    return f"try_variant_get(try_parse_json({document}), {path}, 'variant')"
