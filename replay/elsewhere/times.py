"""How times of events move in a replay, and how people write spans, rates and speeds.

One rule: all times of all events move by the same span, so that whatever lay between two of them
still does. How quickly a replay sends changes no time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from kernel.errors import InvalidRequest

_UNITS = {
    "ms": "milliseconds",
    "s": "seconds",
    "m": "minutes",
    "h": "hours",
    "d": "days",
    "w": "weeks",
}
_NUMBER = r"\d{1,9}(?:\.\d{1,6})?"
_SPAN = re.compile(rf"([+-]?)({_NUMBER})({'|'.join(_UNITS)})")
_RATE = re.compile(rf"({_NUMBER})(?:/s)?")
_SPEED = re.compile(rf"({_NUMBER})x?")
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Shift:
    """The span by which all times move."""

    by: timedelta = timedelta(0)

    def moved(self, moment: datetime) -> datetime:
        """Return where a time lies in the replay, in UTC."""
        return moment.astimezone(UTC) + self.by

    def refuse_beyond(self, least: datetime, greatest: datetime) -> None:
        """Raise `InvalidRequest` where a time would leave the years 1 to 9999."""
        if FIRST - least.astimezone(UTC) > self.by or self.by > LAST - greatest.astimezone(UTC):
            raise InvalidRequest(
                f"times from {least.isoformat()} to {greatest.isoformat()} would leave the years "
                f"1 to 9999, moved by {self.by}",
                remedy="Give a smaller --shift, a nearer --starting, or a narrower range.",
            )


def span_of(text: str, option: str) -> timedelta:
    """Read a span that may have a sign. Raises `InvalidRequest`."""
    read = _SPAN.fullmatch(text)
    if read is None:
        raise InvalidRequest(
            f"{option} {text!r} is no span", remedy=f"As {option} +3d, -90m, 250ms or 1.5h."
        )
    try:
        span = timedelta(**{_UNITS[read[3]]: float(read[2])})
    except OverflowError:
        raise InvalidRequest(
            f"{option} {text} is longer than time goes", remedy=f"As {option} +3d."
        ) from None
    return -span if read[1] == "-" else span


def rate_of(text: str) -> float:
    """Read events a second, as `500/s`. Raises `InvalidRequest`."""
    return _positive(_RATE, text, "--rate", "As --rate 500/s: events a second, above 0.")


def speed_of(text: str) -> float:
    """Read how many times as quick as it was, as `10x`. Raises `InvalidRequest`."""
    return _positive(_SPEED, text, "--speed", "As --speed 10x: ten times as quick, above 0.")


def _positive(pattern: re.Pattern[str], text: str, option: str, remedy: str) -> float:
    read = pattern.fullmatch(text)
    number = 0.0 if read is None else float(read[1])
    if number <= 0:
        raise InvalidRequest(f"{option} {text!r} is not a number above zero", remedy=remedy)
    return number
