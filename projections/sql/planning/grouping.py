"""GROUP BY in a query of several steps: groups, windows and sessions as nodes of the plan tree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.forms.set_operations import without_sign
from projections.sql.operators.calls import Called, aggregate_of
from projections.sql.operators.query import (
    Output,
    group_expression,
    having_of,
    refuse_group_clauses,
)
from projections.sql.operators.resolving import Names
from projections.sql.operators.tree import (
    WINDOW_END,
    WINDOW_START,
    Call,
    Computed,
    Function,
    Grouped,
    Map,
    Node,
    Ordering,
    Sessions,
    Windowed,
    column,
)
from projections.sql.operators.windows import Window, is_session, read_window, window_kind
from projections.sql.values.expressions import AGGREGATES, check, render, same_text
from projections.sql.values.types import TEMPORAL
from projections.sql.words.catalog import Column
from projections.sql.words.collected_refusals import raising
from projections.sql.words.decimals import FLOATING
from projections.sql.words.durations import FORM, duration_of, in_us
from projections.sql.words.places import offset_of

_SESSION_FORM = "The form is SESSION(t, '30 minutes')."
_TIME = "__t"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    time: exp.Expr
    gap: timedelta


class GroupTexts:
    """What the expressions of a grouped SELECT are; see `grouping_sets.GroupingMeanings`."""

    def __init__(self, names: Names, items: list[Output]) -> None:
        self._names = names
        self._items = items

    def text(self, node: exp.Expr) -> str:
        """Return the text of an expression over the inputs; as it is written if it is none."""
        try:
            with raising():
                return same_text(self._names.flat(self._names.scope.resolve(node)))
        except InvalidRequest:
            return same_text(node)

    def group(self, node: exp.Expr) -> tuple[str, str]:
        """Return the text and the type of what is grouped by."""
        meant = self._names.flat(group_expression(self._names.scope, node, self._items))
        return same_text(meant), self._names.type_of(meant)


@dataclass(slots=True, kw_only=True)
class _Groups:
    """What a grouped SELECT needs of the rows below it, found while its columns are read."""

    names: Names
    keys: dict[str, str] = field(default_factory=dict)
    below: list[Computed] = field(default_factory=list)
    calls: dict[str, Call] = field(default_factory=dict)

    def key(self, node: exp.Expr) -> None:
        """Take an expression as a group."""
        name = f"__k{len(self.keys)}"
        made = self.names.computed(name, node)
        if made.type in FLOATING:
            made = replace(made, expression=without_sign(node, made.type))
        self.keys[same_text(node)] = name
        self.below.append(made)
        self.names.knows(name, made.type)

    def over_groups(self, node: exp.Expr) -> exp.Expr:
        """Turn an expression over rows into one over groups.

        A column beside GROUP BY is the group's newest value.
        """

        def replaced(found: exp.Expr) -> exp.Expr:
            made = self._over_groups(found)
            if made is not found:
                made.meta["start"] = offset_of(found, self.names.at)
            return made

        return node.copy().transform(replaced)

    def _over_groups(self, found: exp.Expr) -> exp.Expr:
        if same_text(found) in self.keys:
            return column(self.keys[same_text(found)])
        if isinstance(found, (exp.Filter, *AGGREGATES)):
            return self._result(same_text(found), aggregate_of(self.names, found))
        if isinstance(found, exp.Column) and found.name not in (WINDOW_START, WINDOW_END):
            kind = self.names.type_of(found)
            newest = Called(function=Function.NEWEST, argument=found, kind=kind, type=kind)
            return self._result(same_text(found), newest)
        return found

    def _result(self, text: str, called: Called) -> exp.Expr:
        if text not in self.calls:
            argument = None
            if called.argument is not None:
                argument = f"__a{len(self.calls)}"
                self.below.append(self.names.computed(argument, called.argument))
            by = None
            if called.by is not None:
                chosen = self.names.computed(f"__b{len(self.calls)}", called.by)
                self.below.append(chosen)
                by = Column(name=chosen.name, type=chosen.type)
            name = f"__c{len(self.calls)}"
            order = tuple(map(self._ordering, called.order))
            self.calls[text] = called.call(name, argument, by, order)
            self.names.knows(name, called.type)
        return column(self.calls[text].name)

    def _ordering(self, node: exp.Ordered) -> Ordering:
        """Return one column by which the values of a list are ordered."""
        name = f"__n{len(self.below)}"
        self.below.append(self.names.computed(name, node.this))
        return Ordering(
            column=name,
            descending=bool(node.args.get("desc")),
            nulls_first=bool(node.args.get("nulls_first")),
        )


def grouped(names: Names, select: exp.Expr, node: Node, items: list[Output]) -> Map:
    """Read GROUP BY, HAVING and the result columns over the rows of `node`."""
    clause = select.args["group"]
    refuse_group_clauses(names.scope, clause)
    window, rest = _split(names, clause)
    names.scope.window = window is not None
    groups = tuple(group_expression(names.scope, each, items) for each in rest)
    made = _Groups(names=names)
    for group in groups:
        made.key(names.flat(group))
    outputs = []
    for item in items:
        check(names.script, item.expression, at=item.at, aggregates=True)
        over = made.over_groups(names.flat(names.scope.resolve(item.expression)))
        outputs.append(names.computed(item.name, over))
    where: tuple[exp.Expr, ...] = ()
    having = select.args.get("having")
    if having is not None:
        condition = having_of(names.scope, having.this, items, groups)
        where = (made.over_groups(names.flat(condition)),)
    return Map(input=_node(made, node, window), outputs=tuple(outputs), where=where)


def _split(names: Names, clause: exp.Expr) -> tuple[Window | _Session | None, list[exp.Expr]]:
    window: Window | _Session | None = None
    rest: list[exp.Expr] = []
    for each in clause.expressions:
        kind = window_kind(each)
        if kind is None and not is_session(each):
            rest.append(each)
            continue
        if window is not None:
            raise names.script.refusal(
                "two windows in one GROUP BY",
                at=offset_of(each, names.at),
                fix="Make one projection for each window.",
            )
        if kind is not None:
            window = read_window(names.script, each, kind, at=names.at)
        else:
            window = _session(names, each)
    return window, rest


def _session(names: Names, node: exp.Expr) -> _Session:
    at = offset_of(node, names.at)
    if len(node.expressions) != 2:
        raise names.script.refusal(
            f"SESSION has {len(node.expressions)} arguments", at=at, fix=_SESSION_FORM
        )
    gap = duration_of(node.expressions[1])
    if not gap:
        raise names.script.refusal(
            f"SESSION: {render(node.expressions[1])} is no length of a gap",
            at=at,
            fix=f"{FORM[0].upper()}{FORM[1:]}. {_SESSION_FORM}",
        )
    return _Session(time=node.expressions[0], gap=gap)


def _node(made: _Groups, node: Node, window: Window | _Session | None) -> Grouped | Sessions:
    keys, calls = tuple(made.keys.values()), tuple(made.calls.values())
    if window is None:
        return Grouped(input=Map(input=node, outputs=tuple(made.below)), keys=keys, calls=calls)
    names = made.names
    check(names.script, window.time, at=names.at, aggregates=False)
    time = names.computed(_TIME, names.flat(names.scope.resolve(window.time)))
    if time.type and time.type not in TEMPORAL:
        raise names.script.refusal(
            f"the time of a window is {time.type}, not a time",
            at=offset_of(window.time, names.at),
            fix="Convert it: timestamp_millis(x) or CAST(x AS TIMESTAMP).",
        )
    below = Map(input=node, outputs=(*made.below, time))
    if isinstance(window, _Session):
        if not keys:
            raise names.script.refusal(
                "SESSION stands alone in GROUP BY: a session is of a key",
                at=names.at,
                fix="Group by the key too: GROUP BY user_id, SESSION(t, '30 minutes').",
            )
        gap = in_us(window.gap)
        # A row without a time is of no session: it is not kept, so that it can go again.
        known = exp.Not(this=exp.Is(this=time.expression.copy(), expression=exp.Null()))
        below = replace(below, where=(known,))
        return Sessions(input=below, keys=keys, time=_TIME, gap_us=gap, calls=calls)
    windowed = Windowed(
        input=below,
        kind=window.kind,
        time=_TIME,
        step_us=in_us(window.step),
        size_us=in_us(window.size),
        offset_us=in_us(window.offset),
    )
    return Grouped(input=windowed, keys=(*keys, WINDOW_START, WINDOW_END), calls=calls)
