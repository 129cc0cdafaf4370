"""Files, functions and names stay within the budget that keeps the tree readable."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.architecture.tree import (
    PACKAGES,
    ROOT,
    checks,
    functions,
    name_of,
    package_inits,
    parsed,
    sources,
)

SOURCE_LINES = 400
TEST_LINES = 600
FUNCTION_LINES = 60
INIT_LINES = 12
DEMO, STARTER = "examples/flights", "apps/cli/starter/files"
BANNED_MODULES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
NO_NOUNS = {
    "alike",
    "busy",
    "external",
    "held",
    "kept",
    "moved",
    "recent",
    "running",
    "strangers",
    "told",
}
"""Say nothing of their file in a list of files; neither does a lone participle."""


def line_count(text: str) -> int:
    return len(text.splitlines())


def test_source_files_are_short() -> None:
    long = {
        name_of(path): lines
        for path in sources()
        if (lines := line_count(path.read_text())) > SOURCE_LINES
    }
    assert not long, f"split by concept, at most {SOURCE_LINES} lines: {long}"


def test_test_files_are_short() -> None:
    long = {
        name_of(path): lines
        for path in checks()
        if (lines := line_count(path.read_text())) > TEST_LINES
    }
    assert not long, f"split by behaviour, at most {TEST_LINES} lines: {long}"


def test_files_of_tests_have_names_of_their_own() -> None:
    names = Counter(path.name for path in checks() if path.name.startswith("test_"))
    twice = [name for name, count in names.items() if count > 1]
    assert not twice, f"pytest cannot import two files of one name in one run: {twice}"


def test_functions_are_short() -> None:
    long = [
        f"{name_of(path)}:{function.lineno} {function.name} has {lines} lines"
        for path in [*sources(), *checks()]
        for function in functions(parsed(path))
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES
    ]
    assert not long, f"at most {FUNCTION_LINES} lines: {long}"


def test_modules_are_nouns_of_the_domain() -> None:
    banned = [
        name_of(path)
        for path in [*sources(), *checks()]
        if {path.stem, path.parent.name} & BANNED_MODULES
    ]
    assert not banned, f"say what it is about instead: {banned}"


def test_modules_are_not_named_by_an_adjective_or_a_participle() -> None:
    found = [
        name_of(path)
        for path in sources()
        if path.relative_to(ROOT).parts[0] in PACKAGES and _is_no_noun(path.stem)
    ]
    assert not found, f"name the thing that it is about: {found}"


def _is_no_noun(stem: str) -> bool:
    return stem in NO_NOUNS or bool(re.fullmatch(r"[a-z]+[^aeiou]ed", stem))


def test_a_public_class_name_has_one_meaning() -> None:
    """In all of the product and the demo; files that are shown to users say what they please."""
    places: dict[str, list[str]] = {}
    for path in sources():
        if path.relative_to(ROOT).parts[0] in PACKAGES or path.is_relative_to(ROOT / DEMO):
            if path.is_relative_to(ROOT / STARTER):
                continue
            for node in parsed(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(name_of(path))
    twice = {name: found for name, found in places.items() if len(found) > 1}
    assert not twice, f"say in the name which one it is: {twice}"


def test_every_package_says_what_flows_through_it() -> None:
    faults = []
    for path in package_inits():
        docstring = ast.get_docstring(parsed(path)) or ""
        if missing := [
            word for word in ("Upstream", "Downstream", "Entry point") if word not in docstring
        ]:
            faults.append(f"{name_of(path)} does not say {missing}")
        if line_count(docstring) > INIT_LINES:
            faults.append(f"{name_of(path)} takes {line_count(docstring)} lines")
    assert not faults, faults


def test_entry_points_of_package_docstrings_exist() -> None:
    """A dotted name of ours in a package's docstring is a module or something inside one."""
    faults = []
    roots = {name_of(path).split("/")[0] for path in package_inits()}
    modules = {name_of(path).removesuffix(".py").removesuffix("/__init__") for path in sources()}
    for path in package_inits():
        docstring = ast.get_docstring(parsed(path)) or ""
        for dotted in re.findall(r"`([a-z_]+(?:\.\w+)+)`", docstring):
            parts = dotted.split(".")
            if parts[0] in roots and not _exists(parts, modules):
                faults.append(f"{name_of(path)} names {dotted}")
    assert not faults, faults


def _exists(parts: list[str], modules: set[str]) -> bool:
    for cut in range(len(parts), 0, -1):
        if (module := "/".join(parts[:cut])) in modules:
            return cut == len(parts) or _defines(module, parts[cut])
    return False


def _defines(module: str, name: str) -> bool:
    (path,) = (
        path
        for path in sources()
        if name_of(path).removesuffix(".py").removesuffix("/__init__") == module
    )
    for node in parsed(path).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == name:
                return True
            case ast.Assign(targets=[ast.Name(id=found)]) if found == name:
                return True
            case ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                return True
            case ast.ImportFrom(names=names) if name in {
                each.asname or each.name for each in names
            }:
                return True
            case _:
                continue
    return False
