"""OVER: functions over the rows around one, as nodes of the plan tree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from projections.sql.operators.calls import Called, aggregate_of
from projections.sql.operators.frames import ALL_ROWS, FRAMES, SO_FAR, framed
from projections.sql.operators.neighbours import converted, neighbour_default, of_whole_partition
from projections.sql.operators.query import Output
from projections.sql.operators.resolving import Names
from projections.sql.operators.tree import (
    Call,
    Computed,
    Frame,
    Function,
    Map,
    Node,
    Ordering,
    Over,
    column,
    passed,
)
from projections.sql.rendering.totals import KNOWN
from projections.sql.values.expressions import AGGREGATES, check, render, same_text
from projections.sql.words.decimals import FLOATING, INTEGERS
from projections.sql.words.places import offset_of

_RANKS: dict[type[exp.Expr], Function] = {
    exp.RowNumber: Function.ROW_NUMBER,
    exp.Rank: Function.RANK,
    exp.DenseRank: Function.DENSE_RANK,
    exp.Ntile: Function.NTILE,
    exp.PercentRank: Function.PERCENT_RANK,
    exp.CumeDist: Function.CUME_DIST,
}
_SHARES = (Function.PERCENT_RANK, Function.CUME_DIST)
"""Ranks that are parts of 1."""
_NEIGHBOURS: dict[type[exp.Expr], Function] = {
    exp.Lag: Function.LAG,
    exp.Lead: Function.LEAD,
    exp.FirstValue: Function.FIRST_VALUE,
    exp.LastValue: Function.LAST_VALUE,
    exp.First: Function.FIRST_VALUE,
    exp.Last: Function.LAST_VALUE,
    exp.NthValue: Function.NTH_VALUE,
}
_OF_PEERS = (
    *(Function.LAST_VALUE, Function.NTH_VALUE),
    *(Function.FIRST_KNOWN, Function.LAST_KNOWN, Function.NTH_KNOWN),
)
_FRAMED = (Function.FIRST_VALUE, *_OF_PEERS)
_OF_KNOWN = {other: known for known, other in KNOWN.items()}
_LISTED = (Function.VALUES, Function.LIST)
_OF_GROUPS = (Function.MAX_BY, Function.MIN_BY, Function.MODE)
_FUNCTIONS = (
    "Before OVER there are COUNT, SUM, AVG, MIN, MAX, COUNT_IF, BOOL_AND, BOOL_OR, COUNT(DISTINCT "
    "x), over whole partitions MAX_BY, MIN_BY, MODE and ANY_VALUE, ROW_NUMBER, RANK, DENSE_RANK, "
    "NTILE, PERCENT_RANK, CUME_DIST, LAG, LEAD, NTH_VALUE, FIRST_VALUE and LAST_VALUE, these five "
    "with IGNORE NULLS as well."
)


@dataclass(slots=True, kw_only=True)
class _Around:
    """Functions with one OVER."""

    partition: tuple[str, ...]
    order: tuple[Ordering, ...]
    frame: Frame | None
    calls: list[Call] = field(default_factory=list)


class Windows:
    """Reads the result columns of a SELECT without GROUP BY."""

    def __init__(self, names: Names, items: list[Output]) -> None:
        self._names = names
        self._items = items
        self._below: dict[str, Computed] = {}
        self._around: dict[str, _Around] = {}
        self._results: dict[str, Call] = {}

    def results(self, node: Node, qualify: exp.Expr | None) -> Map:
        """Return the result columns over the rows of `node`, those that QUALIFY leaves."""
        outputs = tuple(
            self._names.computed(item.name, self._read(item.expression)) for item in self._items
        )
        where = () if qualify is None else (self._read(self._by_name(qualify.this)),)
        if self._below:
            node = Map(input=node, outputs=(*passed(node.columns), *self._below.values()))
        for one in self._around.values():
            node = Over(
                input=node,
                partition=one.partition,
                order=one.order,
                frame=one.frame,
                calls=tuple(one.calls),
            )
        return Map(input=node, outputs=outputs, where=where)

    def _by_name(self, node: exp.Expr) -> exp.Expr:
        """Put the expressions of SELECT in the place of the names that they are given by AS."""
        given = {item.name.lower(): item.expression for item in self._items}

        def replaced(found: exp.Expr) -> exp.Expr:
            alone = isinstance(found, exp.Column) and len(found.parts) == 1
            if alone and not self._names.scope.knows(found.name):
                value = given.get(found.name.lower())
                return found if value is None else exp.Paren(this=value.copy())
            return found

        return node.copy().transform(replaced)

    def _read(self, node: exp.Expr) -> exp.Expr:
        """Resolve an expression; what stands before an OVER becomes a column of the tree."""
        names = self._names
        outside = node.copy().transform(
            lambda found: exp.Null() if isinstance(found, exp.Window) else found
        )
        check(names.script, outside, at=offset_of(node, names.at), aggregates=False)
        flat = names.flat(names.scope.resolve(node))
        return flat.transform(
            lambda found: self._result(found) if isinstance(found, exp.Window) else found
        )

    def _result(self, window: exp.Expr) -> exp.Expr:
        if isinstance(window.this, exp.RespectNulls):
            # It says what is so without it.
            window = window.copy()
            window.set("this", window.this.this)
        window = of_whole_partition(window)
        text = render(window)
        if text not in self._results:
            self._check_parts(window)
            called = self._called(window)
            argument = None if called.argument is None else self._column(called.argument)
            call = called.call(f"__o{len(self._results)}", argument)
            placed = self._commonest if called.function is Function.MODE else self._placed
            self._results[text] = placed(window, called, call)
            self._names.knows(self._results[text].name, call.type)
        return column(self._results[text].name)

    def _check_parts(self, window: exp.Expr) -> None:
        order = window.args.get("order")
        parts = [*(window.args.get("partition_by") or [])]
        parts += [each.this for each in order.expressions] if order is not None else []
        for part in parts:
            check(self._names.script, part, at=offset_of(part, self._names.at), aggregates=False)
        aggregate = window.this.this if isinstance(window.this, exp.Filter) else window.this
        if isinstance(aggregate, AGGREGATES):
            check(self._names.script, window.this, at=self._names.at, aggregates=True)
        elif type(window.this) in _NEIGHBOURS or isinstance(window.this, exp.IgnoreNulls):
            inner = window.this.this
            value = inner.this if isinstance(window.this, exp.IgnoreNulls) else inner
            check(self._names.script, value, at=offset_of(value, self._names.at), aggregates=False)

    def _called(self, window: exp.Expr) -> Called:
        found, names = window.this, self._names
        kind = type(found)
        if isinstance(found, (exp.Filter, *AGGREGATES)):
            called = aggregate_of(names, found)
            if called.distinct and not _has_distinct(called):
                raise self._refusal(
                    found,
                    f"{called.function.upper()} of distinct values of {called.kind or 'a type '}"
                    f"{'' if called.kind else 'that only Spark derives'} before OVER is not "
                    "compiled",
                    fix="COUNT and SUM(DISTINCT x) OVER (PARTITION BY k) are of any x but floating-"
                    "point numbers, AVG of whole ones. Compute others in a query of their own: "
                    "JOIN (SELECT k, AVG(DISTINCT x) AS mean FROM t GROUP BY k) q ON q.k = t.k.",
                )
            if called.order:
                raise self._refusal(
                    found,
                    "a list in an order of its own before OVER is not compiled",
                    fix="Leave its ORDER BY out: values are listed in ascending order.",
                )
            ordered = window.args.get("order") or window.args.get("spec")
            if called.function in _OF_GROUPS and (ordered or called.function is not Function.MODE):
                raise self._refusal(
                    found,
                    f"{called.function.upper()} before OVER with ORDER BY is not compiled",
                    fix="MAX_BY(x, y) OVER (PARTITION BY k) is, and MODE(x), without ORDER BY and "
                    "a frame.",
                )
            return called
        if kind in _RANKS:
            return self._rank(found)
        return self._neighbour(found)

    def _neighbour(self, found: exp.Expr) -> Called:
        """Read a function that gives the value which one of the rows around has."""
        names, known = self._names, isinstance(found, exp.IgnoreNulls)
        found = found.this if known else found
        kind = type(found)
        if kind not in _NEIGHBOURS:
            word = found.name.upper() if isinstance(found, exp.Anonymous) else found.key.upper()
            if isinstance(found, exp.AggFunc):
                word = found.sql_name()
            word += " IGNORE NULLS" if known else ""
            raise self._refusal(found, f"{word} before OVER is not compiled", fix=_FUNCTIONS)
        function = _NEIGHBOURS[kind]
        offset = found.args.get("offset")
        least = 1 if known or kind is exp.NthValue else 0
        if offset is not None and not (_is_count(offset) and int(offset.name) >= least):
            raise self._refusal(found, f"{render(found)}: the offset is a number, {least} or more")
        of, default = neighbour_default(names, found)
        return Called(
            function=_OF_KNOWN[function] if known else function,
            argument=converted(names, found.this, of),
            kind=of,
            type=of,
            offset=1 if offset is None else int(offset.name),
            default=default,
        )

    def _rank(self, found: exp.Expr) -> Called:
        function, parts = _RANKS[type(found)], found.this
        if function is not Function.NTILE:
            kind = "DOUBLE" if function in _SHARES else "INT"
            return Called(function=function, argument=None, kind="", type=kind)
        if not _is_count(parts) or int(parts.name) < 1:
            raise self._refusal(
                found, "NTILE is of a number of parts, 1 or more", fix="Write it out: NTILE(4)."
            )
        return Called(function=function, argument=None, kind="", type="INT", offset=int(parts.name))

    def _placed(self, window: exp.Expr, called: Called, call: Call) -> Call:
        """Add a call to those of its OVER; return the one that has its value.

        Where the frame ends with the rows that the order does not tell from a row, it is the value
        of the last of them.
        """
        own = self._place(window, called)
        own.calls.append(call)
        if called.function not in _OF_PEERS:
            return call
        if framed(self._names, window, own.order, self._column)[1] != SO_FAR:
            return call
        if any(
            self._names.type_of(each.this) in FLOATING for each in window.args["order"].expressions
        ):
            raise self._refusal(window, f"{_word_of(called)} needs a frame of ROWS")
        peers = (*own.partition, *(each.column for each in own.order))
        last = Call(
            name=f"{call.name}_of_last",
            function=Function.LAST_VALUE,
            argument=call.name,
            kind=call.type,
            type=call.type,
        )
        whole = _Around(partition=peers, order=own.order, frame=ALL_ROWS)
        self._around.setdefault(f"peers of {peers, own.order}", whole).calls.append(last)
        return last

    def _commonest(self, window: exp.Expr, called: Called, call: Call) -> Call:
        """Add the call of a MODE: the first value by how often each is there, then the least."""
        assert called.argument is not None, "it is of a value"
        if called.kind in FLOATING:
            raise self._refusal(
                window,
                "MODE of floating-point numbers before OVER is not compiled",
                fix="Convert them: MODE(CAST(x AS DECIMAL(18, 2))) OVER (PARTITION BY k).",
            )
        partition = tuple(self._keyed(each) for each in window.args.get("partition_by") or [])
        value = self._column(called.argument)
        count = Call(
            name=f"{call.name}_of_each",
            function=Function.COUNT,
            argument=value,
            kind=called.kind,
            type="BIGINT",
        )
        of_each = _Around(partition=(*partition, value), order=(), frame=None)
        self._around.setdefault(f"each of {of_each.partition}", of_each).calls.append(count)
        order = (
            Ordering(column=count.name, descending=True, nulls_first=False),
            Ordering(column=value, descending=False, nulls_first=False),
        )
        first = replace(call, function=Function.FIRST_VALUE)
        whole = _Around(partition=partition, order=order, frame=ALL_ROWS, calls=[first])
        self._around[f"most of {partition, order}"] = whole
        return first

    def _place(self, window: exp.Expr, called: Called) -> _Around:
        order = window.args.get("order")
        written = order.expressions if order is not None else []
        ordered = (*_RANKS.values(), *_NEIGHBOURS.values(), *KNOWN)
        if called.function in ordered and not written:
            raise self._refusal(window, f"{called.function.upper()} needs ORDER BY in OVER")
        partition = tuple(self._keyed(each) for each in window.args.get("partition_by") or [])
        ordering = tuple(self._ordering(each) for each in written)
        ordering, frame = framed(self._names, window, ordering, self._column)
        if called.function in _FRAMED and frame == SO_FAR:
            # Rows of the partition so far, those of equal order told apart.
            frame = Frame(rows=True, before=None, after=0)
        if called.function in _FRAMED:
            if frame is None or not frame.rows:
                raise self._refusal(window, f"{_word_of(called)} needs a frame of ROWS")
        elif called.function in ordered:
            if window.args.get("spec") is not None:
                raise self._refusal(window, f"{called.function.upper()} takes no frame")
            frame = None
        place = repr((partition, ordering, frame))
        fresh = _Around(partition=partition, order=ordering, frame=frame)
        return self._around.setdefault(place, fresh)

    def _keyed(self, node: exp.Expr) -> str:
        if self._names.type_of(node) in FLOATING:
            raise self._refusal(node, "PARTITION BY a floating-point number")
        return self._column(node)

    def _ordering(self, node: exp.Expr) -> Ordering:
        return Ordering(
            column=self._column(node.this),
            descending=bool(node.args.get("desc")),
            nulls_first=bool(node.args.get("nulls_first")),
        )

    def _column(self, node: exp.Expr) -> str:
        text = same_text(node)
        if text not in self._below:
            made = self._names.computed(f"__w{len(self._below)}", node)
            self._below[text] = made
            self._names.knows(made.name, made.type)
        return self._below[text].name

    def _refusal(self, node: exp.Expr, message: str, fix: str = FRAMES) -> Exception:
        return self._names.script.refusal(message, at=offset_of(node, self._names.at), fix=fix)


def _has_distinct(called: Called) -> bool:
    """Say whether a function of distinct values is computed over the rows around one."""
    match called.function:
        case Function.SUM:
            return called.kind in INTEGERS or called.kind.startswith("DECIMAL")
        case Function.AVG:
            return called.kind in INTEGERS
        case Function.COUNT:
            return called.kind not in ("", *FLOATING)
        case _:
            return called.function in _LISTED


def _word_of(called: Called) -> str:
    plain = KNOWN.get(called.function, called.function)
    return f"{plain.upper()}{'' if plain is called.function else ' IGNORE NULLS'}"


def _is_count(node: object) -> bool:
    return isinstance(node, exp.Literal) and bool(node.is_int)
