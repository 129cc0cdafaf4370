"""How arguments and options are read: plain values, and what to say of one that is wrong.

Typer reads every value with pydantic, which takes longer to load than most commands run. Texts,
numbers, paths and choices need none of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperArgument, TyperOption

from kernel.positions import LARGEST

_NAMES = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "PATH", bool: None}
_WANTED = {int: "a whole number", float: "a number"}


class PlainValue:
    """Reads the values of one argument or option. Typer calls it as it calls its own readers."""

    def __init__(
        self,
        kind: Callable[[Any], Any],
        wanted: str,
        bounds: tuple[float | None, float | None],
        many: bool,
    ):
        self.kind = kind
        self.wanted = wanted
        self.least, self.most = bounds
        self.many = many

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as its kind. Raises `typer.BadParameter`."""
        if value is None:
            return () if self.many else None
        if self.many:
            return [self._read(each, param, ctx) for each in value]
        return self._read(value, param, ctx)

    def _read(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            found = self.kind(value)
        except ValueError:
            what = f"expected {self.wanted}, found '{value}'"
            raise typer.BadParameter(what, ctx, param) from None
        if self.least is not None and found < self.least:
            raise typer.BadParameter(f"expected {self.least} or more, found {value}", ctx, param)
        if self.most is not None and found > self.most:
            raise typer.BadParameter(f"expected {self.most} or less, found {value}", ctx, param)
        return found


def read_plainly(param: object) -> None:
    """Let a parameter read its values without pydantic, and name their kind in plain words.

    A parameter of another kind keeps Typer's reader. A version of Typer that knows nothing of such
    readers keeps its own.
    """
    if not isinstance(param, TyperArgument | TyperOption):
        return
    info = param.type_descriptor.parameter_info
    kind: Any = param.type_descriptor.annotation
    many = get_origin(kind) is list
    kind = get_args(kind)[0] if many else kind
    if isinstance(kind, type) and issubclass(kind, Enum):
        choices = {str(each.value).lower(): each for each in kind}
        wanted = f"one of {', '.join(str(each.value) for each in kind)}"
        reader = PlainValue(lambda value: _chosen(choices, value), wanted, (None, None), many)
    elif kind in _NAMES:
        wanted = _WANTED.get(kind, "another value")
        reader = PlainValue(_READERS.get(kind, kind), wanted, _bounds(kind, info), many)
    else:
        return
    param.__dict__["_runtime_param"] = reader
    if param.metavar is None and kind in _NAMES:
        argument = isinstance(param, TyperArgument)
        param.metavar = (param.name or "").upper().rstrip("_") if argument else _NAMES[kind]


def _bounds(kind: Any, info: Any) -> tuple[float | None, float | None]:
    """Return the least and the greatest value; no table and no store has numbers beyond 64 bits."""
    if kind is not int:
        return info.min, info.max
    least = -LARGEST if info.min is None else info.min
    return least, LARGEST if info.max is None else info.max


def _finite(value: Any) -> float:
    """Read a number. No clock comes to `nan` or `inf`: who waits for one waits for ever."""
    found = float(value)
    if not math.isfinite(found):
        raise ValueError(value)
    return found


_READERS: dict[Any, Callable[[Any], Any]] = {float: _finite}


def _chosen(choices: dict[str, Enum], value: Any) -> Enum:
    found = choices.get(str(value).lower())
    if found is None:
        raise ValueError(value)
    return found
