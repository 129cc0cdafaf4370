"""The error tree: drawn as it is, documented, with a remedy, and able to cross process borders."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel import errors
from kernel.errors import PenstockError, Retry, exit_code, retry_directive
from tests.architecture.tree import PACKAGES, ROOT, name_of, parsed, sources
from tests.docs.markdown import table
from tests.support.services.workers import CODE

pytestmark = pytest.mark.xdist_group(CODE)


def tree(root: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    """Yield the kernel's classes below `root`; others may be imported by other tests."""
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from tree(child)


ERRORS = sorted(tree(), key=lambda kind: kind.__name__)
PLAIN = {"Exception", "RuntimeError", "ValueError", "OSError", "LookupError", "KeyError"}
EXIT_CODES = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}


def drawn() -> dict[str, str | None]:
    """Return name -> parent as the module's docstring draws them; indentation is depth."""
    parents: dict[str, str | None] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"^([ │├└─]*)([A-Z][A-Za-z]+)(?:\s{2,}|$)", line):
            depth, name = len(found.group(1)), found.group(2)
            path = [(at, each) for at, each in path if at < depth]
            parents[name] = path[-1][1] if path else None
            path.append((depth, name))
    return parents


def documented() -> dict[str, dict[str, str]]:
    rows = table(ROOT / "docs/reference/errors.md", first="error")
    return {row["error"].strip("`"): row for row in rows}


def parent_of(kind: type[PenstockError]) -> str | None:
    return None if kind is PenstockError else kind.__mro__[1].__name__


def test_the_tree_at_the_top_of_the_module_is_the_tree() -> None:
    assert drawn() == {kind.__name__: parent_of(kind) for kind in ERRORS}


def test_all_errors_are_in_the_one_tree() -> None:
    """An error that callers can meet is in the kernel's tree.

    A private exception may steer one module, and one that no other folder imports its own folder.
    """
    ours = {kind.__name__ for kind in ERRORS}
    strangers = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in sources()
        if path.relative_to(ROOT).parts[0] in PACKAGES and name_of(path) != "kernel/errors.py"
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        and (bases := {ast.unparse(each).split(".")[-1] for each in node.bases})
        and (bases & ours or (bases & PLAIN and _callers_meet(path, node)))
    ]
    assert not strangers


def _callers_meet(path: Path, node: ast.ClassDef) -> bool:
    module = name_of(path).removesuffix(".py").replace("/", ".")
    return not node.name.startswith("_") and any(
        node.name in {each.name for each in found.names}
        for other in sources()
        if other.parent != path.parent
        for found in ast.walk(parsed(other))
        if isinstance(found, ast.ImportFrom) and found.module == module
    )


@pytest.mark.parametrize("kind", ERRORS)
def test_is_documented_in_code_and_has_a_remedy(kind: type[PenstockError]) -> None:
    assert inspect.getdoc(kind) != inspect.getdoc(kind.__mro__[1])
    assert kind.remedy.strip().endswith((".", ".avsc", "FILE")), kind.remedy
    assert isinstance(kind.retry, Retry)


@pytest.mark.parametrize("kind", ERRORS)
def test_survives_the_way_to_another_process(kind: type[PenstockError]) -> None:
    sent = kind("what happened", remedy="what to do", expected=3, actual=None)
    got = pickle.loads(pickle.dumps(sent))
    assert type(got) is kind
    assert (got.message, got.remedy, got.fields) == (
        "what happened",
        "what to do",
        {"expected": 3, "actual": None},
    )
    assert str(got) == "what happened"


@pytest.mark.parametrize("kind", ERRORS)
def test_own_remedy_is_kept_on_the_way_too(kind: type[PenstockError]) -> None:
    assert pickle.loads(pickle.dumps(kind("x"))).remedy == kind.remedy


@pytest.mark.parametrize("kind", ERRORS)
def test_reference_page_tells_the_truth(kind: type[PenstockError]) -> None:
    row = documented()[kind.__name__]
    assert row["is a"].strip("`") == (parent_of(kind) or "")
    assert row["retry"] == kind.retry.value
    assert row["exit code"] == str(exit_code(kind("x")))


def test_reference_page_lists_nothing_else() -> None:
    assert set(documented()) == {kind.__name__ for kind in ERRORS}


@pytest.mark.parametrize("kind", ERRORS)
def test_has_an_exit_code_and_a_retry_directive(kind: type[PenstockError]) -> None:
    assert exit_code(kind("x")) in EXIT_CODES - {errors.EXIT_OK}
    assert retry_directive(kind("x")) is kind.retry


def test_what_is_not_ours_is_never_retried() -> None:
    assert retry_directive(ValueError("x")) is Retry.NEVER
    assert exit_code(ValueError("x")) == errors.EXIT_FAILED
