"""What is computed inside a pattern: conditions over the rows of a match so far, and its measures.

Everything over single rows is a column that the engine computed before; only what looks at several
rows of a match stands here, and is computed by the matcher, the same for both engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum


class Take(StrEnum):
    """What is taken from the rows of a match."""

    FIRST = "first"
    LAST = "last"
    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    VARIABLE = "variable"
    """What the last row was matched as."""


@dataclass(frozen=True, slots=True)
class Value:
    """A constant."""

    value: str | int | Decimal | float | bool | None


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the row that is looked at. `failed` is as in `Taken`."""

    column: str
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """Something of the match's rows so far, the row that is looked at among them.

    `variable` None means all rows, `column` None counts them. `failed` is a column that says where
    the value is an error; None where it never is. `passed` is how many rows behind the first, or
    before the last one it is. `whole`: it is of all rows of a match, also in a result for each row.
    """

    take: Take
    variable: str | None
    column: str | None
    failed: str | None = None
    passed: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class FormulaOperation:
    """An operator or a function over other formulas, by its sign."""

    sign: str
    parts: tuple[Formula, ...]


Formula = Value | Field | Taken | FormulaOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A measure: something of the rows of a whole match. `kind` is the column's type."""

    name: str
    taken: Taken
    kind: str
    type: str


class Family(StrEnum):
    """Kinds of values that are compared and computed with each other."""

    NUMBER = "a number"
    TEXT = "text"
    BOOLEAN = "a truth value"
    TIME = "a time"
    DAY = "a day"
    LENGTH = "a length of time"
    NOTHING = "NULL"


_FAMILIES = {
    "STRING": Family.TEXT,
    "BOOLEAN": Family.BOOLEAN,
    "TIMESTAMP": Family.TIME,
    "DATE": Family.DAY,
}
_TRUTHS = ("and", "or", "not")
_COMPARED = ("=", "<>", ">", ">=", "<", "<=", "<=>")


def family_of(formula: Formula, type_of: Callable[[str], str]) -> Family | None:
    """Return the kind of value that a formula gives; None where its parts do not go together.

    `type_of` gives the type of a column.
    """
    match formula:
        case Value(value=None):
            return Family.NOTHING
        case Value(value=bool()):
            return Family.BOOLEAN
        case Value():
            return Family.TEXT if isinstance(formula.value, str) else Family.NUMBER
        case Taken(take=Take.VARIABLE):
            return Family.TEXT
        case Taken(column=None) | Taken(take=Take.COUNT | Take.AVG):
            return Family.NUMBER
        case Field() | Taken():
            return _FAMILIES.get(type_of(formula.column or ""), Family.NUMBER)
        case FormulaOperation(sign="length"):
            return Family.LENGTH
        case FormulaOperation():
            return _joined(formula.sign, [family_of(part, type_of) for part in formula.parts])


def _joined(sign: str, parts: list[Family | None]) -> Family | None:
    known = {*parts} - {Family.NOTHING}
    if None in known:
        return None
    if sign == "is null":
        return Family.BOOLEAN
    if sign in _COMPARED:
        return Family.BOOLEAN if len(known) < 2 and Family.LENGTH not in known else None
    if sign in _TRUTHS:
        return Family.BOOLEAN if known <= {Family.BOOLEAN} else None
    if sign == "coalesce":
        return next(iter(known), Family.NOTHING) if len(known) < 2 else None
    if sign in ("+", "-") and parts == [Family.TIME, Family.LENGTH]:
        return Family.TIME
    return Family.NUMBER if known <= {Family.NUMBER} else None


def parts_of(formula: Formula) -> Iterator[Formula]:
    """Yield a formula and all that it is made of."""
    yield formula
    if isinstance(formula, FormulaOperation):
        for part in formula.parts:
            yield from parts_of(part)


def columns_of(formula: Formula) -> set[str]:
    """Return the columns that a formula reads."""
    parts = [*parts_of(formula)]
    found = {part.column for part in parts if isinstance(part, Field | Taken)}
    found |= {part.failed for part in parts if isinstance(part, Field | Taken)}
    return {column for column in found if column is not None}
