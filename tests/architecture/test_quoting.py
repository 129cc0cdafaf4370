"""Names reach SQL through `schemas.identifiers` alone, and psycopg's `Identifier` for PostgreSQL.

An f-string that quotes a name is an error, and so is a statement with a hole for anything but words
of the program itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.architecture.tree import PACKAGES, ROOT, name_of, parsed, sources

HOME = "schemas/identifiers.py"
OF_THE_LAKE = {"lake", "pipeline", "projections", "replay"}
"""Here every text is SQL for an engine, or the name of a column in it."""
BESIDE = {*PACKAGES, "examples"} - {"stack"}
"""The stack's databases have names of its own, and it knows none of the other packages."""
STATEMENT = re.compile(
    r"\b(SELECT|CREATE|DROP|ALTER|INSERT|UPDATE|DELETE|GRANT|REVOKE|MERGE|COPY)\b"
)
QUOTED_HOLE = re.compile('`\x00`|"\x00"')
DOUBLED = {("`", "``"), ('"', '""')}
RUN = {"execute", "executemany", "copy", "stream", "SQL", "sql", "expr"}
QUOTING = {"spark_name", "duckdb_name", "datafusion_name", "quoted", "as_string"}
COMPOSED = {
    ("cdc/canonical.py", "expression"): "a text of the table of expressions by type",
    ("cdc/canonical.py", "fits"): "numbers of dimensions",
    ("cdc/canonical.py", "before"): "numbers of dimensions",
    ("cdc/replication.py", "pids"): "one of two texts of the module",
    ("cdc/verification/source_rows.py", "start"): "a number",
    ("examples/flights/comparison.py", "same"): "columns through duckdb_name",
    ("examples/flights/comparison.py", "joined"): "columns through duckdb_name",
}
"""Holes of statements that are filled elsewhere, each with what fills it."""


def _pieces(text: ast.JoinedStr) -> str:
    return "".join(
        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "\x00"
        for part in text.values
    )


def _quoted_by_hand(module: ast.Module, *, lake: bool) -> Iterator[int]:
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            text = _pieces(node)
            if QUOTED_HOLE.search(text) and (lake or STATEMENT.search(text)):
                yield node.lineno
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "replace"
            and tuple(ast.literal_eval(each) for each in node.args if _is_text(each)) in DOUBLED
        ):
            yield node.lineno


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _open_holes(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the holes of statements that are run, but for words of the program itself."""
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        own = _words_of(function)
        for call in ast.walk(function):
            if not isinstance(call, ast.Call) or _called(call) not in RUN:
                continue
            texts = [n for a in call.args for n in ast.walk(a) if isinstance(n, ast.JoinedStr)]
            for hole in (part for text in texts for part in text.values):
                if isinstance(hole, ast.FormattedValue) and not _is_own(hole.value, own):
                    yield ast.unparse(hole.value), hole.lineno


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _words_of(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function gives to texts of its own, and to nothing else."""
    given: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                given.setdefault(name, []).append(value)
            case ast.For(target=ast.Name(id=name), iter=ast.Tuple(elts=values)):
                given.setdefault(name, []).extend(values)
    return {name for name, values in given.items() if all(_is_own(v, set()) for v in values)}


def _is_own(value: ast.expr, own: set[str]) -> bool:
    match value:
        case ast.Constant():
            return True
        case ast.IfExp(body=body, orelse=other):
            return _is_own(body, own) and _is_own(other, own)
        case ast.Name(id=name):
            return name in own or name.isupper()
        case ast.Call():
            return _called(value) in QUOTING
    return False


def _modules(packages: set[str]) -> Iterator[tuple[str, ast.Module]]:
    for path in sources():
        if path.relative_to(ROOT).parts[0] in packages and name_of(path) != HOME:
            yield name_of(path), parsed(path)


def test_names_are_quoted_in_one_place() -> None:
    found = [
        f"{name}:{line}"
        for packages, lake in ((OF_THE_LAKE, True), (BESIDE - OF_THE_LAKE, False))
        for name, module in _modules(packages)
        for line in _quoted_by_hand(module, lake=lake)
    ]
    assert not sorted(found)


def test_a_statement_has_holes_for_words_of_the_program_alone() -> None:
    found = {
        (name, hole): f"{name}:{line}: {hole}"
        for name, module in _modules(BESIDE - OF_THE_LAKE)
        for hole, line in _open_holes(module)
    }
    assert not sorted(told for place, told in found.items() if place not in COMPOSED)
    assert not sorted(COMPOSED.keys() - found.keys()), "these are no holes any more"
