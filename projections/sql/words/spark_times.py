"""Days and moments as text, and text as them, as Spark's casts read and write them.

The calendar is proleptic, moments are in UTC. By the behaviour of Spark 4.2's `SparkDateTimeUtils`.
"""

from __future__ import annotations

import re

from kernel.errors import BeyondThisProcess

DAY_US = 86_400_000_000
CONTROLS = "".join(map(chr, (*range(0x21), 0x7F)))
"""What Spark cuts off both ends of a text before it reads a number, a day or a truth value."""
_DAY = re.compile(
    r"(?P<year>[+-]?[0-9]{4,7})(-(?P<month>[0-9]{1,2})(-(?P<day>[0-9]{1,2})([ T].*)?)?)?", re.DOTALL
)
_MOMENT = re.compile(
    r"(?P<year>[+-]?[0-9]{4,6})(-(?P<month>[0-9]{1,2})(-(?P<day>[0-9]{1,2})"
    r"([ T](?P<hour>[0-9]{1,2})(:(?P<minute>[0-9]{1,2})(:(?P<second>[0-9]{1,2})"
    r"(\.(?P<fraction>[0-9]*))?(?P<zone>[^0-9.].*)?)?)?)?)?)?",
    re.DOTALL,
)
_OFFSET = re.compile(
    r"(UTC|GMT|UT)?((?P<sign>[+-])((?P<hour>[0-9]{1,2})|(?P<hours>[0-9]{1,2}):(?P<minute>[0-9]{1,2})"
    r"(:(?P<second>[0-9]{2}))?|(?P<joined>[0-9]{4}([0-9]{2})?)))?"
)
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+")
_MOST_OFFSET_S = 18 * 3600


def days_from(year: int, month: int, day: int) -> int:
    """Return days since 1970. Raises `ValueError` where there is no such day."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not 1 <= month <= 12 or not 1 <= day <= lengths[month - 1]:
        raise ValueError("there is no such day")
    # Years that begin in March have their odd day at the end.
    years = year - (month <= 2)
    era, of_era = divmod(years, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def _civil(days: int) -> tuple[int, int, int]:
    era, of_era = divmod(days + 719_468, 146_097)
    years = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * years + years // 4 - years // 100)
    month_from_march = (5 * of_year + 2) // 153
    day = of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return years + era * 400 + (month <= 2), month, day


def day_text(days: int) -> str:
    """Write a day: `2024-02-29`, years of other than four digits with their sign."""
    year, month, day = _civil(days)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def moment_text(us: int) -> str:
    """Write a moment: `2024-02-29 12:30:00.5`, without zeros at the end of the fraction."""
    days, of_day = divmod(us, DAY_US)
    seconds, fraction = divmod(of_day, 1_000_000)
    time = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    digits = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{day_text(days)} {time}{digits}"


def cast_day(text: str) -> int:
    """Read a day, with or without a time behind it. Raises `ValueError`."""
    found = _DAY.fullmatch(text.strip(CONTROLS))
    if found is None:
        raise ValueError(f"{text!r} is no DATE")
    year, month, day = (int(found[part] or 1) for part in ("year", "month", "day"))
    try:
        return days_from(year, month, day)
    except ValueError as error:
        raise ValueError(f"{text!r} is no DATE: {error}") from error


def cast_moment(text: str) -> int:
    """Read a moment in microseconds since 1970. Raises `ValueError`, `BeyondThisProcess`."""
    found = _MOMENT.fullmatch(text.strip(CONTROLS))
    if found is None:
        raise ValueError(f"{text!r} is no TIMESTAMP")
    year, month, day = (int(found[part] or 1) for part in ("year", "month", "day"))
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{text!r} is no TIMESTAMP: there is no such time")
    try:
        days = days_from(year, month, day)
    except ValueError as error:
        raise ValueError(f"{text!r} is no TIMESTAMP: {error}") from error
    us = int((found["fraction"] or "")[:6].ljust(6, "0"))
    seconds = hour * 3600 + minute * 60 + second - _offset_s(found["zone"], text)
    return days * DAY_US + seconds * 1_000_000 + us


def _offset_s(zone: str | None, text: str) -> int:
    name = (zone or "Z").strip(CONTROLS)
    if name == "Z":
        return 0
    found = _OFFSET.fullmatch(name)
    if found is None and not _REGION.fullmatch(name):
        raise ValueError(f"{text!r} is no TIMESTAMP: there is no such zone")
    if found is None:
        raise BeyondThisProcess(f"only Spark reads the zone of {text!r}")
    if found["sign"] is None:
        return 0
    joined = found["joined"] or ""
    hour = int(found["hour"] or found["hours"] or joined[:2])
    minute = int(found["minute"] or joined[2:4] or 0)
    second = int(found["second"] or joined[4:] or 0)
    total = hour * 3600 + minute * 60 + second
    if minute > 59 or second > 59 or total > _MOST_OFFSET_S:
        raise ValueError(f"{text!r} is no TIMESTAMP: there is no such offset")
    return -total if found["sign"] == "-" else total
