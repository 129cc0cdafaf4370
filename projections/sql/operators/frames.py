"""Frames of OVER: which rows around one it is computed from.

RANGE by distances is told over one ascending order: over a descending one it is the mirror of it,
since what is computed over it does not depend on the order of rows.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from projections.sql.operators.resolving import Names
from projections.sql.operators.tree import Frame, Ordering
from projections.sql.values.types import TEMPORAL
from projections.sql.words.durations import FORM, duration_of, in_us
from projections.sql.words.places import offset_of

FRAMES = (
    "Frames are ROWS BETWEEN n PRECEDING AND n FOLLOWING, and RANGE BETWEEN INTERVAL … PRECEDING "
    "AND INTERVAL … FOLLOWING over one time, or n PRECEDING AND n FOLLOWING over one whole number; "
    "each end may be UNBOUNDED or CURRENT ROW, and both on one side of the row."
)
_OF_GROUPS = (
    "Number the groups, and say how far their numbers are apart: SUM(x) OVER (PARTITION BY k ORDER "
    "BY place RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) FROM (SELECT k, x, DENSE_RANK() OVER "
    "(PARTITION BY k ORDER BY t) AS place FROM STREAM s) q."
)
SO_FAR = Frame(rows=False, before=None, after=0)
"""What OVER with ORDER BY is about if it names no frame."""
ALL_ROWS = Frame(rows=True, before=None, after=None)
_COORDINATES = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT"), "BIGINT"),
    # A distance from the greatest BIGINT is none.
    "BIGINT": "DECIMAL(20,0)",
}
"""The types in which distances of whole numbers are measured."""
_MOST = 10**18
"""The greatest distance: what is twice as far still is a BIGINT."""
ColumnOf = Callable[[exp.Expr], str]
"""Returns the name of the column that an expression is computed as."""


def framed(
    names: Names, window: exp.Expr, order: tuple[Ordering, ...], column_of: ColumnOf
) -> tuple[tuple[Ordering, ...], Frame | None]:
    """Read the frame of an OVER in the order `order`; return both: a mirrored one has another.

    Raises `InvalidRequest` for what is no frame of the dialect.
    """
    spec = window.args.get("spec")
    if spec is None:
        return order, SO_FAR if order else None
    return _Frames(names, window, spec, column_of).read(order)


class _Frames:
    """Reads one frame."""

    def __init__(self, names: Names, window: exp.Expr, spec: exp.Expr, column_of: ColumnOf) -> None:
        self._names = names
        self._window = window
        self._spec = spec
        self._column_of = column_of

    def read(self, order: tuple[Ordering, ...]) -> tuple[tuple[Ordering, ...], Frame]:
        kind = self._spec.text("kind").upper()
        if not order:
            raise self._refusal("a frame without ORDER BY")
        if self._spec.args.get("exclude"):
            raise self._refusal("EXCLUDE in OVER is not compiled")
        if kind not in ("ROWS", "RANGE"):
            raise self._refusal(f"a frame of {kind} is not compiled", fix=_OF_GROUPS)
        count = self._count if kind == "ROWS" else self._distance
        start, end = self._place("start", count), self._place("end", count)
        if start is not None and end is not None and start > end:
            raise self._refusal("a frame that ends before it begins")
        before = None if start is None else -start
        if kind == "ROWS":
            return order, Frame(rows=True, before=before, after=end)
        if before is None and end is None:
            return order, ALL_ROWS
        if before in (None, 0) and end in (None, 0) and (before, end) != (0, 0):
            return order, Frame(rows=False, before=before, after=end)
        return self._by_value(order, before, end)

    def _by_value(
        self, order: tuple[Ordering, ...], before: int | None, after: int | None
    ) -> tuple[tuple[Ordering, ...], Frame]:
        written = self._window.args["order"].expressions
        kind = self._names.type_of(written[0].this)
        if len(order) != 1 or kind not in (*TEMPORAL, *_COORDINATES):
            raise self._refusal("a RANGE over anything but one time or whole number")
        bounds = [self._spec.args.get("start"), self._spec.args.get("end")]
        measured = [each for each in bounds if isinstance(each, exp.Expr)]
        if any(isinstance(each, exp.Literal) and not each.is_string for each in measured) != (
            kind not in TEMPORAL and bool(measured)
        ):
            by = "a number" if kind in TEMPORAL else "a length of time"
            raise self._refusal(f"a RANGE over {kind} by {by}")
        (own,) = order
        if kind in _COORDINATES:
            to = exp.DataType.build(_COORDINATES[kind], dialect="spark")
            own = Ordering(
                column=self._column_of(exp.Cast(this=written[0].this.copy(), to=to)),
                descending=own.descending,
                nulls_first=own.nulls_first,
            )
        if own.descending:
            own = Ordering(column=own.column, descending=False, nulls_first=not own.nulls_first)
            before, after = after, before
        return (own,), Frame(rows=False, before=before, after=after, by_value=True)

    def _place(self, end: str, count: Callable[[object], int]) -> int | None:
        """Return how far behind the row a frame begins or ends; None for UNBOUNDED."""
        bound = self._spec.args.get(end) or "CURRENT ROW"
        side = self._spec.text(f"{end}_side").upper()
        word = str(bound).upper()
        if word == "CURRENT ROW":
            return 0
        if word == "UNBOUNDED":
            if side != ("PRECEDING" if end == "start" else "FOLLOWING"):
                raise self._refusal("a frame that ends before it begins")
            return None
        return -count(bound) if side == "PRECEDING" else count(bound)

    def _count(self, bound: object) -> int:
        if isinstance(bound, exp.Literal) and bound.is_int:
            return int(bound.name)
        raise self._refusal("a frame of no fixed number of rows")

    def _distance(self, bound: object) -> int:
        if isinstance(bound, exp.Literal) and not bound.is_string and bound.is_int:
            distance: int | None = int(bound.name)
        else:
            length = duration_of(bound) if isinstance(bound, exp.Expr) else None
            distance = None if length is None else in_us(length)
        if distance is None or distance > _MOST:
            raise self._refusal(f"a RANGE of no fixed length; {FORM}, or a whole number")
        return distance

    def _refusal(self, message: str, fix: str = FRAMES) -> Exception:
        at = offset_of(self._window, self._names.at)
        return self._names.script.refusal(message, at=at, fix=fix)
