"""Words of other dialects that the parser takes, and that are not what they say, or nothing, here.

Each is refused at its place with a form that works.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, exp

from projections.sql.values.expressions import render
from projections.sql.words.places import Script, offset_of

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


def refuse_words(script: Script, tokens: Sequence[Token]) -> None:
    """Raise `InvalidRequest` at words that stand for nothing here."""
    words = [token.text.upper() for token in tokens]
    for place, token in enumerate(tokens):
        for known, (message, fix) in _WORDS.items():
            if tuple(words[place : place + len(known)]) == known:
                raise script.refusal(message, at=int(token.start), fix=fix)


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
            "WITHIN GROUP is of PERCENTILE_CONT, in ascending order of PERCENTILE_DISC, MODE",
            "Write PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY x), or LISTAGG(x, ', ') WITHIN "
            "GROUP (ORDER BY y).",
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
