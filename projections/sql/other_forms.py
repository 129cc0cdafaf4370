"""Forms of other systems that mean what a form of the dialect means, written as that one.

An exact answer stands for one that may be approximate; what only seems to be the same, as a first
or a last value in the order of arrival, is left, and refused where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from projections.sql.durations import duration_of, in_us
from projections.sql.expressions import unwrapped
from projections.sql.tokens import SPARK

_Form = Callable[[exp.Expr], exp.Expr | None]


def with_own_forms(query: exp.Expr) -> exp.Expr:
    """Return a query whose forms of other systems are those of the dialect."""
    for select in [*query.find_all(exp.Select)]:
        select.set("hint", None)  # It says how to compute, and nothing of what.
        _one_of_each(select)
    # What is inside comes first: forms stand in each other.
    for node in reversed([*query.walk()]):
        made = _own_form(node)
        if made is not node and node is not query:
            node.replace(made)
    return query


def _own_form(node: exp.Expr) -> exp.Expr:
    rule = _NAMED.get(node.name.upper()) if isinstance(node, exp.Anonymous) else None
    rule = rule or _CLASSES.get(type(node))
    made = None if rule is None else rule(node)
    if made is None:
        return node
    start = next((n.meta["start"] for n in node.walk() if "start" in n.meta), None)
    if start is not None and not any("start" in n.meta for n in made.walk()):
        made.meta["start"] = start
    return made


def _one_of_each(select: exp.Select) -> None:
    """Write DISTINCT ON (…) with ORDER BY as the first row of each by that order."""
    distinct = select.args.get("distinct")
    by = distinct.args.get("on") if isinstance(distinct, exp.Distinct) else None
    order = select.args.get("order")
    further = ("qualify", "limit", "offset", "group")
    if by is None or order is None or any(select.args.get(each) for each in further):
        return
    groups = by.expressions if isinstance(by, exp.Tuple) else [unwrapped(by)]
    known = {item.alias.lower(): item.this for item in select.expressions if item.alias}

    def meant(found: exp.Expr) -> exp.Expr:
        alone = isinstance(found, exp.Column) and len(found.parts) == 1
        return known.get(found.name.lower(), found).copy() if alone else found

    parts = [each.transform(meant) for each in order.expressions]
    groups = [each.transform(meant) for each in groups]
    rest = [part for part in parts if all(part.this != each for each in groups)]
    if len(parts) - len(rest) > len(groups) or not rest:
        return
    number = exp.Window(
        this=exp.RowNumber(),
        partition_by=groups,
        order=exp.Order(expressions=rest),
        over="OVER",
    )
    first = exp.EQ(this=number, expression=exp.Literal.number(1))
    select.set("qualify", exp.Qualify(this=first))
    select.set("distinct", None)
    select.set("order", None)


def _counted(node: exp.Expr) -> exp.Expr | None:
    """A number of different values that may be wrong by some is one that is right."""
    return exp.Count(this=exp.Distinct(expressions=[node.this]))


def _of_one(kind: type[exp.Expr]) -> _Form:
    return lambda node: kind(this=node.expressions[0]) if len(node.expressions) == 1 else None


def _newest(node: exp.Expr) -> exp.Expr | None:
    """Any value is the newest one, which a column beside GROUP BY is."""
    select = node.find_ancestor(exp.Select)
    if select is None or select.args.get("group") is None:
        return None
    plain = isinstance(node.this, exp.Column) and not isinstance(
        node.parent, exp.Filter | exp.Window
    )
    return exp.Paren(this=node.this) if plain else None


def _binned(node: exp.Expr) -> exp.Expr | None:
    """Write date_bin(size, t, origin) and time_bucket(size, t) as microseconds less their rest."""
    if isinstance(node, exp.DateBin):
        size, time = node.this, node.expression
        origin = node.args.get("unit") or node.args.get("origin") or node.args.get("zone")
    elif 2 <= len(node.expressions) <= 3:
        size, time = node.expressions[:2]
        origin = node.expressions[2] if len(node.expressions) == 3 else None
    else:
        return None
    length = duration_of(size)
    if not length or not in_us(length):
        return None
    since = f"unix_micros({_text(time)})"
    since += f" - unix_micros({_text(origin)})" if origin is not None else ""
    text = f"timestamp_micros(unix_micros({_text(time)}) - pmod({since}, {in_us(length)}))"
    return _parsed(text)


def _text(node: exp.Expr) -> str:
    return str(node.sql(dialect=SPARK, comments=False))


def _parsed(text: str) -> exp.Expr:
    (query,) = SPARK.parse(f"SELECT {text}")
    assert isinstance(query, exp.Select), "it is written here"
    made: exp.Expr = query.expressions[0]
    return made


def _differ(node: exp.Expr) -> exp.Expr | None:
    same = exp.NullSafeEQ(this=node.this, expression=node.expression)
    return exp.Not(this=exp.Paren(this=same))


def _in_any_case(node: exp.Expr) -> exp.Expr | None:
    """Spark itself computes ILIKE so; a pattern with letters that are not ASCII is left to it."""
    pattern = node.expression
    plain = isinstance(pattern, exp.Literal) and pattern.name.isascii()
    if not plain or isinstance(node.parent, exp.Escape):
        return None
    lower = exp.Literal.string(pattern.name.lower())
    made: exp.Expr = exp.Like(this=exp.Lower(this=node.this), expression=lower)
    return exp.Not(this=exp.Paren(this=made)) if node.args.get("negate") else made


def _like_some(node: exp.Expr) -> exp.Expr | None:
    """Write LIKE ANY and LIKE ALL as comparisons with each of the patterns."""
    several = node.expression
    patterns = unwrapped(several.this) if isinstance(several, exp.Any | exp.All) else None
    if patterns is None:
        return None
    each = patterns.expressions if isinstance(patterns, exp.Tuple) else [patterns]
    if not all(isinstance(pattern, exp.Literal) for pattern in each):
        return None
    made: list[exp.Expr] = []
    for pattern in each:
        like = type(node)(this=node.this.copy(), expression=pattern)
        like = _in_any_case(like) or like if isinstance(like, exp.ILike) else like
        made.append(exp.Not(this=exp.Paren(this=like)) if node.args.get("negate") else like)
    joined = exp.or_(*made) if isinstance(several, exp.Any) else exp.and_(*made)
    return exp.Paren(this=joined)


def _like(node: exp.Expr) -> exp.Expr | None:
    several = _like_some(node)
    return several or (_in_any_case(node) if isinstance(node, exp.ILike) else None)


def _among(node: exp.Expr) -> exp.Expr | None:
    """Write = ANY (SELECT …) as IN, and <> ALL (SELECT …) as NOT IN."""
    other = node.expression
    any_of = isinstance(node, exp.EQ) and isinstance(other, exp.Any)
    none_of = isinstance(node, exp.NEQ) and isinstance(other, exp.All)
    if not any_of and not none_of:
        return None
    query = unwrapped(other.this)
    query = query.this if isinstance(query, exp.Subquery) else query
    if not isinstance(query, exp.Query):
        return None
    made = exp.In(this=node.this, query=exp.Subquery(this=query))
    return made if any_of else exp.Not(this=made)


def _chosen(node: exp.Expr) -> exp.Expr | None:
    """Write decode(x, a, 1, b, 2, 0) as CASE: to it NULL is equal to NULL."""
    subject, *rest = node.expressions
    default = rest.pop() if len(rest) % 2 else None
    pairs = zip(rest[::2], rest[1::2], strict=True)
    ifs = [
        exp.If(this=exp.NullSafeEQ(this=subject.copy(), expression=value), true=result)
        for value, result in pairs
    ]
    return exp.Case(ifs=ifs, default=default) if ifs else None


def _if(node: exp.Expr) -> exp.Expr | None:
    if len(node.expressions) != 3:
        return None
    condition, yes, no = node.expressions
    return exp.If(this=condition, true=yes, false=no)


def _of_json(node: exp.Expr) -> exp.Expr | None:
    """Write a -> 'b' ->> 'c' as one path."""
    if "scalar_only" not in node.args:
        return None  # The function, whose path is that of Spark.
    steps: list[str] = []
    begins = "$"
    inner: exp.Expr = node
    while isinstance(inner, exp.JSONExtract | exp.JSONExtractScalar):
        path = inner.expression
        if not isinstance(path, exp.Literal):
            return None
        if path.is_string and path.name.startswith("$"):
            begins, inner = path.name, inner.this
            break
        steps.insert(0, f"['{path.name}']" if path.is_string else f"[{path.name}]")
        inner = unwrapped(inner.this)
    if any("'" in step[2:-2] for step in steps if step.startswith("['")):
        return None
    return _at_path(inner, exp.Literal.string(begins + "".join(steps)))


def _json_value(node: exp.Expr) -> exp.Expr | None:
    if len(node.expressions) != 2 or not isinstance(node.expressions[1], exp.Literal):
        return None
    return _at_path(node.expressions[0], node.expressions[1])


def _at_path(document: exp.Expr, path: exp.Expr) -> exp.Expr:
    return exp.JSONExtractScalar(this=document, expression=path, only_json_types=False)


def _part_of(node: exp.Expr) -> exp.Expr | None:
    """Write PERCENTILE_CONT(p) WITHIN GROUP (ORDER BY x) as PERCENTILE(x, p)."""
    order = node.expression
    plain = isinstance(node.this, exp.PercentileCont) and isinstance(order, exp.Order)
    parts = order.expressions if plain else []
    if len(parts) != 1 or parts[0].args.get("desc"):
        return None
    return exp.Quantile(this=parts[0].this, quantile=node.this.this)


def _half(node: exp.Expr) -> exp.Expr | None:
    return exp.Quantile(this=node.this, quantile=exp.Literal.number("0.5"))


_VARIANCES: Mapping[type[exp.Expr], type[exp.Expr]] = {
    exp.Stddev: exp.Variance,
    exp.StddevSamp: exp.Variance,
    exp.StddevPop: exp.VariancePop,
}


def _deviation(node: exp.Expr) -> exp.Expr | None:
    """Write a standard deviation as the root of a variance, with its FILTER and OVER."""
    if isinstance(node.parent, exp.Filter | exp.Window) and node.arg_key == "this":
        return None
    made = node.copy()
    inner = made
    while isinstance(inner, exp.Filter | exp.Window):
        inner = inner.this
    variance = _VARIANCES.get(type(inner))
    if variance is None:
        return None
    if inner is made:
        return exp.Sqrt(this=variance(this=inner.this))
    inner.replace(variance(this=inner.this))
    return exp.Sqrt(this=made)


def _ascending(node: exp.Expr) -> exp.Expr | None:
    """Leave out the order of a list that is that of its values, as it is without."""
    order = node.this
    if not isinstance(order, exp.Order) or len(order.expressions) != 1:
        return None
    by = order.expressions[0]
    value = order.this.expressions[0] if isinstance(order.this, exp.Distinct) else order.this
    if by.args.get("desc") or by.this != value:
        return None
    made = node.copy()
    made.set("this", order.this.copy())
    return made


_CLASSES: Mapping[type[exp.Expr], _Form] = {
    exp.ApproxDistinct: _counted,
    exp.AnyValue: _newest,
    exp.DateBin: _binned,
    exp.NullSafeNEQ: _differ,
    exp.Like: _like,
    exp.ILike: _like,
    exp.EQ: _among,
    exp.NEQ: _among,
    exp.DecodeCase: _chosen,
    exp.WithinGroup: _part_of,
    exp.Median: _half,
    **dict.fromkeys((*_VARIANCES, exp.Filter, exp.Window), _deviation),
    exp.GroupConcat: _ascending,
    exp.ArrayAgg: _ascending,
    exp.JSONExtractScalar: _of_json,
}
_NAMED: Mapping[str, _Form] = {
    "EVERY": _of_one(exp.LogicalAnd),
    "SOME": _of_one(exp.LogicalOr),
    "TIME_BUCKET": _binned,
    "IFF": _if,
    "EXTRACTJSONFIELD": _json_value,
    "JSON_VALUE": _json_value,
}
