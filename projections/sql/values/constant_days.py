"""Days that are written as another day and a length: `DATE '1998-12-01' - INTERVAL '90' DAY`.

They are the same in every row, and never an error in one: what compares with them stays where it
is written.
"""

from __future__ import annotations

import calendar
import re
from datetime import date, timedelta

from sqlglot import exp

from projections.sql.values.expressions import unwrapped
from projections.sql.words.durations import calendar_length

_WRITTEN = re.compile(r"\d{4}-\d{2}-\d{2}")


def with_days(query: exp.Expr) -> exp.Expr:
    """Return a query in which such days are written out."""
    # What is inside comes first: a day may have several lengths behind it.
    for node in reversed([*query.find_all(exp.Add, exp.Sub)]):
        made = _day(node)
        if made is not None:
            node.replace(made)
    return query


def _day(node: exp.Expr) -> exp.Expr | None:
    length = calendar_length(node.expression)
    day = unwrapped(node.this) if length is not None else None
    written = day.this if isinstance(day, exp.Cast) and day.is_type("DATE") else None
    if length is None or day is None or not isinstance(written, exp.Literal):
        return None
    if not _WRITTEN.fullmatch(written.name):
        return None  # Spark reads more forms.
    sign = -1 if isinstance(node, exp.Sub) else 1
    try:
        first = date.fromisoformat(written.name)
        if length.days is not None:
            moved = first + timedelta(days=sign * length.days)
        else:
            moved = _months_later(first, sign * length.months)
    except (ValueError, OverflowError):
        return None
    result = day.copy()
    literal = exp.Literal.string(moved.isoformat())
    literal.meta.update(written.meta)
    result.set("this", literal)
    return result


def _months_later(day: date, months: int) -> date:
    """Return the same day of another month, or the last one that it has."""
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return day.replace(year=year, month=month + 1, day=min(day.day, last))
