"""Nothing is silenced, skipped, waited for by the clock, or left for later."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from kernel import failpoints
from tests.architecture.tree import (
    PACKAGES,
    ROOT,
    checks,
    functions,
    name_of,
    parsed,
    sources,
)

PROMISES = range(1, 12)
"""The promises of the product, by their numbers."""
REAL = {"integration", "faults", "e2e"}
"""The folders of tests that run against real services or real tables of the lake."""
PROVEN = re.compile(r"test((?:_p\d+)+)_")
SILENCED = re.compile(r"#\s*(type:\s*ignore|mypy:|pyright:|pylint:|pragma:)")
LATER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SKIPS = {"skip", "skipif", "xfail", "importorskip", "skipTest", "skipUnless", "skipIf"}


def lines_matching(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{name_of(path)}:{number}"
        for path in paths
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_checker_is_silenced() -> None:
    assert not lines_matching(SILENCED, [*sources(), *checks()])


def test_libraries_that_ship_types_are_checked_against_them() -> None:
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    assert not [rule for rule in rules if "follow_imports" in rule or "ignore_errors" in rule]
    ignored = {
        module.removesuffix(".*")
        for rule in rules
        if rule.get("ignore_missing_imports")
        for module in rule["module"]
    }
    typed = sorted(
        module
        for module in ignored
        if (spec := find_spec(module)) is not None
        for folder in spec.submodule_search_locations or []
        if (Path(folder) / "py.typed").exists()
    )
    assert not typed, f"these ship types and are ignored: {typed}"


def test_nothing_is_left_for_later() -> None:
    assert not lines_matching(LATER, [*sources(), *checks()])


def test_no_function_is_a_stub() -> None:
    stubs = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node)
    ]
    assert not stubs


def test_no_test_is_skipped() -> None:
    """A missing service is a failure: nothing may turn it into a skip."""
    skipped = [
        f"{name_of(path)}:{node.lineno}"
        for path in checks()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr in SKIPS and _is_test_library(node)
    ]
    assert not skipped


def test_no_test_waits_by_the_clock_alone() -> None:
    """A sleep may pace a poll with a deadline (inside a loop); alone it only hides a race."""
    bare = [
        f"{name_of(path)}:{call.lineno}"
        for path in checks()
        for call in _sleeps_outside_loops(parsed(path))
    ]
    assert not bare


def test_every_promise_has_a_test_with_its_number() -> None:
    """Laws of pure functions are welcome beside it, but a promise is kept on the real path."""
    proven = {
        int(number)
        for path in checks()
        if REAL & set(path.relative_to(ROOT).parts)
        for function in functions(parsed(path))
        if (found := PROVEN.match(function.name))
        for number in found[1].removeprefix("_p").split("_p")
    }
    missing = [f"P{number}" for number in PROMISES if number not in proven]
    assert not missing, f"no test named test_p<number>_… on the real path: {missing}"
    unknown = sorted(proven - set(PROMISES))
    assert not unknown, f"no promise has these numbers: {unknown}"


def _failpoint_uses(paths: list[Path]) -> set[str]:
    """Return the values of all failpoints that the files name, as constant or as text."""
    values = {
        name: value
        for name, value in vars(failpoints).items()
        if name.isupper() and isinstance(value, str)
    }
    found: set[str] = set()
    for path in paths:
        text = path.read_text()
        found |= {value for name, value in values.items() if re.search(rf"\b{name}\b", text)}
        found |= {value for value in values.values() if value in text}
        if re.search(r"\bEPOCH_STEPS\b", text):
            found |= set(failpoints.EPOCH_STEPS)
    return found


def test_every_failpoint_is_passed_by_the_code() -> None:
    product = [
        path
        for path in sources()
        if path.relative_to(ROOT).parts[0] in PACKAGES and "failpoints.hit(" in path.read_text()
    ]
    missing = sorted(set(failpoints.ALL) - _failpoint_uses(product))
    assert not missing, f"named but never passed: {missing}"


def _is_test_library(node: ast.Attribute) -> bool:
    source = ast.unparse(node)
    return source.startswith(("pytest.", "unittest.", "mark.", "self.skip"))


def _sleeps_outside_loops(module: ast.Module) -> Iterator[ast.Call]:
    looped = {
        id(inner)
        for loop in ast.walk(module)
        if isinstance(loop, ast.While | ast.For | ast.AsyncFor)
        for inner in ast.walk(loop)
    }
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Call)
            and id(node) not in looped
            and ast.unparse(node.func) in {"time.sleep", "sleep", "asyncio.sleep"}
            and ast.unparse(node) != "asyncio.sleep(0)"
        ):
            yield node
