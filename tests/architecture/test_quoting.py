"""Names reach SQL through `schemas.identifiers` alone: an f-string that quotes one is an error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.tree import ROOT, name_of, parsed, sources

HOME = "schemas/identifiers.py"
SQL_PACKAGES = {"projections", "replay"}
"""In `cdc` psycopg composes statements: its f-strings with quotes are messages for people."""
QUOTED_HOLE = re.compile('`\x00`|"\x00"')
DOUBLED = {("`", "``"), ('"', '""')}


def _pieces(text: ast.JoinedStr) -> str:
    return "".join(
        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "\x00"
        for part in text.values
    )


def _found() -> Iterator[str]:
    for path in sources():
        package = path.relative_to(ROOT).parts[0]
        if name_of(path) == HOME or package not in SQL_PACKAGES:
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.JoinedStr) and QUOTED_HOLE.search(_pieces(node)):
                yield f"{name_of(path)}:{node.lineno}"
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "replace"
                and tuple(ast.literal_eval(each) for each in node.args if _is_text(each)) in DOUBLED
            ):
                yield f"{name_of(path)}:{node.lineno}"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_names_are_quoted_in_one_place() -> None:
    assert not sorted(_found())
