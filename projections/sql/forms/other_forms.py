"""Forms of other systems that mean what a form of the dialect means, written as that one.

An exact answer stands for one that may be approximate; what only seems to be the same, as a first
or a last value in the order of arrival, is left, and refused where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from projections.sql.forms import quantifiers
from projections.sql.forms.json_paths import (
    json_exists,
    json_query,
    json_value,
    path_of_steps,
)
from projections.sql.forms.moments import MOMENTS, moment_of
from projections.sql.values.expressions import unwrapped
from projections.sql.words import aggregate_forms
from projections.sql.words.aggregate_forms import Form
from projections.sql.words.durations import duration_of, in_us
from projections.sql.words.similar_patterns import java_pattern
from projections.sql.words.tokens import SPARK, spark_expression


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


def _named_fields(node: exp.Expr) -> exp.Expr | None:
    """Write struct(a, x AS b) with the names of its fields, which columns get others of on the way.

    What is no column, and is given no name, is col1, col2 and so on, by its place.
    """
    parts: list[exp.Expr] = []
    for place, each in enumerate(node.expressions, start=1):
        named = isinstance(each, exp.PropertyEQ | exp.Alias)
        value = each.expression if isinstance(each, exp.PropertyEQ) else each.unalias()
        if isinstance(value, exp.Star) or isinstance(value.this, exp.Star):
            return None
        if isinstance(each, exp.Alias):
            name = each.alias
        elif isinstance(value, exp.Column | exp.Dot | exp.Identifier) or named:
            name = each.name if not isinstance(each, exp.Dot) else each.expression.name
        else:
            name = f"col{place}"
        parts += [exp.Literal.string(name), value]
    return exp.Anonymous(this="named_struct", expressions=parts)


def _decoded(node: exp.Expr) -> exp.Expr | None:
    """Leave decode(bytes, 'utf-8') to Spark."""
    return exp.Anonymous(this="decode", expressions=[node.this, node.args["charset"]])


def _rounded_to(node: exp.Expr) -> exp.Expr | None:
    """Write FLOOR(t TO HOUR) as date_trunc, and CEIL(t TO HOUR) as what is not before t."""
    unit = node.args.get("to")
    if unit is None:
        return None
    time = _text(node.this)
    begun = f"date_trunc('{unit.name.upper()}', {time})"
    if isinstance(node, exp.Floor):
        return spark_expression(begun)
    following = f"{begun} + INTERVAL 1 {unit.name.upper()}"
    return spark_expression(f"(CASE WHEN {begun} = {time} THEN {begun} ELSE {following} END)")


def _moved(node: exp.Expr) -> exp.Expr | None:
    """Leave timestampadd(HOUR, n, t) and dateadd, which means the same, to Spark."""
    unit = exp.Var(this=node.text("unit").upper())
    parts = [unit, node.expression, node.this]
    return exp.Anonymous(this="timestampadd", expressions=parts)


def _by_unit(node: exp.Expr) -> exp.Expr | None:
    """Read the unit of timestampadd as a word, not as a column."""
    unit, *parts = node.expressions or [exp.Null()]
    if not isinstance(unit, exp.Column) or len(parts) != 2:
        return None
    words = [exp.Var(this=unit.name.upper()), *parts]
    return exp.Anonymous(this="timestampadd", expressions=words)


def _of_epoch(node: exp.Expr) -> exp.Expr | None:
    """Read TO_TIMESTAMP_LTZ(x, 3), the moment of a number of milliseconds, or (x, 0) of seconds."""
    unit = node.expressions[1] if len(node.expressions) == 2 else None
    if not isinstance(unit, exp.Literal) or unit.is_string or unit.name not in _EPOCHS:
        return None
    return spark_expression(f"{_EPOCHS[unit.name]}({_text(node.expressions[0])})")


def _part_at(node: exp.Expr) -> exp.Expr | None:
    """Read SPLIT_INDEX(x, '/', 3), the part behind so many separators; NULL where there are fewer.

    Of the empty text there is none. Separator and place are written out.
    """
    text, *written = node.expressions or [exp.Null()]
    if len(written) != 2 or not all(isinstance(each, exp.Literal) for each in written):
        return None
    between, place = written
    if not between.is_string or not between.name or not place.is_int:
        return None
    whole, sign, count = _text(text), _text(between), int(place.name)
    signs = f"length({whole}) - length(replace({whole}, {sign}, ''))"
    enough = f"{signs} >= {count * len(between.name)}"
    part = f"split_part({whole}, {sign}, {count + 1})"
    return spark_expression(f"(CASE WHEN {whole} <> '' AND {enough} THEN {part} END)")


_EPOCHS = {"0": "timestamp_seconds", "3": "timestamp_millis"}


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
    return spark_expression(text)


def _text(node: exp.Expr) -> str:
    return str(node.sql(dialect=SPARK, comments=False))


def _differ(node: exp.Expr) -> exp.Expr | None:
    same = exp.NullSafeEQ(this=node.this, expression=node.expression)
    return exp.Not(this=exp.Paren(this=same))


def _in_any_case(node: exp.Expr) -> exp.Expr | None:
    """Spark itself computes ILIKE so; a pattern with letters that are not ASCII is left to it."""
    pattern = node.expression
    plain = isinstance(pattern, exp.Literal) and pattern.name.isascii()
    if not plain or _is_escaped(node):
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


def _similar(node: exp.Expr) -> exp.Expr | None:
    """Write SIMILAR TO as RLIKE."""
    pattern = node.expression
    written = isinstance(pattern, exp.Literal) and pattern.is_string
    java = java_pattern(pattern.name) if written and not _is_escaped(node) else None
    if java is None:
        return None
    return exp.RegexpLike(this=node.this, expression=exp.Literal.string(java))


def _is_escaped(node: exp.Expr) -> bool:
    return isinstance(node.parent, exp.Escape)


def _like(node: exp.Expr) -> exp.Expr | None:
    several = _like_some(node)
    return several or (_in_any_case(node) if isinstance(node, exp.ILike) else None)


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


def _listed(node: exp.Expr) -> exp.Expr | None:
    """Read MAP['a', 1, 'b', 2] as map('a', 1, 'b', 2): a column has one key in brackets."""
    name, parts = node.this, node.expressions
    alone = isinstance(name, exp.Column) and len(name.parts) == 1
    if not alone or name.name.upper() != "MAP" or len(parts) < 2 or len(parts) % 2:
        return None
    return exp.Anonymous(this="map", expressions=[each.copy() for each in parts])


def _or_else(node: exp.Expr) -> exp.Expr | None:
    """Read ISNULL(x, y), which has a value in the place of NULL."""
    if len(node.expressions) != 2:
        return None
    return exp.Coalesce(this=node.expressions[0], expressions=node.expressions[1:])


def _moment(node: exp.Expr) -> exp.Expr | None:
    return moment_of(node, _text, spark_expression)


def _filtered(node: exp.Expr) -> exp.Expr | None:
    return _moment(node) or aggregate_forms.CLASSES[exp.Filter](node)


_CLASSES: Mapping[type[exp.Expr], Form] = {
    **aggregate_forms.CLASSES,
    **dict.fromkeys(MOMENTS, _moment),
    exp.Filter: _filtered,
    exp.DateBin: _binned,
    exp.NullSafeNEQ: _differ,
    exp.Like: _like,
    exp.ILike: _like,
    exp.SimilarTo: _similar,
    exp.Bracket: _listed,
    **dict.fromkeys(quantifiers.COMPARISONS, quantifiers.compared),
    exp.Not: quantifiers.denied,
    exp.Any: quantifiers.is_aggregate,
    exp.DecodeCase: _chosen,
    exp.JSONExtractScalar: path_of_steps,
    exp.Struct: _named_fields,
    exp.Decode: _decoded,
    exp.Floor: _rounded_to,
    exp.Ceil: _rounded_to,
    exp.TimestampAdd: _moved,
}
_NAMED: Mapping[str, Form] = {
    **aggregate_forms.NAMED,
    "TIME_BUCKET": _binned,
    "IFF": _if,
    "ISNULL": _or_else,
    "EXTRACTJSONFIELD": json_value,
    "JSON_VALUE": json_value,
    "JSON_QUERY": json_query,
    "JSON_EXISTS": json_exists,
    "TIMESTAMPADD": _by_unit,
    "TO_TIMESTAMP_LTZ": _of_epoch,
    "SPLIT_INDEX": _part_at,
}
