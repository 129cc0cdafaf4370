"""`MATCH_RECOGNIZE (…)`: cut out of a query's tokens, and read part by part.

The parser of the query does not know it. In its place stands a subquery with one column of a name
of its own, under which the reader finds the clause again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from sqlglot import exp
from sqlglot.tokens import Token, TokenType

from projections.sql.operators.patterns import FORM as PATTERN_FORM
from projections.sql.operators.patterns import (
    MatchSkip,
    Pattern,
    always_has,
    parse_pattern,
    variables,
)
from projections.sql.statements.match_expressions import read_expression
from projections.sql.words.durations import FORM as DURATION
from projections.sql.words.durations import duration_of
from projections.sql.words.places import Script, nearest, offset_of
from projections.sql.words.tokens import between_commas, closing, made_like

FORM = (
    "FROM STREAM x MATCH_RECOGNIZE (PARTITION BY key ORDER BY occurred_at MEASURES … AS name, … "
    "ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+) WITHIN INTERVAL 1 HOUR "
    "DEFINE A AS condition, …) m"
)
_WORD = "MATCH_RECOGNIZE"
_PLACE = "__match_"
_EACH_ROW = "ALL ROWS PER MATCH"
_OF_NO_ROWS = ("", " SHOW EMPTY MATCHES", " OMIT EMPTY MATCHES")
_NAMING = (MatchSkip.TO_FIRST, MatchSkip.TO_LAST)
_STARTS = {
    ("PARTITION BY",): "PARTITION BY",
    ("ORDER BY",): "ORDER BY",
    ("MEASURES",): "MEASURES",
    ("ONE", "ROW"): "ROWS",
    ("ALL", "ROWS"): "ROWS",
    ("AFTER", "MATCH"): "AFTER",
    ("PATTERN",): "PATTERN",
    ("WITHIN",): "WITHIN",
    ("SUBSET",): "SUBSET",
    ("DEFINE",): "DEFINE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """An expression with a name: a measure, or a variable's condition."""

    name: str
    expression: exp.Expr
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchClause:
    """What stands in the brackets of MATCH_RECOGNIZE. `within` bounds last minus first row.

    `skip_to` is the variable that `skip` names, `each_row` whether it is ALL ROWS PER MATCH.
    """

    partition: tuple[exp.Expr, ...]
    order: exp.Expr
    measures: tuple[Named, ...]
    skip: MatchSkip
    skip_to: str | None
    each_row: bool
    pattern: Pattern
    within: timedelta | None
    defines: tuple[Named, ...]
    at: int = field(compare=False)


def without_matches(script: Script, body: list[Token]) -> tuple[list[Token], list[MatchClause]]:
    """Return a query's tokens with a subquery for each clause, and the clauses.

    `FROM x MATCH_RECOGNIZE (…) m` becomes `FROM (SELECT __match_0 FROM x) m`.
    """
    clauses: list[MatchClause] = []
    while True:
        place = next((i for i, token in enumerate(body) if token.text.upper() == _WORD), None)
        if place is None:
            return body, clauses
        if place + 1 >= len(body) or body[place + 1].text != "(":
            raise script.refusal(f"{_WORD} without brackets", at=body[place].start, fix=FORM)
        end = _closing(script, body, place + 1)
        begin = _source_of(script, body, place)
        clauses.append(_clause(script, body[place], body[place + 2 : end]))
        like = body[place]
        made = [
            made_like(like, TokenType.L_PAREN, "("),
            made_like(like, TokenType.SELECT, "SELECT"),
            made_like(like, TokenType.VAR, f"{_PLACE}{len(clauses) - 1}"),
            made_like(like, TokenType.FROM, "FROM"),
        ]
        closing = made_like(body[end], TokenType.R_PAREN, ")")
        body = [*body[:begin], *made, *body[begin:place], closing, *body[end + 1 :]]


def clause_of(query: exp.Expr, clauses: Sequence[MatchClause]) -> MatchClause | None:
    """Return the clause that a subquery stands for; None for a subquery of the author's."""
    if not isinstance(query, exp.Select) or len(query.expressions) != 1:
        return None
    name = query.expressions[0].name
    number = name.removeprefix(_PLACE)
    return clauses[int(number)] if name.startswith(_PLACE) and number.isdigit() else None


def columns_of_match(clause: MatchClause, rows: Sequence[str] | None) -> list[str] | None:
    """Return the names that a clause gives, over rows with these columns; None if not known."""
    partition = [each.name for each in clause.partition]
    named = [*partition, *(each.name for each in clause.measures)]
    if not clause.each_row:
        return named
    known = {each.lower() for each in named}
    return None if rows is None else [*named, *(e for e in rows if e.lower() not in known)]


def refuse_further(script: Script, query: exp.Expr, clause: MatchClause) -> None:
    """Refuse what stands between FROM and the clause beside the one input that is matched."""
    given = [name for name, value in query.args.items() if value]
    if {*given} - {"expressions", "from_"}:
        raise script.refusal(
            f"{_WORD} reads one input, and no joins or elements behind it",
            at=clause.at,
            fix="Name the columns in a query of their own: FROM (SELECT x.key, line.n, "
            "x.occurred_at FROM STREAM x LATERAL VIEW explode(x.lines) t AS line) q "
            "MATCH_RECOGNIZE (…).",
        )


def _closing(script: Script, body: Sequence[Token], opening: int) -> int:
    place = closing(body, opening)
    if place is None:
        raise script.refusal("a bracket is not closed", at=body[opening].start, fix="Write ).")
    return place


def _source_of(script: Script, body: Sequence[Token], place: int) -> int:
    """Return where what is matched begins: after FROM or JOIN."""
    depth = 0
    for at in range(place - 1, -1, -1):
        kind = body[at].token_type
        depth += (kind is TokenType.R_PAREN) - (kind is TokenType.L_PAREN)
        if depth == 0 and kind in (TokenType.FROM, TokenType.JOIN):
            return at + 1
    raise script.refusal(f"{_WORD} follows what it reads", at=body[place].start, fix=FORM)


def _clause(script: Script, word: Token, tokens: Sequence[Token]) -> MatchClause:
    at = int(word.start)
    parts = _parts(script, at, tokens)
    each_row = _is_of_each_row(script, parts.get("ROWS", []))
    for needed in ("ORDER BY", "MEASURES", "PATTERN", "DEFINE"):
        if not parts.get(needed) and not (needed == "MEASURES" and each_row):
            raise script.refusal(f"{_WORD} without {needed}", at=at, fix=FORM)
    if "SUBSET" in parts:
        raise script.refusal(
            "SUBSET is not compiled",
            at=int(parts["SUBSET"][0].start) if parts["SUBSET"] else at,
            fix="Aggregate over each variable, and add them up: SUM(a.x) + SUM(b.x). Over all rows "
            "of a match it is SUM(x).",
        )
    pattern = parts["PATTERN"]
    if len(pattern) < 3 or pattern[0].text != "(" or pattern[-1].text != ")":
        raise script.refusal("a pattern stands in brackets", at=at, fix=PATTERN_FORM)
    (order,) = _split(parts["ORDER BY"])[:1]
    if len(_split(parts["ORDER BY"])) > 1:
        raise script.refusal(
            "rows are matched in the order of one time", at=int(order[0].start), fix=FORM
        )
    time = read_expression(script, _ascending(script, order))
    read = parse_pattern(script, pattern[1:-1])
    skip, skip_to = _skip(script, parts.get("AFTER", []), read)
    return MatchClause(
        partition=tuple(
            read_expression(script, each) for each in _split(parts.get("PARTITION BY", []))
        ),
        order=time,
        measures=tuple(_measure(script, each, time) for each in _split(parts.get("MEASURES", []))),
        skip=skip,
        skip_to=skip_to,
        each_row=each_row,
        pattern=read,
        within=_within(script, parts.get("WITHIN", [])),
        defines=tuple(_define(script, each) for each in _split(parts["DEFINE"])),
        at=at,
    )


def _parts(script: Script, at: int, tokens: Sequence[Token]) -> dict[str, list[Token]]:
    """Cut the clause where a part begins; each is returned without its first word."""
    parts: dict[str, list[Token]] = {}
    current, depth = "", 0
    for place, token in enumerate(tokens):
        start = _start(tokens, place) if depth == 0 else None
        depth += token.token_type in (TokenType.L_PAREN, TokenType.L_BRACE)
        depth -= token.token_type in (TokenType.R_PAREN, TokenType.R_BRACE)
        if start is not None:
            if start in parts:
                raise script.refusal(f"{start} stands there twice", at=int(token.start), fix=FORM)
            current, parts[start] = start, []
            if start not in ("ROWS", "AFTER"):
                continue
        if not current:
            raise script.refusal(f"{token.text!r} begins no part", at=int(token.start), fix=FORM)
        parts[current].append(token)
    return parts


def _start(tokens: Sequence[Token], place: int) -> str | None:
    for words, part in _STARTS.items():
        here = tuple(token.text.upper() for token in tokens[place : place + len(words)])
        if here == words:
            return part
    return None


def _split(tokens: Sequence[Token]) -> list[list[Token]]:
    return [each for each in between_commas(tokens) if each]


def _text(tokens: Sequence[Token]) -> str:
    return " ".join(token.text.upper() for token in tokens)


def _is_of_each_row(script: Script, tokens: Sequence[Token]) -> bool:
    """Say whether the rows of a match are results. Patterns that fit no row are refused."""
    said = _text(tokens)
    known = ("", "ONE ROW PER MATCH", *(f"{_EACH_ROW}{more}" for more in _OF_NO_ROWS))
    if said not in known:
        raise script.refusal(
            f"{said} is not compiled",
            at=int(tokens[0].start),
            fix="Write ONE ROW PER MATCH, or ALL ROWS PER MATCH.",
        )
    return said.startswith(_EACH_ROW)


def _ascending(script: Script, tokens: list[Token]) -> list[Token]:
    if tokens[-1].text.upper() == "DESC":
        raise script.refusal(
            "rows are matched from the first to the last",
            at=int(tokens[-1].start),
            fix="Leave DESC out.",
        )
    return tokens[:-1] if tokens[-1].text.upper() == "ASC" else tokens


def _measure(script: Script, tokens: list[Token], time: exp.Expr) -> Named:
    at = int(tokens[0].start)
    if len(tokens) < 3 or tokens[-2].token_type is not TokenType.ALIAS:
        raise script.refusal("a measure without a name", at=at, fix="Name it: LAST(A.x) AS last_x.")
    value = read_expression(script, tokens[:-2], time=time, final=True)
    return Named(name=str(tokens[-1].text), expression=value, at=at)


def _define(script: Script, tokens: list[Token]) -> Named:
    at = int(tokens[0].start)
    if len(tokens) < 3 or tokens[1].token_type is not TokenType.ALIAS:
        raise script.refusal(
            "a variable without a condition", at=at, fix="Write DEFINE A AS condition, …."
        )
    return Named(
        name=str(tokens[0].text).upper(), expression=read_expression(script, tokens[2:]), at=at
    )


def _skip(
    script: Script, tokens: Sequence[Token], pattern: Pattern
) -> tuple[MatchSkip, str | None]:
    """Read where the search goes on after a match."""
    said = _text(tokens).removeprefix("AFTER MATCH SKIP ")
    known = {each.upper(): each for each in MatchSkip} | {"": MatchSkip.PAST_LAST_ROW}
    if said in known and known[said] not in _NAMING:
        return known[said], None
    words = said.split()
    to = MatchSkip.TO_FIRST if words[1:2] == ["FIRST"] else MatchSkip.TO_LAST
    name = words[-1]
    if words[:1] != ["TO"] or len(words) != (3 if words[1:2] in (["FIRST"], ["LAST"]) else 2):
        reason = f"{_text(tokens)} is not compiled"
    elif not always_has(pattern, name):
        reason = f"SKIP {said}: not every match has a {name}{nearest(name, variables(pattern))}"
    else:
        return to, name
    raise script.refusal(
        reason,
        at=int(tokens[0].start),
        fix="Write AFTER MATCH SKIP PAST LAST ROW, TO NEXT ROW, or TO [FIRST | LAST] a variable "
        "that each match has.",
    )


def _within(script: Script, tokens: Sequence[Token]) -> timedelta | None:
    if not tokens:
        return None
    node = read_expression(script, tokens)
    length = duration_of(node)
    if not length:
        raise script.refusal(
            "WITHIN takes a length of time",
            at=offset_of(node, int(tokens[0].start)),
            fix=f"{DURATION[0].upper()}{DURATION[1:]}: WITHIN INTERVAL 1 HOUR.",
        )
    return length


def check_variables(script: Script, clause: MatchClause, alias: str) -> None:
    """Refuse names in a clause over `alias` that are unknown, or name two things."""
    known = frozenset(variables(clause.pattern))
    if alias.upper() in known:
        raise script.refusal(
            f"{alias} is what is read, and a variable of the pattern",
            at=clause.at,
            fix="Give what is read another alias.",
        )
    seen = set[str]()
    for each in clause.defines:
        if each.name not in known:
            raise script.refusal(
                f"{each.name} is not in the pattern{nearest(each.name, known)}",
                at=each.at,
                fix="Define the variables of PATTERN.",
            )
        if each.name in seen:
            raise script.refusal(
                f"{each.name} is defined twice", at=each.at, fix="Join the conditions by AND."
            )
        seen.add(each.name)
    named = [name.name for name in clause.partition if isinstance(name, exp.Column)]
    for each in clause.measures:
        if each.name.lower() in {name.lower() for name in named}:
            raise script.refusal(
                f"two columns are named {each.name}", at=each.at, fix="Name one of them anew."
            )
        named.append(each.name)
