"""Lengths of time as people write them: `10 minutes`, `1 hour 30 minutes`, `INTERVAL '1' HOUR`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import NamedTuple

from sqlglot import exp

FORM = "write a length of fixed size, as '10 minutes' or '1 hour 30 minutes'"

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "m": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"\s*(\d+)\s*([a-z]+)\s*", re.IGNORECASE)


class CalendarLength(NamedTuple):
    """A length in days, or in months where `days` is None."""

    days: int | None
    months: int


_CALENDAR = re.compile(r"([+-]?\d+) (day|week|month|year)s?", re.IGNORECASE)
_CALENDAR_UNITS = {
    "day": CalendarLength(1, 0),
    "week": CalendarLength(7, 0),
    "month": CalendarLength(None, 1),
    "year": CalendarLength(None, 12),
}


def parse_duration(text: str) -> timedelta | None:
    """Read a duration; None when it is none, has no fixed length (months, years) or is too long."""
    total_us, end = 0, 0
    while end < len(text):
        part = _PART.match(text, end)
        if part is None:
            return None
        unit = part[2].lower()
        unit_us = _UNITS_US.get(unit) or _UNITS_US.get(unit.removesuffix("s"))
        if unit_us is None:
            return None
        total_us += int(part[1]) * unit_us
        end = part.end()
    try:
        return timedelta(microseconds=total_us) if end else None
    except OverflowError:
        return None


def duration_of(node: exp.Expr) -> timedelta | None:
    """Read a duration from a literal or an INTERVAL in parsed SQL; None for anything else."""
    if isinstance(node, exp.Literal) and node.is_string:
        return parse_duration(node.name)
    if isinstance(node, exp.Interval) and isinstance(node.this, exp.Literal):
        unit = node.args.get("unit")
        return parse_duration(f"{node.this.name} {unit.name if unit is not None else ''}")
    if isinstance(node, exp.Paren) and isinstance(node.this, exp.Add | exp.Interval):
        return duration_of(node.this)
    if isinstance(node, exp.Add):
        sides = (node.this, node.expression)
        parts = [None if isinstance(each, exp.Literal) else duration_of(each) for each in sides]
        return sum((part for part in parts if part), timedelta()) if None not in parts else None
    return None


def signed_duration_of(node: exp.Expr) -> timedelta | None:
    """Read a duration that may be one before: `INTERVAL '-5' MINUTES`, `'-5 minutes'`."""
    if isinstance(node, exp.Paren | exp.Neg):
        length = signed_duration_of(node.this)
        return -length if length is not None and isinstance(node, exp.Neg) else length
    quoted = node.this if isinstance(node, exp.Interval) else node
    if not isinstance(quoted, exp.Literal) or not quoted.name.strip().startswith("-"):
        return duration_of(node)
    text = exp.Literal.string(quoted.name.strip().removeprefix("-"))
    before = node.copy()
    if isinstance(before, exp.Interval):
        before.set("this", text)
    length = duration_of(before if isinstance(before, exp.Interval) else text)
    return None if length is None else -length


def calendar_length(node: exp.Expr) -> CalendarLength | None:
    """Read a length of whole days, weeks, months or years from an INTERVAL; None for another."""
    if not isinstance(node, exp.Interval) or not isinstance(node.this, exp.Literal):
        return None
    unit = node.args.get("unit")
    text = f"{node.this.name} {unit.name if unit is not None else ''}".strip()
    part = _CALENDAR.fullmatch(text)
    if part is None or len(part[1]) > 6:
        return None
    count, size = int(part[1]), _CALENDAR_UNITS[part[2].lower()]
    return CalendarLength(None if size.days is None else count * size.days, count * size.months)


def in_us(length: timedelta) -> int:
    """Return a length in whole microseconds, without rounding through a float."""
    return length // timedelta(microseconds=1)


def in_words_us(length_us: int) -> str:
    """Return a length in microseconds as people say it."""
    return in_words(timedelta(microseconds=length_us))


def in_words(length: timedelta) -> str:
    """Return a length as people say it: the largest units first."""
    left, words = in_us(length), []
    for unit in ("day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, left = divmod(left, _UNITS_US[unit])
        if count:
            words.append(f"{count} {unit}{'s' if count > 1 else ''}")
    return " ".join(words) or "0 seconds"
