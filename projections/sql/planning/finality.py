"""`emit = 'final'`: where a result row ends in event time, and the operator that waits for that.

The end of a row is the first moment from which on no fact that is in time can change it any more: a
window's own end, the time of a row that looks back alone, the last moment at which a pattern or a
join with a bound may still find something. It is a column of the table, `_end`, in microseconds
since 1970. What has no such moment is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from sqlglot import exp

from projections.sql.operators.resolving import used
from projections.sql.operators.shape import END, InputKind
from projections.sql.operators.tree import (
    WINDOW_END,
    WINDOW_START,
    Call,
    Computed,
    Exploded,
    Final,
    Function,
    Grouped,
    Join,
    JoinKind,
    Map,
    Match,
    Newest,
    Node,
    Over,
    Scan,
    Sessions,
    UnionAll,
    Windowed,
    column,
    is_stateful,
    passed,
    scans,
    walk,
)
from projections.sql.operators.windows import WindowKind
from projections.sql.statements.declarations import ProjectionDecl

_THEIRS = f"{END}_of_right"
_OF_ROWS_BEFORE = {
    *(Function.ROW_NUMBER, Function.RANK, Function.DENSE_RANK),
    *(Function.LAG, Function.LAG_KNOWN),
}


_FACTS = (
    "each row stands by itself: nothing that comes later can change it",
    "Leave emit out: every row is published at once.",
)
_TIME = (
    "the time of a window is not the time by which rows of its stream are late",
    "Open windows over the event time of a stream, as TUMBLE(occurred_at, '1 hour').",
)
_GROUPS = (
    "a group without a window never ends",
    "Group by a window too, GROUP BY key, TUMBLE(occurred_at, '1 day'), or leave emit out.",
)
_ROWS = (
    "OVER reads rows that may come at any time",
    "Look back in event time, OVER (PARTITION BY key ORDER BY occurred_at ROWS BETWEEN 2 "
    "PRECEDING AND CURRENT ROW), or partition by the end of a window.",
)
_TABLE = (
    "rows of a table or of another projection never end: they may change at any time",
    "Read a stream, FROM STREAM …, and join the table to it.",
)
_ONE_VALUE = (
    "one value of all rows of a stream changes with every row, and no moment ends that",
    "Group by a window instead, GROUP BY TUMBLE(occurred_at, '1 hour'), or leave emit out.",
)
_UNBOUND = (
    "a row that waits for another stream without a bound never ends",
    "Bound the other row's time: AND b.occurred_at <= a.occurred_at + INTERVAL 1 HOUR.",
)
_PATTERN = (
    "a pattern without WITHIN never ends",
    "Bound it in event time: PATTERN (…) WITHIN INTERVAL 1 HOUR.",
)


def final(decl: ProjectionDecl, tree: Newest) -> Newest:
    """Return a tree that gives out rows once the watermark has passed their end.

    Raises `InvalidRequest` for rows that have none.
    """
    endings = _Endings(decl=decl)
    endings.refuse_unless(any(is_stateful(node) for node in walk(tree)), _FACTS)
    return replace(tree, input=Final(input=endings.beside(tree.input)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Endings:
    """Adds to the nodes of one projection's tree the column with the end of each row."""

    decl: ProjectionDecl

    def refuse_unless(self, holds: bool, refused: tuple[str, str]) -> None:
        if not holds:
            reason, fix = refused
            at = self.decl.emit_at
            raise self.decl.script.refusal(f"emit = 'final': {reason}", at=at, fix=fix)

    def beside(self, node: Node) -> Node:
        """Return a node with the column `END` beside its own."""
        match node:
            case Scan():
                return self._of_fact(node)
            case Map():
                own = Computed(name=END, expression=column(END), type="BIGINT")
                return replace(node, input=self.beside(node.input), outputs=(*node.outputs, own))
            case Windowed() | Sessions():
                timely = isinstance(node, Windowed) and _divided(node)
                self.refuse_unless(timely or _behind(node.input, node.time), _TIME)
                return _with_end(node, _micros(column(WINDOW_END)))
            case Grouped():
                self.refuse_unless(any(_names_end(node.input, key) for key in node.keys), _GROUPS)
                # All rows of the group have the same.
                own_end = Call(
                    name=END, function=Function.MAX, argument=END, kind="BIGINT", type="BIGINT"
                )
                return replace(node, input=self.beside(node.input), calls=(*node.calls, own_end))
            case Over():
                self.refuse_unless(_looks_back(node), _ROWS)
                return replace(node, input=self.beside(node.input))
            case Match():
                return self._of_match(node)
            case Join():
                return self._of_join(node)
            case Exploded():
                return replace(node, input=self.beside(node.input), kept=(*node.kept, END))
            case UnionAll():
                return replace(node, inputs=tuple(map(self.beside, node.inputs)))
            case Newest() | Final():
                return replace(node, input=self.beside(node.input))
            case _:
                assert_never(node)

    def _of_fact(self, node: Scan) -> Node:
        """A fact ends just behind its time: another one of that time is late from then on."""
        self.refuse_unless(node.kind is InputKind.STREAM, _TABLE)
        time = node.relation.event_time or ""
        self.refuse_unless(any(each.name == time for each in node.columns), _TIME)
        return _with_end(node, _plus(_micros(_moment(node, column(time))), 1))

    def _of_match(self, node: Match) -> Node:
        """A search from a row reaches as far as the bound says; rows around it only look back."""
        self.refuse_unless(node.within_us is not None, _PATTERN)
        self.refuse_unless(_behind(node.input, node.time), _TIME)
        self.beside(node.input)
        return _with_end(node, _plus(_micros(column(WINDOW_START)), (node.within_us or 0) + 1))

    def _of_join(self, node: Join) -> Node:
        """A pair ends with its later row; one that may find none, when none can come any more."""
        left = self.beside(node.left)
        if not node.timed:
            facts = any(s.kind is InputKind.STREAM for s in scans(node.right))
            self.refuse_unless(not facts, _ONE_VALUE)
            return replace(node, left=left)
        right = self.beside(node.right)
        if node.kind is JoinKind.INNER:
            end = Computed(name=_THEIRS, expression=column(END), type="BIGINT")
            renamed = Map(input=right, outputs=(*passed(node.right.columns), end))
            made, other = replace(node, left=left, right=renamed), column(_THEIRS)
        else:
            bound = next(filter(None, (_bound(node, part) for part in node.rest)), None)
            self.refuse_unless(bound is not None, _UNBOUND)
            moment = _micros(_moment(node.left, bound or exp.Null()))
            made, other = replace(node, left=left), _plus(moment, 1)
        later: exp.Expr = exp.Greatest(this=column(END), expressions=[other])
        own = Computed(name=END, expression=later, type="BIGINT")
        return Map(input=made, outputs=(*passed(node.columns), own))


def _bound(node: Join, part: exp.Expr) -> exp.Expr | None:
    """Return the moment, over the left side's columns, up to which a condition lets right rows be.

    None for a condition that says nothing of the kind.
    """
    sides: list[tuple[exp.Expr, exp.Expr]] = []
    match part:
        case exp.LT() | exp.LTE():
            sides = [(part.this, part.expression)]
        case exp.GT() | exp.GTE():
            sides = [(part.expression, part.this)]
        case exp.Between():
            sides = [(part.this, part.args["high"])]
    ours = {each.name for each in node.left.columns}
    for theirs, moment in sides:
        timely = isinstance(theirs, exp.Column) and theirs.name not in ours
        if timely and _behind(node.right, theirs.name) and used(moment) and used(moment) <= ours:
            return moment.copy()
    return None


def _behind(node: Node, name: str) -> bool:
    """Say whether all facts behind a row have a time at or before the row's value of a column."""
    match node:
        case Scan():
            return node.kind is InputKind.STREAM and name == node.relation.event_time
        case Map():
            below = _passed(node, name)
            return below is not None and _behind(node.input, below)
        case Windowed():
            known = name == WINDOW_END and _divided(node)
            return known or _behind(node.input, node.time if name == WINDOW_END else name)
        case Grouped():
            return name in node.keys and _behind(node.input, name)
        case Exploded():
            return name in node.kept and _behind(node.input, name)
        case Sessions():
            return name == WINDOW_END and _behind(node.input, node.time)
        case Over():
            known = any(each.name == name for each in node.input.columns)
            return known and _looks_back(node, by=name) and _behind(node.input, name)
        case Join():
            ours = any(each.name == name for each in node.left.columns)
            timely = not node.timed or any(_is(name, _bound(node, part)) for part in node.rest)
            return ours and timely and _behind(node.left, name)
        case UnionAll():
            return all(_behind(each, name) for each in node.inputs)
        case Newest() | Final():
            return _behind(node.input, name)
        case Match():
            return False
        case _:
            assert_never(node)


def _is(name: str, moment: exp.Expr | None) -> bool:
    """Say whether a moment is that of a column, no earlier and no later."""
    return isinstance(moment, exp.Column) and moment.name == name


def _divided(node: Windowed) -> bool:
    """Say whether each window is made of whole shorter ones that its input's rows are.

    The starts of these then tell the window, in which all facts behind them are.
    """
    length = _length(node.input, node.time)
    distances = (node.step_us, node.size_us, node.offset_us)
    return bool(length) and not any(each % length for each in distances)


def _length(node: Node, name: str) -> int:
    """Return the length of the windows whose start a column is, if they end with their facts.

    0 where it is no such column.
    """
    match node:
        case Map():
            below = _passed(node, name)
            return 0 if below is None else _length(node.input, below)
        case Windowed() if name == WINDOW_START:
            ends = node.kind is WindowKind.TUMBLE and _behind(node, WINDOW_END)
            return node.size_us if ends and not node.offset_us else 0
        case Grouped():
            return _length(node.input, name) if name in node.keys else 0
        case Newest() | Final() | Windowed():
            return _length(node.input, name)
        case Exploded() if name in node.kept:
            return _length(node.input, name)
        case _:
            return 0


def _names_end(node: Node, name: str) -> bool:
    """Say whether rows that have the same value of a column have the same end."""
    match node:
        case Map():
            below = _passed(node, name)
            return below is not None and _names_end(node.input, below)
        case Windowed():
            told = (WINDOW_END,) if node.kind is WindowKind.CUMULATE else (WINDOW_START, WINDOW_END)
            return name in told
        case Grouped():
            return name in node.keys and _names_end(node.input, name)
        case Exploded():
            return name in node.kept and _names_end(node.input, name)
        case Sessions():
            return name == WINDOW_END
        case Over():
            known = any(each.name == name for each in node.input.columns)
            return known and _names_end(node.input, name)
        case Join() if node.timed:
            met = [
                pair
                for pair in node.pairs
                if _names_end(node.left, pair[0]) and _names_end(node.right, pair[1])
            ]
            return any(name in pair for pair in met)
        case Join():
            ours = any(each.name == name for each in node.left.columns)
            return ours and _names_end(node.left, name)
        case UnionAll():
            return all(_names_end(each, name) for each in node.inputs)
        case Newest() | Final():
            return _names_end(node.input, name)
        case Scan() | Match():
            return False
        case _:
            assert_never(node)


def _looks_back(node: Over, *, by: str | None = None) -> bool:
    """Say whether the rows around a row have no later end than itself.

    `by`: whether none of the facts behind them has a later time than this column says.
    """
    if by in node.partition:
        return True
    if by is None and any(_names_end(node.input, name) for name in node.partition):
        return True
    functions = {call.function for call in node.calls}
    if node.frame is None:
        ahead = not functions <= _OF_ROWS_BEFORE
    else:
        ahead = Function.LEAD in functions or _is_ahead(node.frame.after)
    first = node.order[0] if node.order else None
    if ahead or first is None or first.descending or by not in (None, first.column):
        return False
    return _behind(node.input, first.column)


def _is_ahead(after: int | None) -> bool:
    return after is None or after > 0


def _passed(node: Map, name: str) -> str | None:
    """Return the column of the input that a column is as it is."""
    for each in node.outputs:
        if each.name == name and isinstance(each.expression, exp.Column):
            return each.expression.name
    return None


def _with_end(node: Node, end: exp.Expr) -> Map:
    own = Computed(name=END, expression=end, type="BIGINT")
    return Map(input=node, outputs=(*passed(node.columns), own))


def _moment(node: Node, time: exp.Expr) -> exp.Expr:
    """Return a time over a node's columns as a timestamp: a date is the moment it begins."""
    days = {each.name for each in node.columns if each.type == "DATE"}
    made: exp.Expr = exp.Cast(this=time, to=exp.DataType.build("TIMESTAMP", dialect="spark"))
    return made if used(time) & days else time


def _micros(moment: exp.Expr) -> exp.Expr:
    made: exp.Expr = exp.UnixMicros(this=moment)
    return made


def _plus(micros: exp.Expr, length_us: int) -> exp.Expr:
    made: exp.Expr = exp.Add(this=micros, expression=exp.Literal.number(length_us))
    return made
