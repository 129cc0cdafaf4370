"""DISTINCT, INTERSECT and EXCEPT as groups: of each row it is counted out whether a side has it.

Rows are compared as GROUP BY compares them: NULL is equal to NULL, and each row is there once. Of
the two zeros of a floating column the one without a sign is there, as Spark has it.

INTERSECT ALL and EXCEPT ALL number the rows that are equal, those of the second side first: of the
first side as many are in both as the second one has, and the further ones are in the first alone.
"""

from __future__ import annotations

from sqlglot import exp

from projections.sql.forms.outer_joins import null_of
from projections.sql.operators.tree import (
    Call,
    Computed,
    Frame,
    Function,
    Grouped,
    Map,
    Node,
    Ordering,
    Over,
    UnionAll,
    column,
    passed,
)
from projections.sql.words.decimals import FLOATING, common_type
from projections.sql.words.places import Script

_FIRST, _SECOND = "__first", "__second"
_PLACE, _MET = "__place", "__met"


def distinct(node: Node) -> Grouped:
    """Return each row of a node once."""
    if any(each.type in FLOATING for each in node.columns):
        node = Map(input=node, outputs=_keys(node))
    return Grouped(input=node, keys=tuple(each.name for each in node.columns), calls=())


def operated(operation: exp.SetOperation, first: Node, second: Node) -> Map:
    """Return the rows of INTERSECT, EXCEPT and their ALL of two nodes with equal columns."""
    both = isinstance(operation, exp.Intersect)
    if not operation.args.get("distinct"):
        return _each_met(first, second, exp.LTE if both else exp.GT)
    of_second = column(f"{_SECOND}_has")
    return _compared(first, second, of_second if both else exp.Not(this=of_second))


def word_of(node: exp.Expr) -> str:
    """Return the words of a UNION, or of what stands in its place."""
    name = type(node).__name__.upper()
    alls = isinstance(node, exp.Intersect | exp.Except) and not node.args.get("distinct")
    return f"{name} ALL" if alls else name


def named_alike(part: exp.Expr, first: Node) -> exp.Expr:
    """Give the expressions of a UNION's further part the names that the first part has."""
    if not isinstance(part, exp.Select):
        return part
    part = part.copy()
    names = [each.name for each in first.columns]
    for place, item in enumerate(part.expressions[: len(names)]):
        if not isinstance(item, exp.Alias | exp.Column | exp.Star):
            item.replace(exp.alias_(item.copy(), names[place], quoted=True))
    return part


def in_order_of(script: Script, second: Node, first: Node, at: int) -> Map:
    """Return the columns of the second part of a UNION BY NAME in the order of the first part.

    Raises `InvalidRequest` where one of them has a column that the other has not.
    """
    known = {each.name.lower(): each for each in second.columns}
    ours = [each.name.lower() for each in first.columns]
    if {*ours} != {*known}:
        alone = ", ".join(sorted({*ours} ^ {*known}))
        raise script.refusal(
            f"UNION BY NAME of parts with other columns: {alone}",
            at=at,
            fix="Give both the same names: SELECT a, CAST(NULL AS INT) AS b FROM ….",
        )
    return Map(input=second, outputs=passed(tuple(known[name] for name in ours)))


def matching(script: Script, first: Node, second: Node, word: str, at: int) -> tuple[Node, Node]:
    """Return both parts of a UNION and its like, `word`, under the names of the first part.

    Numbers of two types get the one that holds both, as in Spark. Raises `InvalidRequest` where the
    parts have other numbers of columns, or columns of other types.
    """
    if len(first.columns) != len(second.columns):
        raise script.refusal(
            f"the parts of a {word} have {len(first.columns)} and {len(second.columns)} columns",
            at=at,
            fix="Select the same columns, in the same order.",
        )
    kinds = []
    for one, other in zip(first.columns, second.columns, strict=True):
        kind = common_type([one.type, other.type])
        if not kind and (one.type or other.type):
            raise script.refusal(
                f"column {one.name} of a {word} is {one.type or 'of unknown type'} above and "
                f"{other.type or 'of unknown type'} below",
                at=at,
                fix=f"Convert one of them: CAST(… AS {one.type or other.type or 'STRING'}).",
            )
        kinds.append(kind)
    names = [each.name for each in first.columns]
    converted = kinds != [each.type for each in first.columns]
    return _as(first, names, kinds) if converted else first, _as(second, names, kinds)


def _as(node: Node, names: list[str], kinds: list[str]) -> Map:
    """Return the rows of a node with columns of these names and types."""
    outputs = []
    for own, name, kind in zip(node.columns, names, kinds, strict=True):
        value = column(own.name)
        if own.type != kind:
            value = exp.Cast(this=value, to=exp.DataType.build(kind, dialect="spark"))
        outputs.append(Computed(name=name, expression=value, type=kind))
    return Map(input=node, outputs=tuple(outputs))


def _each_met(first: Node, second: Node, which: type[exp.Binary]) -> Map:
    """Return the rows of the first side by their number among equal ones, and how many are met."""
    of_second = (exp.true(), null_of("BOOLEAN"))
    sides = tuple(
        Map(
            input=node,
            outputs=(*_keys(node), Computed(name=_SECOND, expression=told, type="BOOLEAN")),
        )
        for node, told in zip((second, first), of_second, strict=True)
    )
    numbered = Over(
        input=UnionAll(inputs=sides),
        partition=tuple(each.name for each in first.columns),
        order=(Ordering(column=_SECOND, descending=False, nulls_first=False),),
        frame=Frame(rows=True, before=None, after=0),
        calls=(
            Call(name=_PLACE, function=Function.ROW_NUMBER, argument=None, kind="", type="INT"),
            Call(
                name=_MET,
                function=Function.COUNT,
                argument=_SECOND,
                kind="BOOLEAN",
                type="BIGINT",
            ),
        ),
    )
    of_first = exp.Is(this=column(_SECOND), expression=exp.Null())
    last = exp.Add(this=column(_MET), expression=column(_MET))
    where = (of_first, which(this=column(_PLACE), expression=last))
    return Map(input=numbered, outputs=passed(first.columns), where=where)


def _compared(first: Node, second: Node, of_second: exp.Expr) -> Map:
    both = UnionAll(inputs=(_from(first, is_first=True), _from(second, is_first=False)))
    calls = tuple(
        Call(
            name=f"{name}_has",
            function=Function.ANY,
            argument=name,
            kind="BOOLEAN",
            type="BOOLEAN",
        )
        for name in (_FIRST, _SECOND)
    )
    groups = Grouped(input=both, keys=tuple(each.name for each in first.columns), calls=calls)
    has = (column(f"{_FIRST}_has"), of_second)
    return Map(input=groups, outputs=passed(first.columns), where=has)


def _from(node: Node, *, is_first: bool) -> Map:
    sides = ((_FIRST, is_first), (_SECOND, not is_first))
    told = (
        Computed(name=name, expression=exp.Boolean(this=value), type="BOOLEAN")
        for name, value in sides
    )
    return Map(input=node, outputs=(*_keys(node), *told))


def _keys(node: Node) -> tuple[Computed, ...]:
    return tuple(
        Computed(
            name=each.name, expression=without_sign(column(each.name), each.type), type=each.type
        )
        for each in node.columns
    )


def without_sign(key: exp.Expr, kind: str) -> exp.Expr:
    """Write a key; of a zero with a sign the other one."""
    if kind not in FLOATING:
        return key
    zero = exp.Cast(this=exp.Literal.number(0), to=exp.DataType.build(kind, dialect="spark"))
    return exp.Add(this=exp.Paren(this=key.copy()), expression=zero)
