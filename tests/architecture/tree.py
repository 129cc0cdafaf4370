"""What the architecture tests read: the repository's files, without what is generated."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("kernel", "schemas", "cdc", "eventstore", "lake"),
    *("pipeline", "projections", "replay", "delivery", "service", "stack", "apps"),
)
SOURCE_ROOTS = (*PACKAGES, "benchmarks", "clients", "examples")
TEXT_SUFFIXES = {
    *(".css", ".csv", ".html", ".js", ".md", ".sh", ".sql", ".svg", ".ts", ".txt", ".xml"),
    *(".avsc", ".cfg", ".json", ".lock", ".properties", ".py", ".toml", ".yaml", ".yml"),
}


@cache
def files() -> tuple[Path, ...]:
    """Return every file that belongs to the repository, none that `.gitignore` names."""
    return tuple(_listed())


def _listed() -> Iterator[Path]:
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            if path.name == ".git" or is_ignored(path):
                continue
            if path.is_dir() and not path.is_symlink():
                folders.append(path)
            elif path.is_file():
                yield path


def is_ignored(path: Path) -> bool:
    """Return whether a pattern of `.gitignore` names a file or folder; its parents are not asked.

    A pattern that begins with a slash means the root alone.
    """
    relative = str(path.relative_to(ROOT))
    return any(
        fnmatch(relative, each[1:])
        if each.startswith("/")
        else fnmatch(path.name, each) or fnmatch(relative, each)
        for each in _ignore_patterns()
    )


def texts() -> Iterator[tuple[Path, str]]:
    """Yield every text file of the repository with its content."""
    for path in files():
        if path.suffix in TEXT_SUFFIXES or not path.suffix:
            try:
                yield path, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


@cache
def sources() -> tuple[Path, ...]:
    """Return the Python files of the product, benchmarks and examples; not the tests."""
    return tuple(
        path
        for path in files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in SOURCE_ROOTS
    )


@cache
def checks() -> tuple[Path, ...]:
    """Return the Python files under `tests/`."""
    return tuple(
        path
        for path in files()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == "tests"
    )


def package_inits() -> list[Path]:
    """Return the `__init__.py` of every package of the product, nested ones included."""
    return [
        path
        for path in sources()
        if path.name == "__init__.py" and path.relative_to(ROOT).parts[0] in PACKAGES
    ]


@cache
def parsed(path: Path) -> ast.Module:
    """Parse a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def functions(module: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a module, methods and nested ones included."""
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def name_of(path: Path) -> str:
    """Return a path as a reader of the repository writes it."""
    return path.relative_to(ROOT).as_posix()


@cache
def _ignore_patterns() -> list[str]:
    lines = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    return [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]
