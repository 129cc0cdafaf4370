"""Conditions and measures of a pattern: the words in them that the parser does not know.

`LAST(A.x, 1)`, `FINAL LAST(A.x)`, `CLASSIFIER()` and `MATCH_ROWTIME()` are aggregates of a match.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from projections.sql.forms.arguments import read_query
from projections.sql.operators.formulas import Take
from projections.sql.operators.tree import Function
from projections.sql.words.places import Script
from projections.sql.words.tokens import between_commas, closing, made_like

WHOLE = "whole"
"""Under this an aggregate has, in the `meta` of its node, that FINAL stands before it."""
_MARK = "PENSTOCK_MATCH_"
_ENDS: dict[str, type[exp.Expr]] = {"FIRST": exp.First, "LAST": exp.Last}
_FINAL = "FINAL"
_RUNNING = "RUNNING"


class Classifier(exp.Expression, exp.AggFunc):
    """What variable the last row of a match is."""

    arg_types = {}  # noqa: RUF012
    _sql_names = ["CLASSIFIER"]  # noqa: RUF012


TAKES: dict[type[exp.Expr], Take] = {
    exp.First: Take.FIRST,
    exp.Last: Take.LAST,
    exp.Count: Take.COUNT,
    exp.Sum: Take.SUM,
    exp.Avg: Take.AVG,
    exp.Min: Take.MIN,
    exp.Max: Take.MAX,
    Classifier: Take.VARIABLE,
}
NEIGHBOURS = {"PREV": Function.LAG, "NEXT": Function.LEAD}
SIGNS: dict[type[exp.Expr], str] = {
    exp.And: "and",
    exp.Or: "or",
    exp.Not: "not",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "<=>",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Neg: "neg",
    exp.Abs: "abs",
    exp.Coalesce: "coalesce",
}
INSIDE = (
    "Over several rows of a match there are comparisons, + - * /, AND, OR, NOT, IS NULL, BETWEEN, "
    "coalesce and abs; compute anything else in a subquery, or from one row alone."
)


def read_expression(
    script: Script, tokens: Sequence[Token], *, time: exp.Expr | None = None, final: bool = False
) -> exp.Expr:
    """Read an expression of MATCH_RECOGNIZE. Raises `InvalidRequest` at what is none.

    `time` is what its rows are ordered by, for MATCH_ROWTIME(). `final`: FINAL may stand in it.
    """
    select = made_like(tokens[0], TokenType.SELECT, "SELECT")
    query = read_query(script, [select, *_with_calls(script, tokens, final=final)])
    # What is inside comes first: a position stands in FINAL.
    for node in reversed([*query.walk()]):
        made = _meant(node, time) if isinstance(node, exp.Anonymous) else None
        if made is not None:
            made.meta.update(node.meta)
            node.replace(made)
    found: exp.Expr = query.expressions[0]
    found.meta.setdefault("start", int(tokens[0].start))
    return found


def _meant(node: exp.Anonymous, time: exp.Expr | None) -> exp.Expr | None:
    name, parts = node.name.upper(), node.expressions
    match name.removeprefix(_MARK) if name.startswith(_MARK) else name, parts:
        case "CLASSIFIER", []:
            return Classifier()
        case "MATCH_ROWTIME", [] if time is not None:
            return exp.Last(this=time.copy())
        case "MATCH_ROWTIME", [own] if time is not None:
            return exp.Last(this=own)
        case ("FIRST" | "LAST") as end, [value, passed]:
            return _ENDS[end](this=value, expression=passed)
        case "FINAL", [inner] if name.startswith(_MARK):
            whole: exp.Expr = inner
            whole.meta[WHOLE] = True
            return whole
        case _:
            return None


def _with_calls(script: Script, tokens: Sequence[Token], *, final: bool) -> list[Token]:
    """Write FINAL before a call as a call around it, and FIRST and LAST of two as calls of ours."""
    made: list[Token] = []
    closes: dict[int, int] = {}
    for place, token in enumerate(tokens):
        word = token.text.upper()
        called = [each.text for each in tokens[place + 2 : place + 3]] == ["("]
        if word in (_FINAL, _RUNNING) and called:
            if word == _FINAL and not final:
                raise script.refusal(
                    "FINAL in a condition: the match is not whole there",
                    at=int(token.start),
                    fix="Leave it out, or write FINAL in MEASURES.",
                )
            end = closing(tokens, place + 2)
            if word == _FINAL and end is not None:
                closes[end] = closes.get(end, 0) + 1
                made.append(made_like(token, TokenType.VAR, f"{_MARK}{_FINAL}"))
                made.append(made_like(token, TokenType.L_PAREN, "("))
            continue
        end = closing(tokens, place + 1) if _opens(tokens, place + 1) else None
        if word in _ENDS and end is not None:
            parts = between_commas(tokens[place + 2 : end])
            token = token if len(parts) < 2 else made_like(token, TokenType.VAR, f"{_MARK}{word}")
        made.append(token)
        made += [made_like(token, TokenType.R_PAREN, ")")] * closes.get(place, 0)
    return made


def _opens(tokens: Sequence[Token], place: int) -> bool:
    return place < len(tokens) and tokens[place].token_type is TokenType.L_PAREN


def asked_unless(node: exp.Expr, unless: Sequence[exp.Expr]) -> exp.Expr:
    """Return an expression that is computed where none of some conditions is true."""
    if not unless or isinstance(node, exp.Column):
        return node.copy()
    decided = [exp.If(this=each.copy(), true=exp.Null()) for each in unless]
    return exp.Case(ifs=decided, default=node.copy())


def is_neighbour(found: exp.Expr) -> bool:
    """Say whether this is the value of a row some rows before or behind in the partition."""
    return isinstance(found, exp.Anonymous) and found.name.upper() in NEIGHBOURS


def number_of(text: str) -> int | Decimal | float:
    """Return the value of a literal: of the type that Spark gives it."""
    if text.isdigit():
        return int(text)
    return float(text) if "e" in text.lower() else Decimal(text)
