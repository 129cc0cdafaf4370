"""ORDER BY with LIMIT: the first rows of a query, as those that have the first numbers in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from projections.sql.operators.query import Output, read_items
from projections.sql.values.expressions import AGGREGATES, render, same_text
from projections.sql.words.places import Script, offset_of

_ROWS = "penstock_rows"
_FURTHER = "penstock_order_"
"""The name of the rows among which some are first, and what begins names of columns of theirs."""
_OF_ORDER = ("this", "desc", "nulls_first")
_CLAUSES = ("order", "limit", "offset")


def with_first_rows(script: Script, query: exp.Expr, at: int) -> exp.Expr:
    """Write a query with LIMIT as a choice among the rows that it has without; others as they are.

    Raises `InvalidRequest` where nothing says which rows are the first.
    """
    limit, offset = query.args.get("limit"), query.args.get("offset")
    if limit is None and offset is None:
        return query
    clauses = [each for each in (limit, offset) if each is not None]
    place = offset_of(clauses[0], at)
    order = query.args.get("order")
    if order is None:
        raise script.refusal(
            f"{clauses[0].key.upper()} without ORDER BY: which rows it leaves would be a guess",
            at=place,
            fix="Say which rows are the first: ORDER BY occurred_at DESC LIMIT 10.",
        )
    for clause in clauses:
        _refuse_by(script, clause, offset_of(clause, place))
    skipped = 0 if offset is None else _number(script, offset.args.get("expression"), place)
    count = None if limit is None else _count(script, limit, place)
    ties = _has_ties(script, limit, skipped, place)
    plain = query.copy()
    for clause in _CLAUSES:
        plain.set(clause, None)
    select = _first_select(plain)
    rows = _Rows(script=script, at=at, query=plain, items=read_items(script, select, at))
    by = exp.Order(expressions=[rows.ordered(each) for each in rows.by(order)])
    if rows.further:
        plain.set("expressions", [*plain.args["expressions"], *rows.further])
    number = exp.Window(this=exp.RowNumber(), order=by, over="OVER")
    parts: list[exp.Expr] = []
    if skipped or count is None:
        parts.append(exp.GT(this=number.copy(), expression=exp.Literal.number(skipped)))
    if count is not None:
        placed = number.copy()
        if ties:
            placed.set("this", exp.Rank())
        parts.append(exp.LTE(this=placed, expression=exp.Literal.number(skipped + count)))
    return exp.Select(
        expressions=[_named(item.name, item.at) for item in rows.items],
        from_=exp.From(
            this=exp.Subquery(this=plain, alias=exp.TableAlias(this=exp.to_identifier(_ROWS)))
        ),
        qualify=exp.Qualify(this=exp.and_(*parts)),
    )


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The rows of a query, and what ORDER BY reads that is no result: `further` columns of them."""

    script: Script
    at: int
    query: exp.Expr
    items: list[Output]
    further: list[exp.Expr] = field(default_factory=list)

    def by(self, order: exp.Expr) -> list[exp.Expr]:
        """Return the parts of ORDER BY; ALL are all columns, where none has this name."""
        parts = order.expressions
        first = parts[0].this
        if len(parts) > 1 or not isinstance(first, exp.Var) or first.name.upper() != "ALL":
            return [*parts]
        named = [item for item in self.items if item.name.lower() == "all"] or self.items
        made = []
        for item in named:
            part = parts[0].copy()
            part.set("this", exp.column(item.name, quoted=True))
            made.append(part)
        return made

    def ordered(self, node: exp.Expr) -> exp.Expr:
        """Turn a part of ORDER BY into one over the rows."""
        _refuse_further(self.script, node, offset_of(node, self.at))
        made = node.copy()
        made.set("this", self._column(node.this))
        return made

    def _column(self, node: exp.Expr) -> exp.Expr:
        at = offset_of(node, self.at)
        if isinstance(node, exp.Literal) and not node.is_string:
            if not (node.name.isdigit() and 1 <= int(node.name) <= len(self.items)):
                raise self.script.refusal(
                    f"ORDER BY {node.name}: there are {len(self.items)} columns",
                    at=at,
                    fix="Order by the column's name.",
                )
            return _named(self.items[int(node.name) - 1].name, at)
        known = {item.name.lower(): item for item in self.items}
        same = [item for item in self.items if same_text(item.expression) == same_text(node)]
        if isinstance(node, exp.Column) and len(node.parts) == 1 and node.name.lower() in known:
            return _named(known[node.name.lower()].name, at)
        if same:
            return _named(same[0].name, at)
        if not isinstance(self.query, exp.Select) or self.query.args.get("distinct"):
            raise self.script.refusal(
                "ORDER BY of several queries, or behind DISTINCT, names columns that they give",
                at=at,
                fix=f"Order by {', '.join(item.name for item in self.items)}.",
            )
        return self._further(node, known, at)

    def _further(self, node: exp.Expr, known: dict[str, Output], at: int) -> exp.Expr:
        """Add an expression to what the query selects; it knows the names given by AS."""

        def meant(found: exp.Expr) -> exp.Expr:
            if isinstance(found, (exp.Filter, *AGGREGATES)):
                return found.copy()  # Inside are columns of the input.
            alone = isinstance(found, exp.Column) and len(found.parts) == 1
            item = known.get(found.name.lower()) if alone else None
            return found if item is None else exp.Paren(this=item.expression.copy())

        name = f"{_FURTHER}{len(self.further)}"
        self.further.append(exp.alias_(node.copy().transform(meant), name))
        return _named(name, at)


def _first_select(query: exp.Expr) -> exp.Expr:
    while isinstance(query, exp.SetOperation | exp.Subquery):
        query = query.this
    return query


def _refuse_further(script: Script, part: exp.Expr, at: int) -> None:
    """Refuse what the parser reads beside an expression of ORDER BY, and a word in its place."""
    further = [name for name, value in part.args.items() if value and name not in _OF_ORDER]
    words = [part.this.name] if isinstance(part.this, exp.Var) else further
    if words:
        raise script.refusal(
            f"ORDER BY with {', '.join(words).upper().replace('_', ' ')} is not in the dialect",
            at=at,
            fix="Order by expressions, each with ASC or DESC, and NULLS FIRST or NULLS LAST.",
        )


def _refuse_by(script: Script, clause: exp.Expr, at: int) -> None:
    """Refuse a number of rows for each group, which the parser takes for one of all."""
    if clause.args.get("expressions"):
        by = ", ".join(map(render, clause.expressions))
        raise script.refusal(
            f"{type(clause).__name__.upper()} with BY {by} is not in the dialect",
            at=at,
            fix=f"Number the rows: QUALIFY ROW_NUMBER() OVER (PARTITION BY {by} ORDER BY …) <= 10.",
        )


def _count(script: Script, limit: exp.Expr, at: int) -> int:
    number = limit.args.get("count") or limit.args.get("expression")
    # FETCH FIRST ROW ONLY says no number.
    return 1 if isinstance(limit, exp.Fetch) and number is None else _number(script, number, at)


def _has_ties(script: Script, limit: exp.Expr | None, skipped: int, at: int) -> bool:
    """Say whether rows of the last one's order are there, too."""
    options = None if limit is None else limit.args.get("limit_options")
    ties = options is not None and bool(options.args.get("with_ties"))
    if options is not None and (options.args.get("percent") or (ties and skipped)):
        raise script.refusal(
            "PERCENT of FETCH FIRST, and WITH TIES behind OFFSET, are not compiled",
            at=at,
            fix="Number the rows: QUALIFY RANK() OVER (ORDER BY …) <= 10 has ties.",
        )
    return ties


def _number(script: Script, node: exp.Expr | None, at: int) -> int:
    if isinstance(node, exp.Literal) and node.is_int and not node.is_string:
        return int(node.name)
    raise script.refusal(
        "LIMIT, FETCH FIRST and OFFSET take a number", at=at, fix="Write it out: LIMIT 10."
    )


def _named(name: str, at: int) -> exp.Expr:
    made: exp.Expr = exp.column(name, table=_ROWS, quoted=True)
    made.meta["start"] = at
    return made
