"""Groups that are brought up to date by the rows that came and those that went.

A count and an exact total follow from what they were before, with what came added and what went
taken off. All that follows from the values of a group alone, in whatever order they came (the least
of them, a percentile, a list, how many different ones), is computed of these: each is kept once,
with how often it is there. What asks when a value came is computed from the rows, see `regions`.

Facts only ever come, and there less is enough (`adding`). It is for what that leaves: the rows of
joins, of groups and of tables, and results that do not follow from those of two parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from projections.sql.operators.group_places import reads_place
from projections.sql.operators.tree import (
    PARTS_TYPE,
    Call,
    Function,
    Grouped,
    Newest,
    Stateless,
    Windowed,
    walk,
)
from projections.sql.plans.adding import KnownOfGroups, adds, known_of, known_of_facts
from projections.sql.rendering.batch import plain
from projections.sql.words.catalog import Column
from projections.sql.words.decimals import FLOATING

ROWS = "__rows"
"""The call that tells how many rows a group has: of none there is no group."""
_TOTALS = (Function.COUNT, Function.SUM, Function.AVG)
_ONCE = (
    *(Function.MIN, Function.MAX, Function.ALL, Function.ANY),
    *(Function.BIT_AND, Function.BIT_OR),
)
"""Results that are the same however often a value is there."""
_OF_VALUES = (
    *(*_ONCE, *_TOTALS, Function.TRY_SUM, Function.BIT_XOR),
    *(Function.LIST, Function.VALUES, Function.PERCENTILE, Function.ELEMENT),
    *(Function.MODE, Function.VARIANCE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuesOfGroups:
    """The values that groups have in the column `argument`, and what is computed of them.

    `once` are the calls for which it does not matter how often a value is there.
    """

    argument: Column
    once: tuple[Call, ...]
    times: tuple[Call, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return all that is computed of the values."""
        return (*self.once, *self.times)

    @property
    def extremes(self) -> bool:
        """Whether the least and the greatest of them alone are asked for."""
        ends = all(each.function in (Function.MIN, Function.MAX) for each in self.once)
        return ends and not self.times


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleTotals:
    """The total of doubles: that of finite ones, from which each goes again as it came.

    `calls` are its sums and averages. `finite` and `beyond` name columns with the values of
    `argument` that are finite, and with the others: these, which no total is left of, are kept.
    """

    argument: str
    finite: str
    beyond: Column
    calls: tuple[Call, ...]
    parts: Call
    count: Call
    total_beyond: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingGroups:
    """All that is known of groups of rows that come and go.

    `groups` has a call for each of it. `totals` are those that are added to and taken off,
    `known` is for a sum the name of the call that counts its values: of none it is NULL.
    """

    groups: Grouped
    totals: KnownOfGroups
    known: tuple[tuple[Call, str], ...]
    doubles: tuple[DoubleTotals, ...]
    values: tuple[ValuesOfGroups, ...]

    @property
    def asked(self) -> tuple[ValuesOfGroups, ...]:
        """Return the values that all are kept of, where of doubles only those are beyond totals."""
        beyond = {each.beyond.name for each in self.doubles}
        return tuple(each for each in self.values if each.argument.name not in beyond)


def changing_of(groups: Grouped) -> ChangingGroups | None:
    """Return what is known of groups; None for those that have to be computed from their rows.

    None, too, for groups of which it suffices to add to what was known.
    """
    if groups.placed or not groups.keys or known_of_facts(groups) is not None:
        return None
    kinds = {each.name: each.type for each in groups.columns}
    if any(kinds[key] in FLOATING for key in groups.keys):
        # Two zeros are one group, and which of them is its key would depend on what came first.
        return None
    summed = [call for call in groups.calls if _is_total(call)]
    doubles = _doubles([call for call in groups.calls if _is_double_total(call)])
    apart = {*(c.name for c in summed), *(c.name for each in doubles for c in each.calls)}
    others = [call for call in groups.calls if call.name not in apart]
    if not all(map(_is_of_values, others)):
        return None
    rows = Call(name=ROWS, function=Function.COUNT, argument=None, kind="INT", type="BIGINT")
    sums = [call for call in summed if call.function is Function.SUM]
    counts = [
        replace(call, name=f"__known{place}", function=Function.COUNT, type="BIGINT")
        for place, call in enumerate(sums)
    ]
    exact = [part for each in doubles for part in (each.parts, each.count)]
    totals = known_of(replace(groups, calls=(*summed, *counts, rows, *exact)))
    assert totals is not None, "counts and exact totals are added to"
    shown = {call.name for call in groups.calls}
    beside = [call for call in totals.groups.calls if call.name not in shown]
    return ChangingGroups(
        groups=replace(totals.groups, calls=(*groups.calls, *beside)),
        totals=totals,
        known=tuple((call, count.name) for call, count in zip(sums, counts, strict=True)),
        doubles=doubles,
        values=(
            *_values(groups, others),
            *(
                ValuesOfGroups(argument=each.beyond, once=(), times=(each.total_beyond,))
                for each in doubles
            ),
        ),
    )


def kept_by_groups(tree: Newest) -> Grouped | None:
    """Return the groups of a query of one step that state spares all facts of, no window bounding
    these: rows of a table do not tell what is known of them, so that `adding_of` has nothing.
    """
    nodes = [*walk(tree)]
    groups = [node for node in nodes if isinstance(node, Grouped)]
    if len(groups) != 1 or any(isinstance(node, Windowed) for node in nodes):
        return None
    facts = all(isinstance(node, Stateless) for node in walk(groups[0].input))
    kept = known_of_facts(groups[0]) is not None or changing_of(groups[0]) is not None
    return groups[0] if facts and kept else None


def _doubles(calls: Sequence[Call]) -> tuple[DoubleTotals, ...]:
    made = []
    for place, argument in enumerate(dict.fromkeys(call.argument for call in calls)):
        assert argument is not None, "a total is of a value"
        own = tuple(call for call in calls if call.argument == argument)
        finite, beyond = f"__finite{place}", f"__beyond{place}"
        one = Call(name="", function=Function.PARTS, argument=finite, kind="DOUBLE", type="DOUBLE")
        count = replace(own[0], name=f"__doubles{place}", function=Function.COUNT, type="BIGINT")
        total = replace(one, function=Function.SUM, argument=beyond, name=f"__total_beyond{place}")
        made.append(
            DoubleTotals(
                argument=argument,
                finite=finite,
                beyond=Column(name=beyond, type="DOUBLE"),
                calls=own,
                parts=replace(one, name=f"__parts{place}", type=PARTS_TYPE),
                count=count,
                total_beyond=total,
            )
        )
    return tuple(made)


def _values(groups: Grouped, calls: Sequence[Call]) -> list[ValuesOfGroups]:
    arguments = dict.fromkeys(call.argument for call in calls)
    columns = {each.name: each for each in groups.input.columns}
    made = []
    for argument in filter(None, arguments):
        own = [call for call in calls if call.argument == argument]
        once = tuple(call for call in own if call.distinct or call.function in _ONCE)
        times = tuple(call for call in own if call not in once)
        made.append(ValuesOfGroups(argument=columns[argument], once=once, times=times))
    return made


def _is_total(call: Call) -> bool:
    if call.distinct or call.function not in _TOTALS:
        return False
    return adds(call) and (call.function is Function.COUNT or call.kind not in FLOATING)


def _is_double_total(call: Call) -> bool:
    sums = call.function in (Function.SUM, Function.AVG) and call.kind in FLOATING
    return sums and not call.distinct


def _is_of_values(call: Call) -> bool:
    known = call.argument is not None and plain(call.kind)
    return known and call.function in _OF_VALUES and not reads_place(call)
