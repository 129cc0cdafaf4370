"""Dates and timestamps of PostgreSQL outside the years 1 to 9999, in its text and in numbers.

The lake's dates and timestamps hold those years, which every engine and Python read. Others, the
infinities among them, are the first or last moment there, and their text is in `_exact`.
The calendar is PostgreSQL's: proleptic Gregorian, year 0 is 1 BC.
"""

from __future__ import annotations

import re

DATE_MIN, DATE_MAX = -719162, 2932896
MICROS_MIN, MICROS_MAX = -62135596800000000, 253402300799999999

_DAY_MICROS = 86_400_000_000
_TEXT = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?"
    r"(?:([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?)?( BC)?"
)


def date_of(text: str) -> tuple[int, bool]:
    """Return days since 1970, saturated, and whether they are the text's own.

    Raises `ValueError` for what is no date.
    """
    if text.lstrip("-") == "infinity":
        return (DATE_MIN if text.startswith("-") else DATE_MAX), False
    days, _ = _parsed(text)
    kept = min(max(days, DATE_MIN), DATE_MAX)
    return kept, kept == days


def micros_of(text: str) -> tuple[int, bool]:
    """Return microseconds since 1970 in UTC, saturated, and whether they are the text's own.

    Raises `ValueError` for what is no timestamp.
    """
    if text.lstrip("-") == "infinity":
        return (MICROS_MIN if text.startswith("-") else MICROS_MAX), False
    days, micros = _parsed(text)
    total = days * _DAY_MICROS + micros
    kept = min(max(total, MICROS_MIN), MICROS_MAX)
    return kept, kept == total


def date_text(days: int) -> str:
    """Print days since 1970 as PostgreSQL prints a date: `0044-03-15 BC`."""
    year, month, day = _civil(days)
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}{era}"


def timestamp_text(micros: int, *, zoned: bool) -> str:
    """Print microseconds since 1970 (UTC) as PostgreSQL prints a timestamp in UTC."""
    days, rest = divmod(micros, _DAY_MICROS)
    date, _, era = date_text(days).partition(" ")
    return f"{date} {time_text(rest)}{'+00' if zoned else ''}{' BC' if era else ''}"


def time_text(micros: int) -> str:
    """Print microseconds of a day as PostgreSQL does: `12:34:56.789`, `24:00:00`."""
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02d}:{minute:02d}:{second:02d}"
    return text if fraction == 0 else f"{text}.{fraction:06d}".rstrip("0")


def _parsed(text: str) -> tuple[int, int]:
    """Return days since 1970, and microseconds that are left, in UTC."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError(f"not a date or timestamp: {text!r}")
    year, month, day, hour, minute, second, fraction, sign, *offset, era = found.groups()
    clock = (int(hour or 0) * 60 + int(minute or 0)) * 60 + int(second or 0)
    zone = sum(int(part or 0) * unit for part, unit in zip(offset, (3600, 60, 1), strict=True))
    clock -= -zone if sign == "-" else zone
    days = _days(1 - int(year) if era else int(year), int(month), int(day))
    return days, clock * 1_000_000 + int((fraction or "0").ljust(6, "0"))


def _days(year: int, month: int, day: int) -> int:
    """Count days since 1970; years begin in March, 400 of them have 146,097 days."""
    year -= month <= 2
    cycle, year_of_cycle = divmod(year, 400)
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    day_of_cycle = year_of_cycle * 365 + year_of_cycle // 4 - year_of_cycle // 100 + day_of_year
    return cycle * 146_097 + day_of_cycle - 719_468


def _civil(days: int) -> tuple[int, int, int]:
    cycle, day_of_cycle = divmod(days + 719_468, 146_097)
    year = (
        day_of_cycle - day_of_cycle // 1460 + day_of_cycle // 36524 - day_of_cycle // 146_096
    ) // 365
    day_of_year = day_of_cycle - (365 * year + year // 4 - year // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + (3 if shifted < 10 else -9)
    return year + cycle * 400 + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1
