"""The options of `WITH (…)`: which exist where, how their values are read, what is unknown."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta

from projections.sql.words.collected_refusals import refuse
from projections.sql.words.durations import FORM, parse_duration
from projections.sql.words.places import Script, near_of, nearest
from projections.sql.words.tokens import TokenCursor
from projections.sql.words.triggers import trigger_of

TOPIC_OPTIONS = (
    "topic",
    "format",
    "event_time",
    "lateness",
    "closed_after",
    "idle_timeout",
    "key",
    "sequence",
    "deleted",
    "identity",
)
TABLE_OPTIONS = ("key", "event_time", "lateness", "closed_after", "idle_timeout")
EVENT_OPTIONS = ("lateness", "closed_after", "idle_timeout")
PROJECTION_OPTIONS = ("key", "freshness", "emit", "sink", "sink_partitions")
_POLICIES = {
    "changes": "'changes'",
    "final": "'final'",
    "every": "'every 5 seconds'",
    "on": "'on count 10'",
    "when": "'when <expression>'",
}
"""What an emit policy begins with, and each in full."""
FORMATS = ("avro", "json", "csv")

_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,126}")
_EMIT = re.compile(r"changes|final|every .+|on count [1-9]\d*|when .+", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionValue:
    """One value as written, and where."""

    text: str
    at: int


def value_of(
    cursor: TokenCursor, name: str, at: int, given: Collection[str], *, form: str
) -> OptionValue:
    """Read what stands behind an option's name, which stood `at` a place: `= value`.

    Raises `InvalidRequest` where the option is among the `given` ones, and for no value; `form`
    says how values are written there.
    """
    if name in given:
        refuse(
            cursor.script.refusal(
                f"option {name} is given twice", at=at, fix="Give each option once."
            ),
            guessed=False,
        )
    cursor.expect("=")
    value_at = cursor.at
    text = cursor.string()
    return OptionValue(text=cursor.name(form) if text is None else text, at=value_at)


class StatementOptions:
    """The options of one statement. Every reader raises `InvalidRequest` at the value's place."""

    def __init__(
        self,
        script: Script,
        given: Mapping[str, tuple[int, OptionValue]],
        known: tuple[str, ...],
        *,
        of: str,
    ) -> None:
        self._script = script
        for name, (at, _) in given.items():
            if name not in known:
                refuse(
                    script.refusal(
                        f"{of} has no option {name}{nearest(name, known)}",
                        at=at,
                        fix=f"Options of {of}: {', '.join(known)}.",
                    ),
                    guessed=False,
                )
        # Where errors are collected, a wrong name is read as the nearest: a key is not missed then.
        meant = {name: name if name in known else near_of(name, known) for name in given}
        self._values = {
            right: value
            for name, (_, value) in given.items()
            if (right := meant[name]) is not None and (right == name or right not in given)
        }

    def place(self, name: str, default: int) -> int:
        """Return where the value of an option stands."""
        return self._values[name].at if name in self._values else default

    def text(self, name: str) -> str | None:
        """Return an option as written, without its quotes."""
        value = self._values.get(name)
        return None if value is None else value.text

    def duration(self, name: str) -> timedelta | None:
        """Return an option as a length of time."""
        value = self._values.get(name)
        if value is None:
            return None
        length = parse_duration(value.text)
        if length is None:
            refuse(
                self._script.refusal(
                    f"{name} = '{value.text}' is no duration",
                    at=value.at,
                    fix=f"{FORM[0].upper()}{FORM[1:]}; months and years have no fixed length.",
                ),
                guessed=False,
            )
        return length

    def closed_after(self) -> timedelta | None:
        """Return how late a row may be and still correct results; not less than `lateness`."""
        closed, lateness = self.duration("closed_after"), self.duration("lateness")
        if closed is not None and lateness is not None and closed < lateness:
            value = self._values["closed_after"]
            refuse(
                self._script.refusal(
                    f"closed_after = '{value.text}' is less than the lateness",
                    at=value.at,
                    fix="Rows that are in time correct results: write closed_after as long as the "
                    "lateness, or longer.",
                ),
                guessed=False,
            )
        return closed

    def columns(self, name: str) -> tuple[str, ...]:
        """Return an option as a list of column names, `'a, b'`; empty when it is absent."""
        value = self._values.get(name)
        if value is None:
            return ()
        names = tuple(part.strip() for part in value.text.split(","))
        for column in names:
            if not _COLUMN.fullmatch(column):
                raise self._script.refusal(
                    f"{name} = '{value.text}': {column!r} is no column name",
                    at=value.at,
                    fix=f"Name columns and separate them by commas: {name} = 'a, b'.",
                )
        if len({column.lower() for column in names}) < len(names):
            raise self._script.refusal(
                f"{name} = '{value.text}' names a column twice",
                at=value.at,
                fix="Name each column once.",
            )
        return names

    def column(self, name: str) -> str | None:
        """Return an option as one column name."""
        names = self.columns(name)
        if len(names) > 1:
            raise self._script.refusal(
                f"{name} takes one column, found {len(names)}",
                at=self._values[name].at,
                fix=f"Write {name} = {names[0]}.",
            )
        return names[0] if names else None

    def emit(self) -> str:
        """Return the emit policy in lower case; `changes` when it is absent."""
        value = self._values.get("emit")
        if value is None:
            return "changes"
        if not _EMIT.fullmatch(value.text.strip()):
            first = value.text.partition(" ")[0]
            near = near_of(first, _POLICIES)
            hint = f"; did you mean {_POLICIES[near]}?" if near is not None else ""
            refuse(
                self._script.refusal(
                    f"emit = '{value.text}' is no policy{hint}",
                    at=value.at,
                    fix="Policies: 'changes', 'final', 'every 5 seconds', 'on count 10', "
                    "'when <expression>'.",
                )
            )
            return "changes"
        words = " ".join(value.text.split())
        if words.lower().startswith("when "):
            return words
        try:
            trigger_of(words.lower())
        except ValueError:
            refuse(
                self._script.refusal(
                    f"emit = '{value.text}': {words[6:]} is no length of time",
                    at=value.at,
                    fix="Write how often the table may be written: emit = 'every 5 seconds'.",
                ),
                guessed=False,
            )
            return "changes"
        return words.lower()
