"""Places in SQL text, and refusals that name them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from sqlglot import exp

from kernel.errors import InvalidRequest

P = ParamSpec("P")
R = TypeVar("R")


_TOO_DEEP = "an expression has too many operators in a row, or brackets within each other"
_LESS_DEEP = (
    "Write x IN (…) for a chain of ORs, greatest(…) or concat(…) for one of operators, or compute "
    "parts of it in a WITH."
)


class Piece(NamedTuple):
    """A part of a text that was made of another one, at `at` of that; `same` as it stands there."""

    text: str
    at: int
    same: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A whole text and its name, to turn offsets into lines and columns (both from 1).

    A text that was made of another one, `written`, consists of `pieces`: its places are in that.
    """

    origin: str
    text: str = field(repr=False)
    pieces: tuple[Piece, ...] = field(default=(), repr=False, compare=False)
    written: Script | None = field(default=None, repr=False, compare=False)

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column of a character offset."""
        if self.written is not None:
            for piece in self.pieces:
                if offset < len(piece.text) or piece is self.pieces[-1]:
                    inside = min(offset, len(piece.text)) if piece.same else 0
                    return self.written.place(piece.at + inside)
                offset -= len(piece.text)
        before = self.text[: max(0, min(offset, len(self.text)))]
        return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1

    def refusal(self, message: str, *, at: int, fix: str) -> InvalidRequest:
        """Make the error for the caller to raise: place and reason, and a form that works."""
        line, column = self.place(at)
        return InvalidRequest(
            f"{self.origin}:{line}:{column}: {message}",
            remedy=fix,
            origin=self.origin,
            line=line,
            column=column,
        )


def refusing_depth(work: Callable[P, R]) -> Callable[P, R]:
    """Make of Python's limit on recursion a refusal: some 500 operators or brackets in a row."""

    @wraps(work)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return work(*args, **kwargs)
        except RecursionError as error:
            raise InvalidRequest(_TOO_DEEP, remedy=_LESS_DEEP) from error

    return wrapped


def too_deep(script: Script, at: int) -> InvalidRequest:
    """Make the error for a statement at a place, which is deeper than Python recurs."""
    return script.refusal(_TOO_DEEP, at=at, fix=_LESS_DEEP)


def offset_of(node: exp.Expr, default: int) -> int:
    """Return where the text of `node` begins: the least offset known inside it.

    Nodes without any text of their own (`*`, operators) are found by their operands.
    """
    offsets = [found.meta["start"] for found in node.walk() if "start" in found.meta]
    return min(offsets, default=default)


def with_offsets(node: exp.Expr, default: int) -> list[tuple[exp.Expr, int]]:
    """Return every node inside with its `offset_of`, in the order of `walk`.

    In one pass: a chain of some hundred ORs is as deep as it is long.
    """
    order = list(node.walk())
    least: dict[int, int] = {}
    for found in reversed(order):
        inside = [least[id(part)] for part in found.iter_expressions() if id(part) in least]
        if "start" in found.meta:
            inside.append(found.meta["start"])
        if inside:
            least[id(found)] = min(inside)
    whole = least.get(id(node), default)
    return [(found, least.get(id(found), whole)) for found in order]


def near_of(name: str, known: Iterable[str]) -> str | None:
    """Return the name that is nearest to another one, in whatever case; None when none is near."""
    names = {each.lower(): each for each in sorted(set(known), reverse=True)}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return names[near[0]] if near else None


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean x?`, or what there is when nothing is near."""
    names = sorted(set(known))
    near = near_of(name, names)
    if near is not None:
        return f"; did you mean {near}?"
    return f"; there is {', '.join(names)}" if names else ""
