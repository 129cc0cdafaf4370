"""Reads the two chains of `docs/walkthrough.md` and what the code says about each step."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass

from tests.architecture.tree import ROOT
from tests.docs.markdown import table

PAGE = ROOT / "docs/walkthrough.md"
CHAINS = {"command": "command step", "capture": "capture step"}
"""Chain -> the first heading of its table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One row: a step of a chain, as the page tells it.

    `takes` is a type, or a field of the type that came before (`Brought.epoch`).
    `function` and `file` are None where the step happens outside of our code (in PostgreSQL,
    Debezium or Kafka): then types are names of records only.
    """

    name: str
    takes: str
    gives: tuple[str, ...]
    function: str | None
    file: str | None
    test: str | None
    wrong: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The type names in a function's parameters (a method's class among them) and result."""

    takes: frozenset[str]
    gives: frozenset[str]


def chain(name: str) -> list[Step]:
    """Return the steps of a chain in order."""
    heading = CHAINS[name]
    return [
        Step(
            name=row[heading],
            takes=_one(row["input"]) or "",
            gives=tuple(_code(row["output"])),
            function=_one(row["function"]),
            file=_one(row["file"]),
            test=_one(row["test"]),
            wrong=row["what may go wrong"],
        )
        for row in table(PAGE, first=heading)
    ]


def traced_functions() -> set[str]:
    """Return the functions that the page names, as `module:qualified.name`."""
    return {
        f"{step.file.removesuffix('.py').replace('/', '.')}:{step.function}"
        for name in CHAINS
        for step in chain(name)
        if step.file is not None
    }


def signature(function: str, file: str) -> Signature:
    """Import `function` of `file` and read its annotations.

    It is a function's name, `Class.method`, or a dataclass, whose fields are what it takes.
    Aliases of unions in its module are opened. Raises `AttributeError` when there is none.
    """
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    owner, _, method = function.rpartition(".")
    holder = getattr(module, owner) if owner else module
    found: Callable[..., object] = getattr(holder, method)
    read = inspect.signature(found)
    parameters = [each.annotation for each in read.parameters.values()]
    takes = {name for each in parameters for name in _names(each, vars(module))}
    made = {method} if inspect.isclass(found) else _names(read.return_annotation, vars(module))
    return Signature(takes=frozenset(takes | ({owner} if owner else set())), gives=frozenset(made))


def type_of_field(place: str, file: str) -> frozenset[str]:
    """Return the type names of `Class.field` of a dataclass that `file` defines."""
    name, _, attribute = place.partition(".")
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    annotation = inspect.get_annotations(getattr(module, name))[attribute]
    return frozenset(_names(annotation, vars(module)))


def is_there(place: str) -> bool:
    """Say whether the test `tests/file.py::test_name` is there."""
    file, _, name = place.partition("::")
    path = ROOT / file
    return path.is_file() and any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name
        for node in ast.walk(ast.parse(path.read_text()))
    )


def _names(annotation: object, scope: dict[str, object]) -> set[str]:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    names = {each.rpartition(".")[2] for each in re.findall(r"[A-Za-z_][\w.]*", text)}
    for name in list(names):
        alias = scope.get(name)
        if isinstance(alias, types.UnionType) or typing.get_origin(alias) is typing.Union:
            names |= {each.__name__ for each in typing.get_args(alias)}
    return names


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _one(cell: str) -> str | None:
    return next(iter(_code(cell)), None)
