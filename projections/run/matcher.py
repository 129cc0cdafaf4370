"""Matching rows with a pattern: the one piece of a projection that is plain Python.

DuckDB and Spark call the same function, with the rows of a partition as a list of structs in any
order; it gives the matches as a list of structs. The search tries what the pattern prefers first
(more repetitions, earlier choices), and takes the first way that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Context, Decimal, localcontext
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import InvalidRequest
from projections.run.match_values import OPERATORS, quotient, sortable, total_of
from projections.run.spark_values import divided
from projections.sql.operators.formulas import (
    Field,
    Formula,
    FormulaOperation,
    Pick,
    Take,
    Taken,
    Value,
    parts_of,
)
from projections.sql.operators.patterns import (
    Choice,
    MatchSkip,
    Pattern,
    Repeated,
    Sequel,
    Variable,
)
from projections.sql.operators.shape import ORDER
from projections.sql.operators.tree import Match
from projections.sql.rendering.match_text import given_columns, taken_columns
from projections.sql.words.decimals import DECIMAL

MOST_STEPS = 1_000_000
"""So many steps a search from one row may take before it is given up as hopeless."""
ROWS_AT_ONCE = 4_096
"""Rows that are Python objects at the same time, unless one partition has more. Each is a kilobyte
or more as such, and a batch may have any number of them."""
_EXACT = Context(prec=200)
"""Python rounds decimals to 28 digits by itself, where Spark's have up to 38, and products more."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Bound:
    """Rows that are matched so far, the newest first: a list that shares its tails."""

    variable: str
    row: Row
    before: _Bound | None


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction: take a row as `variable`, or go on at one of several others in turn."""

    variable: str | None
    then: tuple[int, ...]


_Condition = Callable[[_Bound], Any]
_Mapped = tuple[str, Row]
"""A row of a match, and the variable that it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """Finds matches. It can be sent to Spark's workers.

    `taken` and `given` are the names of the structs' fields, in order.
    """

    pattern: Pattern
    conditions: tuple[tuple[str, Formula], ...]
    time: str
    within_us: int | None
    skip: MatchSkip
    skip_to: str | None
    each_row: bool
    picks: tuple[Pick, ...]
    taken: tuple[str, ...]
    given: pa.DataType

    def __call__(self, partitions: pa.Array) -> pa.Array:
        """Return the matches of each partition."""
        found = [
            pa.array([self._of(rows or []) for rows in few.to_pylist()], self.given)
            for few in _few_at_once(partitions)
        ]
        return pa.concat_arrays(found)

    def _of(self, structs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        rows = [{name: struct[f"f{i}"] for i, name in enumerate(self.taken)} for struct in structs]
        found = self.matches(rows)
        return [{f"g{i}": value for i, value in enumerate(each)} for each in found]

    def matches(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        """Return the matches in the rows of one partition, as values of `given_columns`."""
        with localcontext(_EXACT):
            return self._found(rows)

    def _found(self, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
        ordered = sorted(rows, key=self._order)
        search = _Search(self, ordered)
        found: list[tuple[Any, ...]] = []
        start = 0
        while start < len(ordered):
            bound = search.from_row(start)
            if bound is None:
                start += 1
                continue
            matched = _rows(bound)
            found += self._results(matched)
            start += self._passed(matched)
        return found

    def _results(self, matched: Sequence[_Mapped]) -> Iterator[tuple[Any, ...]]:
        """Yield the results of a match: of the whole, or of each row with those before it."""
        ends = matched[0][1][self.time], matched[-1][1][self.time]
        for count in range(1 if self.each_row else len(matched), len(matched) + 1):
            so_far = matched[:count]
            last = so_far[-1][1]
            values = (_picked(p, matched if p.taken.whole else so_far) for p in self.picks)
            yield (*(last[name] for name in ORDER), *ends, *values)

    def _passed(self, matched: Sequence[_Mapped]) -> int:
        """Return how many rows behind the first one of a match the search goes on: never at it."""
        if self.skip is MatchSkip.PAST_LAST_ROW:
            return len(matched)
        if self.skip is MatchSkip.TO_NEXT_ROW:
            return 1
        places = [place for place, (name, _) in enumerate(matched) if name == self.skip_to]
        return max(1, places[0 if self.skip is MatchSkip.TO_FIRST else -1])

    def _order(self, row: Row) -> list[tuple[Any, ...]]:
        """Order rows by time and place, then by all that they hold, as every other operator."""
        return [sortable(row[name]) for name in (self.time, *self.taken)]


class _Search:
    """Tries a pattern from one row after the other."""

    def __init__(self, matcher: Matcher, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._time = matcher.time
        self._within_us = matcher.within_us
        self._conditions = {name: _compiled(formula) for name, formula in matcher.conditions}
        # Where no condition looks back, a place in the pattern and a row that led to nothing once
        # lead to nothing again, whatever was matched before.
        self._forgets = not any(
            isinstance(part, Taken)
            for _, formula in matcher.conditions
            for part in parts_of(formula)
        )
        self._steps: list[_Step] = []
        self._compile(matcher.pattern)
        self._steps.append(_Step(None, ()))

    def from_row(self, start: int) -> _Bound | None:
        """Return the match that begins at a row, in the way that is preferred; None for none."""
        end = len(self._steps) - 1
        waiting: list[tuple[int, int, _Bound | None]] = [(0, start, None)]
        seen: set[tuple[int, int]] = set()
        for _ in range(MOST_STEPS):
            if not waiting:
                return None
            at, row, bound = waiting.pop()
            if at == end:
                return bound
            if self._forgets:
                if (at, row) in seen:
                    continue
                seen.add((at, row))
            step = self._steps[at]
            if step.variable is None:
                waiting += [(then, row, bound) for then in reversed(step.then)]
                continue
            taken = self._take(step.variable, start, row, bound)
            if taken is not None:
                waiting.append((at + 1, row + 1, taken))
        raise InvalidRequest(
            f"the pattern can be tried in more than {MOST_STEPS} ways from one row",
            remedy="Bound it by WITHIN, or let its parts exclude each other.",
        )

    def _take(self, variable: str, start: int, row: int, bound: _Bound | None) -> _Bound | None:
        if row >= len(self._rows):
            return None
        if self._within_us is not None:
            length = self._rows[row][self._time] - self._rows[start][self._time]
            if length > self._within_us:
                return None
        taken = _Bound(variable, self._rows[row], bound)
        condition = self._conditions.get(variable)
        return taken if condition is None or condition(taken) is True else None

    def _compile(self, pattern: Pattern) -> None:
        match pattern:
            case Variable():
                self._steps.append(_Step(pattern.name, ()))
            case Sequel():
                for part in pattern.parts:
                    self._compile(part)
            case Choice():
                self._compile_choice(pattern)
            case Repeated():
                self._compile_repeated(pattern)

    def _compile_choice(self, pattern: Choice) -> None:
        fork = len(self._steps)
        self._steps.append(_Step(None, ()))
        begins, ends = [], []
        for part in pattern.parts:
            begins.append(len(self._steps))
            self._compile(part)
            ends.append(len(self._steps))
            self._steps.append(_Step(None, ()))
        self._steps[fork] = _Step(None, tuple(begins))
        for end in ends:
            self._steps[end] = _Step(None, (len(self._steps),))

    def _compile_repeated(self, pattern: Repeated) -> None:
        for _ in range(pattern.least):
            self._compile(pattern.part)
        forks = []
        more = 1 if pattern.most is None else pattern.most - pattern.least
        for _ in range(more):
            forks.append(len(self._steps))
            self._steps.append(_Step(None, ()))
            self._compile(pattern.part)
        if pattern.most is None:
            self._steps.append(_Step(None, (forks[0],)))
        for fork in forks:
            ways = (fork + 1, len(self._steps))
            self._steps[fork] = _Step(None, ways[::-1] if pattern.reluctant else ways)


def matcher_of(node: Match, kinds: Callable[[str], pa.DataType]) -> Matcher:
    """Return the matcher of a node; `kinds` gives the Arrow type of a column's type."""
    given = [(f"g{i}", kinds(each.type)) for i, each in enumerate(given_columns(node))]
    return Matcher(
        pattern=node.pattern,
        conditions=node.conditions,
        time=node.time,
        within_us=node.within_us,
        skip=node.skip,
        skip_to=node.skip_to,
        each_row=node.each_row,
        picks=node.picks,
        taken=tuple(each.name for each in taken_columns(node)),
        given=pa.list_(pa.struct(given)),
    )


def _few_at_once(partitions: pa.Array) -> Iterator[pa.Array]:
    """Cut partitions into runs of them that have few rows together."""
    rows = pc.fill_null(pc.list_value_length(partitions), 0).to_numpy(zero_copy_only=False)
    full = rows.cumsum() // ROWS_AT_ONCE
    cuts = np.flatnonzero(np.diff(full)) + 1
    for first, end in pairwise([0, *cuts.tolist(), len(partitions)]):
        yield partitions.slice(first, end - first)


def _rows(bound: _Bound | None) -> list[_Mapped]:
    found = []
    while bound is not None:
        found.append((bound.variable, bound.row))
        bound = bound.before
    return found[::-1]


def _picked(pick: Pick, matched: Sequence[_Mapped]) -> Any:
    """Return a measure: an average of decimals with as many digits as its type has, as in SQL."""
    size = DECIMAL.fullmatch(pick.type)
    if pick.taken.take is not Take.AVG or size is None:
        return _taken(pick.taken, matched)
    total, count = (
        _taken(replace(pick.taken, take=take), matched) for take in (Take.SUM, Take.COUNT)
    )
    digits, scale = int(size[1]), int(size[2])
    return None if total is None else Decimal(divided(str(total), str(count), digits, scale))


def _taken(taken: Taken, matched: Sequence[_Mapped]) -> Any:
    """Return something of the rows of a match, from the first to the last."""
    if taken.take is Take.VARIABLE:
        return matched[-1][0]
    rows = [row for variable, row in matched if taken.variable in (None, variable)]
    if taken.column is None:
        return len(rows)
    if taken.take in (Take.FIRST, Take.LAST):
        rows = rows if taken.take is Take.FIRST else rows[::-1]
        rows = rows[taken.passed : taken.passed + 1]
    if taken.failed is not None and any(row[taken.failed] for row in rows):
        raise _failure()
    values = [row[taken.column] for row in rows]
    if taken.take in (Take.FIRST, Take.LAST):
        return values[0] if values else None
    known = [value for value in values if value is not None]
    if taken.take is Take.COUNT:
        return len(known)
    if not known:
        return None
    if taken.take in (Take.MIN, Take.MAX):
        chosen = (min if taken.take is Take.MIN else max)(known, key=sortable)
        return chosen + 0.0 if isinstance(chosen, float) else chosen
    total = total_of(known)
    return total if taken.take is Take.SUM else quotient(total, len(known))


def _compiled(formula: Formula) -> _Condition:
    match formula:
        case Value():
            constant = formula.value
            return lambda bound: constant
        case Field():
            return _of_row(formula.column, formula.failed)
        case Taken():
            return lambda bound: _taken(formula, _rows(bound))
        case FormulaOperation():
            parts = [_compiled(part) for part in formula.parts]
            if formula.sign in ("and", "or"):
                return _connected(*parts, decides=formula.sign == "or")
            if formula.sign == "coalesce":
                return _first_known(parts)
            operator = OPERATORS[formula.sign]
            return lambda bound: operator(*(part(bound) for part in parts))


def _of_row(name: str, failed: str | None) -> _Condition:
    if failed is None:
        return lambda bound: bound.row[name]

    def known(bound: _Bound) -> Any:
        if bound.row[failed]:
            raise _failure()
        return bound.row[name]

    return known


def _failure() -> InvalidRequest:
    return InvalidRequest(
        "a division by zero, a number that is too large, or a value that a cast cannot read, in a "
        "pattern",
        remedy="Let conditions before it keep such rows out: A.n <> 0 AND 10 / A.n > 1.",
    )


def _connected(one: _Condition, other: _Condition, *, decides: bool) -> _Condition:
    """Ask two conditions in turn: the second one may be an error where the first one decides."""

    def connected(bound: _Bound) -> Any:
        first = one(bound)
        second = decides if first is decides else other(bound)
        if second is decides:
            return decides
        return None if first is None or second is None else not decides

    return connected


def _first_known(parts: Sequence[_Condition]) -> _Condition:
    """Ask for values until one is known: those behind it may be errors."""

    def known(bound: _Bound) -> Any:
        values = (part(bound) for part in parts)
        return next((value for value in values if value is not None), None)

    return known
