"""Time as a port, so that tests decide what the time is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from kernel.errors import InvalidRequest

UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def micros(moment: datetime) -> int:
    """Return microseconds since 1970 UTC, exactly: a number that every engine compares."""
    return (moment - UNIX_EPOCH) // timedelta(microseconds=1)


def read_moment(text: str) -> datetime:
    """Read a time of ISO 8601, its `z` small or not, as RFC 3339 has it. Raises `ValueError`."""
    return datetime.fromisoformat(f"{text[:-1]}Z" if text.endswith("z") else text)


def moment_of(text: str | None) -> datetime | None:
    """Read a time as users write it; without a zone it is UTC. Raises `InvalidRequest`."""
    if text is None:
        return None
    try:
        moment = read_moment(text)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is not a time", remedy="Write it as 2013-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest(
            f"{text!r} is not within the years 1 to 9999 in UTC", remedy="Write a nearer time."
        ) from None
    return moment


class Clock(Protocol):
    """Says what time it is, in UTC, always timezone-aware."""

    def now(self) -> datetime:
        """Return the present moment."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the present moment."""
        return datetime.now(UTC)


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, at: datetime) -> None:
        self._now = at

    def now(self) -> datetime:
        """Return the moment that was last set."""
        return self._now

    def set(self, at: datetime) -> None:
        """Move the clock, forwards or backwards."""
        self._now = at
