"""The batch query of every operator, written once for both engines.

`whole` composes them over the inputs: a build, and the rebuild that a kept table must equal. The
small executor runs one operator's query at a time, over the rows that a change's region needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import assert_never

from projections.sql.operators.fact_places import in_places
from projections.sql.operators.shape import END, ORDER, WATERMARK, InputKind
from projections.sql.operators.tree import (
    WINDOW_END,
    WINDOW_START,
    Call,
    Exploded,
    Final,
    Function,
    Grouped,
    Join,
    Map,
    Match,
    Newest,
    Node,
    Over,
    Recomputed,
    Scan,
    Sessions,
    UnionAll,
    Windowed,
)
from projections.sql.operators.windows import WindowKind
from projections.sql.rendering.dialect import Dialect
from projections.sql.rendering.explosion_text import exploded
from projections.sql.rendering.join_text import joined
from projections.sql.rendering.match_text import matches
from projections.sql.rendering.totals import KNOWN, ORDERED, RANKS
from projections.sql.words.decimals import FLOATING


def plain(kind: str) -> bool:
    """Say whether a type is known and not nested: its values have an order."""
    return bool(kind) and "<" not in kind


def newest(value: str, dialect: Dialect, kind: str) -> str:
    """Write the value, NULL included, that a group's newest row has.

    `kind`, its type: of several newest rows, which a join may give, the greatest value counts.
    """
    more = [f"{value} IS NOT NULL", *dialect.apart(value, kind)]
    return dialect.of_greatest(value, dialect.row([*ORDER, *more]))


def newest_place(dialect: Dialect) -> list[str]:
    """Write the columns of `ORDER` that a group's newest row has."""
    return [f"{dialect.of_greatest_row(name, ORDER)} AS {name}" for name in ORDER]


def extreme(
    call: Call,
    value: str,
    dialect: Dialect,
    given: str | None = None,
    order: Sequence[str] = ORDER,
) -> str:
    """Write the value, NULL included, of the row where `by` is greatest or least.

    Of several such rows the newest, or for the least one the oldest, counts, by `order`. One
    without `by` is none of them. `given` is what is written of the row in place of the value.
    """
    assert call.by is not None, "it is chosen by something"
    by, kind = dialect.name(call.by.name), call.by.type
    # There are two zeros, which compare as equal.
    first = f"{by} + CAST(0 AS {kind})" if kind in FLOATING else by
    more = [f"{value} IS NOT NULL", *dialect.apart(value, call.kind)]
    place = f"CASE WHEN {by} IS NOT NULL THEN {dialect.row([first, *order, *more])} END"
    greatest = call.function is Function.MAX_BY
    return (dialect.of_greatest if greatest else dialect.of_least)(given or value, place)


_OF_ONE_ROW = (Function.NTH_VALUE, Function.LAG, Function.LEAD)


def _of_one_row(call: Call, value: str, dialect: Dialect) -> str:
    """Write a function that gives the value which one of the rows around has."""
    name = KNOWN.get(call.function, call.function)
    given = f"{value}, {call.offset}" if name in _OF_ONE_ROW else value
    if call.default is not None:
        given = f"{given}, {dialect.expression(call.default, ())}"
    return f"{name}({given})" if name is call.function else dialect.passing_nulls(name, given)


def called(call: Call, dialect: Dialect, over: str = "") -> str:
    """Write a function over rows; with `over` as a window function."""
    value = "1" if call.argument is None else dialect.name(call.argument)
    word = "DISTINCT " if call.distinct else ""
    match call.function:
        case Function.NEWEST:
            return newest(value, dialect, call.kind)
        case Function.SUM | Function.AVG | Function.TRY_SUM | Function.PARTS:
            return dialect.total(call, value, over)
        case Function.COUNT if call.distinct and over:
            return dialect.total(call, value, over)
        case Function.MIN | Function.MAX if call.kind in FLOATING:
            # There are two zeros, which compare as equal: without a sign it is one.
            return f"{call.function}({value} + CAST(0 AS {call.kind})){over}"
        case function if function in ORDERED:
            return dialect.ordered(call, value, over)
        case Function.MAX_BY | Function.MIN_BY:
            return extreme(call, value, dialect)
        case Function.ROW_NUMBER | Function.RANK | Function.DENSE_RANK:
            return dialect.rank(f"{call.function}(){over}")
        case Function.NTILE:
            return dialect.rank(f"{call.function}({call.offset}){over}")
        case Function.PERCENT_RANK | Function.CUME_DIST:
            return f"{call.function}(){over}"
        case function if function in _OF_ONE_ROW or function in KNOWN:
            return f"{_of_one_row(call, value, dialect)}{over}"
        case _:
            return f"{call.function}({word}{value}){over}"


def listed(dialect: Dialect, names: Sequence[str], of: str = "") -> str:
    """Write a list of columns, of the relation `of` where given."""
    return ", ".join(f"{of + '.' if of else ''}{dialect.name(name)}" for name in names)


def placed(columns: str) -> str:
    """Write columns, of which there may be none, and a row's place in time behind them."""
    return ", ".join(filter(None, [columns, *ORDER]))


def names(node: Node) -> tuple[str, ...]:
    """Return the names of a node's columns."""
    return tuple(each.name for each in node.columns)


Parts = Mapping[Node, Callable[[str], str]]
"""Of which nodes only a part of the rows is wanted: the query of these, from that of all."""
ALL: Parts = MappingProxyType({})


def whole(node: Node, dialect: Dialect, parts: Parts = ALL) -> str:
    """Write the query that gives all rows of a tree, or `parts`, from the views of its inputs."""
    rows = _whole(node, dialect, parts)
    return parts[node](rows) if node in parts else rows


def satisfying(node: Node, condition: str, dialect: Dialect) -> Callable[[str], str]:
    """Return how the rows of a node are written for which a condition on its columns holds."""
    columns = placed(listed(dialect, names(node)))
    return lambda rows: f"SELECT {columns} FROM ({rows}) AS p WHERE {condition}"


def _whole(node: Node, dialect: Dialect, parts: Parts) -> str:
    match node:
        case Scan():
            return scanned(node, dialect)
        case UnionAll():
            return united(node, [whole(each, dialect, parts) for each in node.inputs], dialect)
        case Join():
            left, right = (whole(each, dialect, parts) for each in (node.left, node.right))
            return joined(node, left, right, dialect)
        case Final():
            return ended(node, whole(node.input, dialect, parts), dialect)
        case _:
            return over_rows(node, dialect)(whole(node.input, dialect, parts))


def over_rows(
    node: Map | Windowed | Exploded | Recomputed, dialect: Dialect
) -> Callable[[str], str]:
    """Return the query of a node with one input, as a function of the query for its rows."""
    match node:
        case Map():
            return lambda rows: mapped(node, rows, dialect)
        case Windowed():
            return lambda rows: windowed(node, rows, dialect)
        case Exploded():
            return lambda rows: exploded(node, rows, dialect)
        case Grouped():
            return lambda rows: _grouped(node, rows, dialect)
        case Sessions():
            return lambda rows: _sessions(node, rows, dialect)
        case Over():
            return lambda rows: _over(node, rows, dialect)
        case Match():
            return lambda rows: matches(node, rows, dialect)
        case Newest():
            return lambda rows: _newest(node, rows, dialect)
        case _:
            assert_never(node)


def scanned(node: Scan, dialect: Dialect) -> str:
    """Write the rows of an input; a version's place in time is where it begins.

    Rows of another projection have no place in time of their own: theirs is one for all.
    """
    columns = listed(dialect, names(node))
    if node.kind is InputKind.STREAM:
        return f"SELECT {placed(columns)} FROM {node.view}"
    zero = dialect.whole_number(0)
    begun = dialect.moment(zero) if node.kind is InputKind.PROJECTION else "valid_from"
    where = {
        InputKind.HISTORY: " WHERE NOT _deleted",
        InputKind.LATEST: " WHERE NOT _deleted AND valid_to IS NULL",
    }.get(node.kind, "")
    place = f"{begun} AS _time, {zero} AS _seq_hi, {zero} AS _seq_lo"
    return f"SELECT {', '.join(filter(None, [columns, place]))} FROM {node.view}{where}"


def mapped(node: Map, rows: str, dialect: Dialect, more: str = "") -> str:
    """Write the query of a `Map`; `more` are columns that are passed on beside."""
    columns = node.input.columns
    outputs = ", ".join(
        f"{dialect.expression(each.expression, columns)} AS {dialect.name(each.name)}"
        for each in node.outputs
    )
    where = dialect.conditions(node.where, columns)
    return f"SELECT {placed(outputs)}{more} FROM ({rows}) AS x{' WHERE ' + where if where else ''}"


def windowed(node: Windowed, rows: str, dialect: Dialect, more: str = "") -> str:
    """Write the query of a `Windowed`; `more` are columns that are passed on beside.

    Arithmetic in whole microseconds, so that times before 1970 fall right too.
    """
    number = dialect.whole_number
    at, size = dialect.micros(dialect.name(node.time)), number(node.size_us)
    count = -(-node.size_us // node.step_us)
    moved = f"(__us - {number(node.offset_us)})" if node.offset_us else "__us"
    match node.kind:
        case WindowKind.TUMBLE:
            start = f"(__us - {dialect.modulo(moved, node.size_us)})"
            end = f"({start} + {size})"
        case WindowKind.HOP:
            aligned = dialect.modulo(moved, node.step_us)
            start = f"(__us - {aligned} - __i * {number(node.step_us)})"
            end = f"({start} + {size})"
        case WindowKind.CUMULATE:
            start = f"(__us - {dialect.modulo(moved, node.size_us)})"
            end = f"({start} + (__i + 1) * {number(node.step_us)})"
        case _:
            assert_never(node.kind)
    columns = f"{placed(listed(dialect, names(node.input)))}{more}"
    timed = f"SELECT {columns}, {at} AS __us FROM ({rows}) AS x WHERE {at} IS NOT NULL"
    return (
        f"SELECT {columns}, {dialect.moment(start)} AS {WINDOW_START}, "
        f"{dialect.moment(end)} AS {WINDOW_END} FROM ({timed}) AS t "
        f"CROSS JOIN {dialect.numbers(count)} WHERE {end} > __us"
    )


def united(node: UnionAll, rows: Sequence[str], dialect: Dialect, more: str = "") -> str:
    """Write the query of a `UnionAll`; `more` are columns that are passed on beside."""
    columns = f"{placed(listed(dialect, names(node)))}{more}"
    return " UNION ALL ".join(f"SELECT {columns} FROM ({each}) AS u" for each in rows)


def ended(node: Final, rows: str, dialect: Dialect) -> str:
    """Write the query of a `Final`; the watermark is put in where it is known."""
    columns = placed(listed(dialect, names(node)))
    return f"SELECT {columns} FROM ({rows}) AS x WHERE {END} <= {WATERMARK}"


def _calls(node: Grouped | Sessions, dialect: Dialect) -> str:
    results = [f"{called(call, dialect)} AS {dialect.name(call.name)}" for call in node.calls]
    return ", ".join([*results, *newest_place(dialect)])


def _grouped(node: Grouped, rows: str, dialect: Dialect) -> str:
    keys = listed(dialect, node.keys)
    return f"SELECT {keys}, {_calls(node, dialect)} FROM ({rows}) AS x GROUP BY {keys}"


def _sessions(node: Sessions, rows: str, dialect: Dialect) -> str:
    keys = listed(dialect, node.keys)
    at, gap = dialect.micros(dialect.name(node.time)), dialect.whole_number(node.gap_us)
    part = f"OVER (PARTITION BY {keys} ORDER BY __us)"
    timed = f"SELECT *, {at} AS __us FROM ({rows}) AS x WHERE {at} IS NOT NULL"
    opened = (
        f"SELECT *, CASE WHEN __us - lag(__us) {part} < {gap} THEN 0 ELSE 1 END AS __opens "
        f"FROM ({timed}) AS t"
    )
    numbered = f"SELECT *, sum(__opens) {part} AS __session FROM ({opened}) AS o"
    return (
        f"SELECT {keys}, {dialect.moment('min(__us)')} AS {WINDOW_START}, "
        f"{dialect.moment(f'max(__us) + {gap}')} AS {WINDOW_END}, {_calls(node, dialect)} "
        f"FROM ({numbered}) AS s GROUP BY {keys}, __session"
    )


def _over(node: Over, rows: str, dialect: Dialect) -> str:
    calls = ", ".join(
        f"{called(call, dialect, f' OVER ({_around(node, call, dialect)})')} AS "
        f"{dialect.name(call.name)}"
        for call in node.calls
    )
    columns = placed(listed(dialect, names(node.input)))
    return f"SELECT {columns}, {calls} FROM ({rows}) AS x"


def _around(node: Over, call: Call, dialect: Dialect) -> str:
    """Write what stands in OVER. Rows of equal order are told apart by all that they hold."""
    by = f"PARTITION BY {listed(dialect, node.partition)}" if node.partition else ""
    by_value = node.frame is not None and node.frame.by_value
    order = [
        f"{_coordinate(node, each.column, dialect) if by_value else dialect.name(each.column)} "
        f"{'DESC' if each.descending else 'ASC'} NULLS {'FIRST' if each.nulls_first else 'LAST'}"
        for each in node.order
    ]
    alike = call.function in RANKS or (node.frame is not None and not node.frame.rows)
    if order and not alike:
        order += _told_apart(node.input, dialect, "ASC")
    parts = [by, f"ORDER BY {', '.join(order)}" if order else "", _frame(node, dialect)]
    return " ".join(filter(None, parts))


def _coordinate(node: Over, name: str, dialect: Dialect) -> str:
    """Write what distances of a RANGE are measured in."""
    return dialect.micros(dialect.name(name)) if node.timed else dialect.name(name)


def _frame(node: Over, dialect: Dialect) -> str:
    frame = node.frame
    if frame is None:
        return ""
    before = _bound(node, None if frame.before is None else -frame.before, "PRECEDING", dialect)
    after = _bound(node, frame.after, "FOLLOWING", dialect)
    return f"{'ROWS' if frame.rows else 'RANGE'} BETWEEN {before} AND {after}"


def _bound(node: Over, place: int | None, side: str, dialect: Dialect) -> str:
    """Write one end of a frame: how far behind the row it is, before it below 0."""
    if place is None:
        return f"UNBOUNDED {side}"
    if place == 0:
        return "CURRENT ROW"
    count = str(abs(place))
    if node.frame is not None and node.frame.by_value:
        # Spark takes no other type than that of the order.
        (kind,) = (c.type for c in node.input.columns if c.name == node.order[0].column)
        long = node.timed or kind == "BIGINT"
        count = dialect.whole_number(abs(place)) if long else f"CAST({count} AS {kind})"
    return f"{count} {'PRECEDING' if place < 0 else 'FOLLOWING'}"


def keyed(node: Newest, rows: str, dialect: Dialect, more: str = "") -> str:
    """Write the rows that have a whole key; `more` are columns that are passed on beside."""
    known = " AND ".join(f"{dialect.name(key)} IS NOT NULL" for key in node.keys)
    columns = f"{placed(listed(dialect, names(node)))}{more}"
    return f"SELECT {columns} FROM ({rows}) AS x WHERE {known}"


def _newest(node: Newest, rows: str, dialect: Dialect) -> str:
    if node.unique:
        return keyed(node, rows, dialect)
    keys = listed(dialect, node.keys)
    if in_places(node.input, node.keys):
        # Other columns are not looked at: one that cannot be computed hides no key.
        order = ", ".join(f"{name} DESC NULLS LAST" for name in ORDER)
    else:
        order = ", ".join(_told_apart(node.input, dialect, "DESC"))
    columns = placed(listed(dialect, names(node)))
    return (
        f"SELECT {columns} FROM (SELECT {columns}, row_number() OVER (PARTITION BY {keys} "
        f"ORDER BY {order}) AS __rank FROM ({keyed(node, rows, dialect)}) AS k) AS n "
        "WHERE __rank = 1"
    )


def _told_apart(node: Node, dialect: Dialect, direction: str) -> list[str]:
    """Order rows by time and place, then by all that they hold: only equal rows stay alike."""
    more = [
        value
        for each in node.columns
        for value in dialect.apart(dialect.name(each.name), each.type)
    ]
    return [f"{value} {direction} NULLS LAST" for value in (*ORDER, *more)]
