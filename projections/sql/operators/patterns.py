"""Patterns of rows: what stands in PATTERN (…), as a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import permutations

from sqlglot.tokens import Token, TokenType

from projections.sql.words.places import Script
from projections.sql.words.tokens import TokenCursor

MOST_REPEATED = 100
"""So often a part may be said to be repeated; each repetition is a step of the matcher."""
MOST_PERMUTED = 5
"""So many parts PERMUTE takes: n of them follow each other in n! ways."""
FORM = "PATTERN (A B+ (C | D){1,3} E? PERMUTE(F, G)), each letter a variable of DEFINE or any row"
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True)
class Variable:
    """One row for which the variable's condition holds."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequel:
    """Parts that follow each other."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several parts, an earlier one before a later one."""

    parts: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """A part several times in a row, as often as possible, or as seldom if `reluctant`.

    `most` is None without a bound.
    """

    part: Pattern
    least: int
    most: int | None
    reluctant: bool


Pattern = Variable | Sequel | Choice | Repeated


class MatchSkip(StrEnum):
    """Where the search goes on after a match; the last two name a variable of the match."""

    PAST_LAST_ROW = "past last row"
    TO_NEXT_ROW = "to next row"
    TO_FIRST = "to first"
    TO_LAST = "to last"


def variables(pattern: Pattern) -> tuple[str, ...]:
    """Return the variables of a pattern, each once, in the order in which they stand there."""
    match pattern:
        case Variable():
            found: list[str] = [pattern.name]
        case Repeated():
            found = [*variables(pattern.part)]
        case _:
            found = [name for part in pattern.parts for name in variables(part)]
    return tuple(dict.fromkeys(found))


def can_be_empty(pattern: Pattern) -> bool:
    """Say whether a pattern may match no row at all."""
    match pattern:
        case Variable():
            return False
        case Repeated():
            return pattern.least == 0 or can_be_empty(pattern.part)
        case Sequel():
            return all(map(can_be_empty, pattern.parts))
        case Choice():
            return any(map(can_be_empty, pattern.parts))


def always_has(pattern: Pattern, variable: str) -> bool:
    """Say whether each match has a row that is this variable."""
    match pattern:
        case Variable():
            return pattern.name == variable
        case Repeated():
            return pattern.least > 0 and always_has(pattern.part, variable)
        case Sequel():
            return any(always_has(part, variable) for part in pattern.parts)
        case Choice():
            return all(always_has(part, variable) for part in pattern.parts)


def parse_pattern(script: Script, tokens: Sequence[Token]) -> Pattern:
    """Read the tokens between the brackets of PATTERN. Raises `InvalidRequest` at a wrong one."""
    cursor = TokenCursor(script, tokens, form=FORM)
    at = cursor.at
    found = _choice(cursor)
    if cursor.rest:
        raise cursor.refusal(f"expected the end of the pattern, found {cursor.found()}")
    if can_be_empty(found):
        raise script.refusal(
            "the pattern may match no row at all", at=at, fix="Let at least one row be needed."
        )
    return found


def _choice(cursor: TokenCursor) -> Pattern:
    parts = [_sequel(cursor)]
    while cursor.take("|"):
        parts.append(_sequel(cursor))
    return parts[0] if len(parts) == 1 else Choice(tuple(parts))


def _sequel(cursor: TokenCursor) -> Pattern:
    parts = [_repeated(cursor)]
    while cursor.rest and cursor.rest[0].text not in ("|", ")", ","):
        parts.append(_repeated(cursor))
    return parts[0] if len(parts) == 1 else Sequel(tuple(parts))


def _repeated(cursor: TokenCursor) -> Pattern:
    at = cursor.at
    words = [token.text.upper() for token in cursor.rest[:2]]
    if words == ["PERMUTE", "("]:
        part = _permuted(cursor)
    elif cursor.take("("):
        part = _choice(cursor)
        cursor.expect(")")
    else:
        part = Variable(cursor.name("a variable").upper())
    least, most = 1, None
    for sign, bounds in _QUANTIFIERS.items():
        if cursor.take(sign):
            least, most = bounds
            break
    else:
        if not cursor.take("{"):
            return part
        least, most = _bounds(cursor)
    if can_be_empty(part):
        raise cursor.script.refusal(
            "what may match no row at all is repeated", at=at, fix="Let it need at least one row."
        )
    return Repeated(part, least, most, reluctant=cursor.take("?"))


def _permuted(cursor: TokenCursor) -> Pattern:
    """Read PERMUTE(A, B): its parts in any order, the one in which they are written before all."""
    at = cursor.at
    cursor.take("PERMUTE")
    cursor.take("(")
    parts = [_choice(cursor)]
    while cursor.take(","):
        parts.append(_choice(cursor))
    cursor.expect(")")
    if len(parts) > MOST_PERMUTED:
        raise cursor.script.refusal(
            f"PERMUTE of {len(parts)} parts: they follow each other in too many ways",
            at=at,
            fix=f"Permute {MOST_PERMUTED} parts at most.",
        )
    ways = [Sequel(each) for each in permutations(parts)]
    return parts[0] if len(parts) == 1 else Choice(tuple(ways))


def _bounds(cursor: TokenCursor) -> tuple[int, int | None]:
    at = cursor.at
    least = _number(cursor) if cursor.rest[0].text != "," else 0
    most: int | None = least
    if cursor.take(","):
        most = None if cursor.rest[0].text == "}" else _number(cursor)
    cursor.expect("}")
    if (most is not None and (most < least or most == 0)) or max(least, most or 0) > MOST_REPEATED:
        raise cursor.script.refusal(
            f"a part is repeated {least} to {most} times",
            at=at,
            fix=f"Write {{n}}, {{n,}}, {{n,m}} or {{,m}} with n <= m <= {MOST_REPEATED}.",
        )
    return least, most


def _number(cursor: TokenCursor) -> int:
    if not cursor.rest or cursor.rest[0].token_type is not TokenType.NUMBER:
        raise cursor.refusal(f"expected a number of repetitions, found {cursor.found()}")
    text = cursor.rest[0].text
    cursor.take(text)
    if not text.isdigit():
        raise cursor.refusal(f"{text} is no number of repetitions")
    return int(text)
