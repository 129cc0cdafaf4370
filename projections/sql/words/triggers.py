"""`emit = 'every d'` and `'on count n'`: how often a projection's table is written at most."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from projections.sql.words.durations import in_words, parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When a table may be written again: so long after the last time, or after so many input rows.

    One of both. What is written is the whole state at an epoch's end, as without a trigger.
    """

    every: timedelta | None = None
    count: int | None = None

    @property
    def words(self) -> str:
        """Describe it for people."""
        if self.every is not None:
            return f"every {in_words(self.every)}"
        return f"on count {self.count}"

    @property
    def note(self) -> str:
        """Say in a plan what it means."""
        if self.every is not None:
            when = f"at most once in {in_words(self.every)}, with everything up to an epoch's end"
        else:
            when = f"once {self.count} input rows came since the last time, or more"
        return f"emit {self.words}: the table is written {when}; what reads it is written with it"


def trigger_of(emit: str) -> Trigger | None:
    """Read a trigger from an emit policy; None for a policy that is none.

    Raises `ValueError` where it has no length of time.
    """
    if emit.startswith("on count "):
        return Trigger(count=int(emit.removeprefix("on count ")))
    if not emit.startswith("every "):
        return None
    length = parse_duration(emit.removeprefix("every "))
    if not length:
        raise ValueError(emit)
    return Trigger(every=length)
