"""Windows over event time: `TUMBLE`, `HOP`, `CUMULATE` in GROUP BY.

All are `[start, end)` and aligned to 1970-01-01 UTC, or to an offset behind it. A row is put into
its windows before anything else happens to it, so `window_start` and `window_end` are columns of
the driving stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from sqlglot import exp

from projections.sql.values.expressions import render
from projections.sql.words.durations import FORM, duration_of, in_us, in_words, signed_duration_of
from projections.sql.words.places import Script, offset_of

MOST_WINDOWS_OF_A_ROW = 1_000


class WindowKind(StrEnum):
    """How windows lie in time."""

    TUMBLE = "TUMBLE"
    HOP = "HOP"
    CUMULATE = "CUMULATE"


_FORMS = {
    WindowKind.TUMBLE: "TUMBLE(t, '1 hour')",
    WindowKind.HOP: "HOP(t, '10 minutes', '1 hour')",
    WindowKind.CUMULATE: "CUMULATE(t, '1 hour', '1 day')",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One window function. `time` is resolved; `step` is the slide or step, or the size.

    A window begins at `offset` behind 1970-01-01 UTC, which is less than what is between two.
    """

    kind: WindowKind
    time: exp.Expr
    step: timedelta
    size: timedelta
    offset: timedelta = timedelta()

    @property
    def of_a_row(self) -> int:
        """How many windows a row can be in."""
        return -(-in_us(self.size) // in_us(self.step))


def window_kind(node: exp.Expr) -> WindowKind | None:
    """Return which window function a parsed expression is, if any."""
    if isinstance(node, exp.Anonymous) and node.name.upper() in WindowKind.__members__:
        return WindowKind[node.name.upper()]
    return None


def is_session(node: exp.Expr) -> bool:
    """Say whether a parsed expression is the function of a session."""
    return isinstance(node, exp.Anonymous) and node.name.upper() == "SESSION"


def read_window(script: Script, node: exp.Expr, kind: WindowKind, *, at: int) -> Window:
    """Read a window function; its time expression is left as written."""
    at, form = offset_of(node, at), f"The form is {_FORMS[kind]}."
    arguments = list(node.expressions)
    count = 2 if kind is WindowKind.TUMBLE else 3
    if len(arguments) not in (count, count + 1):
        raise script.refusal(f"{kind} has {len(arguments)} arguments", at=at, fix=form)
    lengths: list[timedelta] = []
    for argument in arguments[1:count]:
        length = duration_of(argument)
        if not length:
            raise script.refusal(
                f"{kind}: {render(argument)} is no length of a window",
                at=offset_of(argument, at),
                fix=f"{FORM[0].upper()}{FORM[1:]}. {form}",
            )
        lengths.append(length)
    step, size = lengths[0], lengths[-1]
    if step > size:
        raise script.refusal(
            f"{kind}: the step {in_words(step)} is longer than the size {in_words(size)}",
            at=at,
            fix=f"The smaller length comes first. {form}",
        )
    if kind is WindowKind.CUMULATE and in_us(size) % in_us(step):
        raise script.refusal(
            f"CUMULATE: {in_words(size)} is not a multiple of {in_words(step)}", at=at, fix=form
        )
    between = size if kind is WindowKind.CUMULATE else step
    offset = signed_duration_of(arguments[count]) if len(arguments) > count else timedelta()
    if offset is None:
        raise script.refusal(
            f"{kind}: {render(arguments[count])} is no length by which windows are moved",
            at=offset_of(arguments[count], at),
            fix=f"{FORM[0].upper()}{FORM[1:]}, or a negative one, as INTERVAL '-5' MINUTES.",
        )
    window = Window(kind=kind, time=arguments[0], step=step, size=size, offset=offset % between)
    if window.of_a_row > MOST_WINDOWS_OF_A_ROW:
        raise script.refusal(
            f"{kind}: every row would be in {window.of_a_row} windows",
            at=at,
            fix=f"Choose a step that puts a row into at most {MOST_WINDOWS_OF_A_ROW} windows.",
        )
    return window
