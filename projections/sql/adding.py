"""Groups that are brought up to date by adding new facts to the rows that were given out.

A count, an exact sum, the least and the greatest value, and the newest one, of all facts follow
from that of the facts so far and that of the new ones: facts only ever come. The table's row is
what is known of the facts so far, and the commit that has it has the epoch up to which it is so:
there is no other state. What a row does not show (the total and the count of an average, a sum
inside of an expression) stands in hidden columns of the table beside it.

Not added are sums of floating-point numbers, whose last bits depend on the order, and values that
are counted each once. Groups that HAVING leaves out have no row to add to. Where a version that
facts look up has changed, their groups are computed anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from projections.sql.batch import called, listed, mapped, names, newest_place, plain, whole
from projections.sql.decimals import DECIMAL, INTEGERS
from projections.sql.dialect import Dialect
from projections.sql.expressions import unwrapped
from projections.sql.shape import ORDER, PARTIAL
from projections.sql.tree import (
    Call,
    Computed,
    Function,
    Grouped,
    Map,
    Newest,
    Node,
    Windowed,
    column,
)

GIVEN = "given"
"""The view of the rows that the table has of the touched keys."""
_TOTAL = "DECIMAL(20,0)"
"""Whole numbers of an average are added as this: their total may be more than a BIGINT holds."""
_WIDE = "DECIMAL(30,0)"
"""A sum of such numbers."""
_MOST_SUMMED = 28
"""A sum of decimals of no more digits has room for all of them."""
_AGAIN = {
    Function.COUNT: Function.SUM,
    Function.SUM: Function.SUM,
    Function.MIN: Function.MIN,
    Function.MAX: Function.MAX,
    Function.ALL: Function.ALL,
    Function.ANY: Function.ANY,
    Function.NEWEST: Function.NEWEST,
    Function.BIT_AND: Function.BIT_AND,
    Function.BIT_OR: Function.BIT_OR,
    Function.BIT_XOR: Function.BIT_XOR,
}
"""What makes one result of the results of two parts of a group's facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """An average, and the calls that give its total and its count."""

    call: Call
    total: Call
    count: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Adding:
    """How rows of groups are added to.

    `tree` has outputs for all that has to be known, `groups` and `results` are its parts. `held`
    are the calls whose results two parts make one of, with the output column that has each,
    `keys` the outputs of the key with the groups' columns that they are.
    """

    tree: Newest
    groups: Grouped
    results: Map
    keys: tuple[tuple[str, str], ...]
    held: tuple[tuple[Call, str], ...]
    averages: tuple[Average, ...]

    @property
    def ordered(self) -> bool:
        """Say whether the place of a group's newest fact has to be known, too."""
        return any(call.function is Function.NEWEST for call, _ in self.held)

    def known_by(self, dialect: Dialect) -> bool:
        """Say whether an engine makes the same of a total and a count as of the values."""
        return dialect.divides_decimals or not any(
            DECIMAL.fullmatch(each.call.kind) for each in self.averages
        )


def adding_of(tree: Newest) -> Adding | None:
    """Return how a tree's groups are added to; None where one of them has to be computed anew."""
    results = tree.input
    groups = results.input if isinstance(results, Map) else None
    if not isinstance(results, Map) or not isinstance(groups, Grouped) or results.where:
        return None
    keys = tuple(_keys(tree, results, groups))
    if len(keys) < len(tree.keys) or not tree.unique or not all(map(_adds, groups.calls)):
        return None
    below, averages = groups.input, []
    for number, call in enumerate(c for c in groups.calls if c.function is Function.AVG):
        average, below = _averaged(call, number, below)
        averages.append(average)
    parts = [each for average in averages for each in (average.total, average.count)]
    groups = replace(groups, input=below, calls=(*groups.calls, *parts))
    held = [call for call in groups.calls if call.function is not Function.AVG]
    results, shown = _showing(replace(results, input=groups), held)
    return Adding(
        tree=replace(tree, input=results),
        groups=groups,
        results=results,
        keys=keys,
        held=tuple((call, shown[call.name]) for call in held),
        averages=tuple(averages),
    )


def added_sql(adding: Adding, dialect: Dialect) -> str:
    """Write the rows of the touched groups: new facts in the inputs' views, added to `GIVEN`.

    They have the tree's columns and those of `ORDER`.
    """
    calls = tuple(call for call, _ in adding.held)
    new = _wide(replace(adding.groups, calls=calls))
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
    groups = (
        f"SELECT {listed(dialect, new.keys)}, {', '.join(_made_one(adding, dialect))} "
        f"FROM ({both}) AS b GROUP BY {listed(dialect, new.keys)}"
    )
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


def _made_one(adding: Adding, dialect: Dialect) -> Iterator[str]:
    for call, _ in adding.held:
        yield f"{_again(call, dialect)} AS {dialect.name(call.name)}"
    for each in adding.averages:
        total, count = _again(each.total, dialect), _again(each.count, dialect)
        value = dialect.average(each.call, total, f"nullif({count}, 0)")
        yield f"{value} AS {dialect.name(each.call.name)}"
    yield from newest_place(dialect)


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


def _adds(call: Call) -> bool:
    if call.function not in (*_AGAIN, Function.AVG) or call.distinct:
        return False
    if call.function is Function.COUNT:
        return True
    if call.function not in (Function.SUM, Function.AVG):
        return plain(call.kind)
    size = DECIMAL.fullmatch(call.kind)
    return call.kind in INTEGERS or (size is not None and int(size[1]) <= _MOST_SUMMED)


def _averaged(call: Call, number: int, below: Node) -> tuple[Average, Node]:
    """Return an average with its parts, and the groups' input with what these add."""
    assert call.argument is not None, "an average is of a value"
    argument, kind = call.argument, call.kind
    if kind in INTEGERS:
        argument, kind = f"__whole{number}", _TOTAL
        below = _beside(below, argument, call.argument)
    size = DECIMAL.fullmatch(kind)
    assert size is not None, "whole numbers and decimals alone are added"
    total = Call(
        name=f"__total{number}",
        function=Function.SUM,
        argument=argument,
        kind=kind,
        type=f"DECIMAL({int(size[1]) + 10},{size[2]})",
    )
    count = replace(call, name=f"__count{number}", function=Function.COUNT, type="BIGINT")
    return Average(call=call, total=total, count=count), below


def _beside(node: Node, name: str, argument: str) -> Node:
    """Return the input of groups with a column more: another one as an exact number."""
    if isinstance(node, Windowed):
        return replace(node, input=_beside(node.input, name, argument))
    assert isinstance(node, Map), "the rows of groups are mapped"
    value = next(each.expression for each in node.outputs if each.name == argument)
    cast = exp.Cast(this=value.copy(), to=exp.DataType.build(_TOTAL, dialect="spark"))
    output = Computed(name=name, expression=cast, type=_TOTAL)
    return replace(node, outputs=(*node.outputs, output))


def _showing(results: Map, held: list[Call]) -> tuple[Map, dict[str, str]]:
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
