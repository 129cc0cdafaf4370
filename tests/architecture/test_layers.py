"""What the import linter cannot say: the kernel's size and diet, and where drivers may be met."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT, name_of, parsed, sources

KERNEL_MODULES = 7


@cache
def imported_roots(path: Path) -> set[str]:
    """Return the first parts of all modules that a file imports, wherever in the file."""
    roots: set[str] = set()
    for node in ast.walk(parsed(path)):
        match node:
            case ast.Import(names=names):
                roots |= {each.name.partition(".")[0] for each in names}
            case ast.ImportFrom(module=str(module), level=0):
                roots.add(module.partition(".")[0])
            case _:
                continue
    return roots


def test_kernel_is_small() -> None:
    modules = sorted(path.stem for path in (ROOT / "kernel").glob("*.py"))
    modules.remove("__init__")
    assert len(modules) <= KERNEL_MODULES, modules


def test_kernel_needs_the_standard_library_only() -> None:
    allowed = sys.stdlib_module_names | {"kernel"}
    found = {
        name_of(path): foreign
        for path in (ROOT / "kernel").rglob("*.py")
        if (foreign := imported_roots(path) - allowed)
    }
    assert not found


@pytest.mark.parametrize(
    ("driver", "homes"),
    [
        (
            "pyspark",
            (
                "lake",
                "pipeline",
                "projections",
                "replay",
                "apps",
                "stack",
                "benchmarks",
                "examples",
            ),
        ),
        ("psycopg", ("eventstore", "cdc", "apps", "stack", "benchmarks", "examples")),
        ("fastapi", ("service",)),
        ("typer", ("apps", "examples")),
    ],
)
def test_a_driver_is_met_only_where_it_belongs(driver: str, homes: tuple[str, ...]) -> None:
    strangers = [
        name_of(path)
        for path in sources()
        if driver in imported_roots(path) and path.relative_to(ROOT).parts[0] not in homes
    ]
    assert not strangers, f"{driver} is imported outside of {homes}: {strangers}"


def test_only_apps_reads_settings_and_the_environment() -> None:
    """Settings are read once, in the composition root, and handed down as values.

    Failpoints are armed by the environment, and the secret of a source or of a delivery is not a
    setting: its file names the variable that holds it.
    """
    exempt = {"kernel/failpoints.py", "cdc/sources.py", "delivery/secrets.py"}
    readers = [
        name_of(path)
        for path in sources()
        if path.relative_to(ROOT).parts[0]
        in {"kernel", "schemas", "cdc", "eventstore", "replay", "delivery", "service"}
        and name_of(path) not in exempt
        and any(_reads_environment(node) for node in ast.walk(parsed(path)))
    ]
    assert not readers, readers


def _reads_environment(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "getenv"):
            return True
        case _:
            return False
