"""Words of other dialects that the parser takes, and that are not what they say, or nothing, here.

Each is refused at its place with a form that works.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, TokenType, exp

from projections.sql.values.expressions import render
from projections.sql.words.places import Script, offset_of
from projections.sql.words.tokens import BEHIND_FROM

_WORDS = {
    ("AT", "TIME", "ZONE"): (
        "AT TIME ZONE is not read",
        "Write from_utc_timestamp(t, 'Europe/Berlin') for what clocks there show at a moment, "
        "to_utc_timestamp(t, 'Europe/Berlin') for the moment at which they show t.",
    ),
    ("EMIT", "FINAL"): (
        "EMIT FINAL is not read",
        "Write it as an option of the projection: WITH (emit = 'final').",
    ),
}
"""AT TIME ZONE turns to the zone what has none, and from it what has one; Spark has it not."""
_FIELDS = (
    *("YEAR", "Y", "YEARS", "YR", "YRS", "YEAROFWEEK", "QUARTER", "QTR"),
    *("MONTH", "MON", "MONS", "MONTHS", "WEEK", "W", "WEEKS", "DAY", "D", "DAYS"),
    *("DAYOFWEEK", "DOW", "DAYOFWEEK_ISO", "DOW_ISO", "DOY", "HOUR", "H", "HOURS", "HR", "HRS"),
    *("MINUTE", "M", "MIN", "MINS", "MINUTES", "SECOND", "S", "SEC", "SECONDS", "SECS"),
)
"""What Spark takes from a time."""
_ADDING = (TokenType.RIGHT, TokenType.FULL)
"""Joins that have rows of their right side which meet none."""


def refuse_words(script: Script, tokens: Sequence[Token]) -> None:
    """Raise `InvalidRequest` at words that stand for nothing here."""
    words = [token.text.upper() for token in tokens]
    for place, token in enumerate(tokens):
        for known, (message, fix) in _WORDS.items():
            if tuple(words[place : place + len(known)]) == known:
                raise script.refusal(message, at=int(token.start), fix=fix)
    _refuse_joins_behind_commas(script, tokens)


def _refuse_joins_behind_commas(script: Script, tokens: Sequence[Token]) -> None:
    """Refuse RIGHT and FULL JOIN behind a comma in FROM, which the parser takes for CROSS JOIN."""
    behind = [False]
    listing = [False]
    kinds = [each.token_type for each in tokens]
    for token, following in zip(tokens, [*kinds[1:], None], strict=True):
        kind = token.token_type
        if kind is TokenType.L_PAREN:
            behind.append(False)
            listing.append(False)
        elif kind is TokenType.R_PAREN and len(behind) > 1:
            behind.pop()
            listing.pop()
        elif kind is TokenType.FROM or kind in BEHIND_FROM:
            listing[-1], behind[-1] = kind is TokenType.FROM, False
        elif kind is TokenType.COMMA:
            behind[-1] = listing[-1]
        elif behind[-1] and kind in _ADDING and following in (TokenType.JOIN, TokenType.OUTER):
            raise script.refusal(
                f"{token.text.upper()} JOIN behind a comma joins what stands behind it alone",
                at=int(token.start),
                fix="Write that first: FROM b RIGHT JOIN c ON c.k = b.k CROSS JOIN a. To join "
                "what is before the comma, too, write CROSS JOIN in its place.",
            )


def refuse_forms(script: Script, query: exp.Expr) -> exp.Expr:
    """Return a query as it is. Raises `InvalidRequest` at a form that Spark has not."""
    for found in query.walk():
        said = _said(found)
        if said is not None:
            raise script.refusal(said[0], at=offset_of(found, offset_of(query, 0)), fix=said[1])
    return query


def _said(found: exp.Expr) -> tuple[str, str] | None:
    if isinstance(found, exp.Any | exp.All) and isinstance(found.parent, exp.Predicate):
        return (
            f"{found.key.upper()} behind a comparison is not compiled",
            "It compares with a query of one column, x > ALL (SELECT y FROM …), with an array, or "
            "with values that are written out: x > ANY (1, 2).",
        )
    if isinstance(found, exp.Pivot) and found.args.get("unpivot"):
        return (
            "UNPIVOT is of one list of columns, each with as many as values are named",
            "Write FROM t UNPIVOT (amount FOR region IN (north, south AS 's')), or UNPIVOT ((a, b) "
            "FOR pair IN ((a1, b1) AS first, (a2, b2) AS second)).",
        )
    if isinstance(found, exp.Cast) and (found.args.get("format") or found.args.get("default")):
        return (
            "CAST takes a value and a type alone",
            "Read a format by to_timestamp(x, 'yyyy-MM-dd') or to_date, write one by date_format; "
            "TRY_CAST is NULL for what it cannot read.",
        )
    if isinstance(found, exp.WithinGroup):
        return (
            "WITHIN GROUP is of PERCENTILE_CONT, PERCENTILE_DISC, MODE",
            "Write PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY x), or LISTAGG(x, ', ') WITHIN "
            "GROUP (ORDER BY y).",
        )
    if isinstance(found, exp.SimilarTo):
        return (
            "SIMILAR TO takes a pattern that is written out, of % _ | * + ? {n} ( ) and [a-z]",
            "Without backslashes and ESCAPE: x SIMILAR TO 'a(b|c)%'. Others are regular "
            "expressions: x RLIKE '^a\\\\d+$'.",
        )
    if isinstance(found, exp.Between) and found.args.get("symmetric"):
        return (
            "BETWEEN SYMMETRIC is not read",
            "Say which is the less: x BETWEEN LEAST(a, b) AND GREATEST(a, b).",
        )
    return _of_field(found)


def _of_field(found: exp.Expr) -> tuple[str, str] | None:
    if isinstance(found, exp.Extract):
        field = found.name
    elif isinstance(found, exp.Anonymous) and found.name.lower() in ("date_part", "datepart"):
        first = next(iter(found.expressions), None)
        field = first.name if isinstance(first, exp.Literal) and first.is_string else ""
    else:
        return None
    if not field or field.upper() in _FIELDS:
        return None
    return (
        f"{render(found)}: Spark takes no {field.upper()} from a time",
        "There are YEAR, QUARTER, MONTH, WEEK, DAY, DOW, DOW_ISO, DOY, HOUR, MINUTE and SECOND; "
        "seconds since 1970 are unix_seconds(t).",
    )
