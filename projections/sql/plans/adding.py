"""Groups that are brought up to date by adding new facts to the rows that were given out.

A count, an exact sum, the least and the greatest value, what is chosen by these, and the newest
one, of all facts follow from that of the facts so far and that of the new ones: facts only ever
come. The table's row is what is known of the facts so far, and the commit that has it has the epoch
up to which it is so: there is no other state. What a row does not show (the total and the count of
an average, a sum inside of an expression, what a sum of doubles was rounded from, which row was
chosen) stands in hidden columns of the table beside it.

Groups that HAVING leaves out have no row to add to, and of values that are counted each once a row
does not tell which there were: these are kept by an operator with state. Where a version that facts
look up has changed, their groups are computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlglot import exp

from projections.sql.operators.shape import ORDER, PARTIAL, InputKind
from projections.sql.operators.tree import (
    PARTS_TYPE,
    Call,
    Computed,
    Function,
    Grouped,
    Map,
    Newest,
    Node,
    Scan,
    Stateless,
    Windowed,
    column,
    passed,
    walk,
)
from projections.sql.rendering.batch import (
    called,
    extreme,
    listed,
    mapped,
    names,
    newest_place,
    plain,
    whole,
)
from projections.sql.rendering.dialect import Dialect
from projections.sql.rendering.totals import EXACT_TOTAL
from projections.sql.values.expressions import unwrapped
from projections.sql.words.catalog import Column
from projections.sql.words.decimals import DECIMAL, FLOATING, INTEGERS

GIVEN = "given"
"""The view of the rows that the table has of the touched keys."""
_TOTAL = "DECIMAL(20,0)"
"""Whole numbers of an average are added as this: their total may be more than a BIGINT holds."""
_WIDE = "DECIMAL(30,0)"
"""A sum of such numbers."""
_MOST_SUMMED = 28
"""A sum of decimals of no more digits has room for all of them."""
_TOLD_APART = (*INTEGERS, "STRING", "BOOLEAN", "DATE", "TIMESTAMP")
"""Types whose values are one where they are equal."""
_ORDER_TYPES = ("TIMESTAMP", "BIGINT", "BIGINT")
_CHOOSES = (Function.MAX_BY, Function.MIN_BY)
_AGAIN = {
    Function.COUNT: Function.SUM,
    Function.SUM: Function.SUM,
    Function.MIN: Function.MIN,
    Function.MAX: Function.MAX,
    Function.ALL: Function.ALL,
    Function.ANY: Function.ANY,
    Function.NEWEST: Function.NEWEST,
    Function.PARTS: Function.PARTS,
    Function.BIT_AND: Function.BIT_AND,
    Function.BIT_OR: Function.BIT_OR,
    Function.BIT_XOR: Function.BIT_XOR,
}
"""What makes one result of the results of two parts of a group's facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """An average, and the calls that give its total and its count; without one it is the total.

    A total of doubles is of PARTS: what it is rounded from.
    """

    call: Call
    total: Call
    count: Call | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenValue:
    """A value that is chosen by another one, and the calls that tell of which row it is.

    `by` is that row's value that it was chosen by, `places` are its columns of `ORDER`.
    """

    call: Call
    by: Call
    places: tuple[Call, ...]

    def made_one(self, dialect: Dialect) -> Iterator[tuple[str, str]]:
        """Yield each of its calls' names and the result of those of several parts."""
        name, kind = dialect.name(self.call.name), self.by.type
        call = replace(self.call, by=Column(name=self.by.name, type=kind))
        order = [dialect.name(each.name) for each in self.places]
        for each in (self.call, *self.places):
            yield each.name, extreme(call, name, dialect, dialect.name(each.name), order)
        yield self.by.name, _again(self.by, dialect)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownOfGroups:
    """All that has to be known of groups to add facts to them.

    `groups` has a call for each of it. `held` are those whose results two parts make one of, those
    of `choices` among them, `averages` what follows from them.
    """

    groups: Grouped
    held: tuple[Call, ...]
    averages: tuple[Average, ...]
    choices: tuple[ChosenValue, ...]

    @property
    def of_facts(self) -> Grouped:
        """Return the groups that give what is held of some facts."""
        return _wide(replace(self.groups, calls=self.held))

    @property
    def told_apart(self) -> tuple[str, ...]:
        """Return the columns of facts of which each value counts once, if it was not there yet."""
        arguments = (call.argument for call in self.of_facts.calls if call.distinct)
        return tuple(dict.fromkeys(each for each in arguments if each is not None))

    def made_one(self, rows: str, dialect: Dialect) -> str:
        """Write the groups, from rows with what is held of some parts of each, and their places."""
        keys = listed(dialect, self.groups.keys)
        results = ", ".join([*self.results(dialect), *newest_place(dialect)])
        return f"SELECT {keys}, {results} FROM ({rows}) AS b GROUP BY {keys}"

    def results(self, dialect: Dialect) -> list[str]:
        """Write all calls of the groups over what is held of their parts."""
        chosen = dict(pair for each in self.choices for pair in each.made_one(dialect))
        results = [
            f"{chosen.get(call.name) or _again(call, dialect)} AS {dialect.name(call.name)}"
            for call in self.held
        ]
        for each in self.averages:
            results.append(f"{_rounded(each, dialect)} AS {dialect.name(each.call.name)}")
        return results


@dataclass(frozen=True, slots=True, kw_only=True)
class Adding:
    """How rows of groups are added to.

    `tree` has outputs for all that has to be known, `known` and `results` are its parts. `held` are
    the calls that are held with the output column that has each, `keys` the outputs of the key with
    the groups' columns that they are.
    """

    tree: Newest
    known: KnownOfGroups
    results: Map
    keys: tuple[tuple[str, str], ...]
    held: tuple[tuple[Call, str], ...]

    @property
    def ordered(self) -> bool:
        """Say whether the place of a group's newest fact has to be known, too."""
        return any(call.function is Function.NEWEST for call, _ in self.held)

    def known_by(self, dialect: Dialect) -> bool:
        """Say whether an engine makes the same of a total and a count as of the values."""
        return dialect.divides_decimals or not any(
            DECIMAL.fullmatch(each.call.kind) for each in self.known.averages
        )


def adding_of(tree: Newest) -> Adding | None:
    """Return how a tree's groups are added to; None where one of them has to be computed anew."""
    results = tree.input
    groups = results.input if isinstance(results, Map) else None
    if not isinstance(results, Map) or not isinstance(groups, Grouped) or results.where:
        return None
    keys = tuple(_keys(tree, results, groups))
    known = None if any(call.distinct for call in groups.calls) else known_of(groups)
    if known is None or len(keys) < len(tree.keys) or not tree.unique:
        return None
    results, shown = _showing(replace(results, input=known.groups), known.held)
    return Adding(
        tree=replace(tree, input=results),
        known=known,
        results=results,
        keys=keys,
        held=tuple((call, shown[call.name]) for call in known.held),
    )


def known_of(groups: Grouped) -> KnownOfGroups | None:
    """Return what has to be known of groups; None where they have to be computed anew."""
    if not all(map(adds, groups.calls)):
        return None
    below, averages = groups.input, []
    for number, call in enumerate(filter(_rounds, groups.calls)):
        average, below = _averaged(call, number, below)
        averages.append(average)
    parts = [each for average in averages for each in (average.total, average.count) if each]
    chosen = (call for call in groups.calls if call.function in _CHOOSES)
    choices = tuple(_choice(call, number) for number, call in enumerate(chosen))
    parts += [part for each in choices for part in (each.by, *each.places)]
    held = [*(call for call in groups.calls if not _rounds(call)), *parts]
    groups = replace(groups, input=below, calls=(*groups.calls, *parts))
    return KnownOfGroups(groups=groups, held=tuple(held), averages=tuple(averages), choices=choices)


def known_of_facts(groups: Grouped) -> KnownOfGroups | None:
    """Return what has to be known of groups of which facts only ever come; None for others."""
    below = [*walk(groups.input)]
    facts = all(e.kind is InputKind.STREAM for e in below if isinstance(e, Scan))
    return known_of(groups) if facts and all(isinstance(e, Stateless) for e in below) else None


@lru_cache(maxsize=256)
def added_sql(adding: Adding, dialect: Dialect) -> str:
    """Write the rows of the touched groups: new facts in the inputs' views, added to `GIVEN`.

    They have the tree's columns and those of `ORDER`.
    """
    new = adding.known.of_facts
    known = " AND ".join(f"{dialect.name(key)} IS NOT NULL" for _, key in adding.keys)
    same = " AND ".join(f"g.{dialect.name(a)} = n.{dialect.name(b)}" for a, b in adding.keys)
    before = ", ".join(
        [
            listed(dialect, new.keys, "n"),
            *(f"g.{dialect.name(output)}" for _, output in adding.held),
            *(f"{'g' if adding.ordered else 'n'}.{name}" for name in ORDER),
        ]
    )
    columns = f"{listed(dialect, names(new))}, {', '.join(ORDER)}"
    both = (
        f"SELECT {columns} FROM came UNION ALL SELECT {before} FROM {GIVEN} g JOIN came n ON {same}"
    )
    groups = adding.known.made_one(both, dialect)
    return (
        f"WITH came AS (SELECT * FROM ({whole(new, dialect)}) AS a WHERE {known}) "
        f"{mapped(adding.results, groups, dialect)}"
    )


def _wide(groups: Grouped) -> Grouped:
    """Return groups whose sums of whole numbers hold more than the columns that show them.

    A part may be more than a BIGINT where the whole is not.
    """
    below, calls = groups.input, []
    for number, call in enumerate(groups.calls):
        if call.function is Function.SUM and call.kind in INTEGERS:
            assert call.argument is not None, "a sum is of a value"
            name = f"__wide{number}"
            below = _beside(below, name, call.argument)
            call = replace(call, argument=name, kind=_TOTAL, type=_WIDE)
        calls.append(call)
    return replace(groups, input=below, calls=tuple(calls))


def _rounded(average: Average, dialect: Dialect) -> str:
    total = _again(average.total, dialect)
    exact = average.total.function is Function.PARTS
    total = f"{EXACT_TOTAL}({total})" if exact else total
    if average.count is None:
        return total
    count = f"nullif({_again(average.count, dialect)}, 0)"
    return f"({total} / {count})" if exact else dialect.average(average.call, total, count)


def _again(call: Call, dialect: Dialect) -> str:
    function = _AGAIN[call.function]
    whole_sum = call.function is Function.SUM and call.kind in INTEGERS
    kind = _WIDE if whole_sum else call.type
    again = Call(name=call.name, function=function, argument=call.name, kind=kind, type=call.type)
    value = called(again, dialect)
    return f"CAST({value} AS {call.type})" if function is Function.SUM else value


def _keys(tree: Newest, results: Map, groups: Grouped) -> Iterator[tuple[str, str]]:
    for output in results.outputs:
        made = unwrapped(output.expression)
        if output.name in tree.keys and isinstance(made, exp.Column) and made.name in groups.keys:
            yield output.name, made.name


def adds(call: Call) -> bool:
    """Say whether a result follows from those of two parts of a group's facts."""
    if call.function is Function.COUNT:
        return not call.distinct or call.kind in _TOLD_APART
    if call.function in _CHOOSES:
        by = "" if call.by is None else call.by.type
        return not call.distinct and plain(call.kind) and plain(by)
    if call.function not in (Function.SUM, Function.AVG):
        return call.function in _AGAIN and not call.distinct and plain(call.kind)
    size = DECIMAL.fullmatch(call.kind)
    exact = call.kind in INTEGERS or (size is not None and int(size[1]) <= _MOST_SUMMED)
    return exact or (call.kind in FLOATING and not call.distinct)


def _rounds(call: Call) -> bool:
    """Say whether more has to be known than a result shows."""
    doubles = call.function is Function.SUM and call.kind in FLOATING
    return doubles or call.function is Function.AVG


def _choice(call: Call, number: int) -> ChosenValue:
    """Return a chosen value with what tells of which row it is."""
    assert call.by is not None, "it is chosen by something"
    function = Function.MAX if call.function is Function.MAX_BY else Function.MIN
    by = Call(
        name=f"__by{number}",
        function=function,
        argument=call.by.name,
        kind=call.by.type,
        type=call.by.type,
    )
    places = (
        replace(call, name=f"__place{number}{name}", argument=name, kind=kind, type=kind)
        for name, kind in zip(ORDER, _ORDER_TYPES, strict=True)
    )
    return ChosenValue(call=call, by=by, places=tuple(places))


def _averaged(call: Call, number: int, below: Node) -> tuple[Average, Node]:
    """Return an average with its parts, and the groups' input with what these add."""
    assert call.argument is not None, "an average is of a value"
    argument, kind = call.argument, call.kind
    averaged = call.function is Function.AVG
    count = replace(call, name=f"__count{number}", function=Function.COUNT, type="BIGINT")
    if kind in FLOATING:
        parts = replace(call, name=f"__total{number}", function=Function.PARTS, type=PARTS_TYPE)
        return Average(call=call, total=parts, count=count if averaged else None), below
    if kind in INTEGERS:
        argument, kind = f"__whole{number}", _TOTAL
        below = _beside(below, argument, call.argument)
    if call.distinct:
        # One set of the values that there were suffices for both.
        count = replace(count, argument=argument, kind=kind)
    size = DECIMAL.fullmatch(kind)
    assert size is not None, "whole numbers and decimals alone are added"
    total = Call(
        name=f"__total{number}",
        function=Function.SUM,
        argument=argument,
        kind=kind,
        type=f"DECIMAL({int(size[1]) + 10},{size[2]})",
        distinct=call.distinct,
    )
    return Average(call=call, total=total, count=count), below


def _beside(node: Node, name: str, argument: str) -> Node:
    """Return the input of groups with a column more: another one as an exact number."""
    if isinstance(node, Windowed):
        return replace(node, input=_beside(node.input, name, argument))
    if not isinstance(node, Map):
        node = Map(input=node, outputs=passed(node.columns))
    value = next(each.expression for each in node.outputs if each.name == argument)
    cast = exp.Cast(this=value.copy(), to=exp.DataType.build(_TOTAL, dialect="spark"))
    output = Computed(name=name, expression=cast, type=_TOTAL)
    return replace(node, outputs=(*node.outputs, output))


def _showing(results: Map, held: Sequence[Call]) -> tuple[Map, dict[str, str]]:
    """Return the results with an output for each call, and the names of these outputs."""
    shown: dict[str, str] = {}
    for output in results.outputs:
        made = unwrapped(output.expression)
        if isinstance(made, exp.Column):
            shown.setdefault(made.name, output.name)
    hidden = tuple(
        Computed(name=f"{PARTIAL}{number}", expression=column(call.name), type=call.type)
        for number, call in enumerate(each for each in held if each.name not in shown)
    )
    shown |= {unwrapped(each.expression).name: each.name for each in hidden}
    return replace(results, outputs=(*results.outputs, *hidden)), shown
