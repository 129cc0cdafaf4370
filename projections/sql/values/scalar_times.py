"""Functions of days and moments that the small executor computes; see `values.scalar`.

To DuckDB moments are `TIMESTAMP` in UTC, days are `DATE`; calendars are proleptic in both engines.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from projections.sql.values import scalar_decimals
from projections.sql.values.scalar import WHOLE, Rule, Scalar, TypeOf, form, literal_text
from projections.sql.words.durations import calendar_length

_TIMES = ("DATE", "TIMESTAMP")
_PER_UNIT_US = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}
_MOMENTS_US = {"timestamp_seconds": 1_000_000, "timestamp_millis": 1_000, "timestamp_micros": 1}
_LONG_UNITS = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    "QUARTER": "quarter",
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    "WEEK": "week",
}
_FIELDS = {
    **dict.fromkeys(("YEAR", "MONTH", "QUARTER", "HOUR", "MINUTE", "SECOND"), "{field}({{0}})"),
    **dict.fromkeys(("DAY", "DAYS", "D"), "day({{0}})"),
    **dict.fromkeys(("WEEK", "WEEKS", "W"), "weekofyear({{0}})"),
    **dict.fromkeys(("DOY",), "dayofyear({{0}})"),
    **dict.fromkeys(("DAYOFWEEK", "DOW"), "dayofweek({{0}}) + 1"),
    **dict.fromkeys(("DAYOFWEEK_ISO", "DOW_ISO"), "isodow({{0}})"),
}
_CLASS_FIELDS: Mapping[type[exp.Expr], str] = {
    exp.Year: "YEAR",
    exp.Month: "MONTH",
    exp.Day: "DAY",
    exp.Hour: "HOUR",
    exp.Minute: "MINUTE",
    exp.Second: "SECOND",
    exp.DayOfMonth: "DAY",
    exp.DayOfWeek: "DOW",
    exp.DayOfYear: "DOY",
    exp.WeekOfYear: "WEEK",
    exp.Quarter: "QUARTER",
}
_OF_MOMENTS = ("HOUR", "MINUTE", "SECOND")


def unwrapped(node: exp.Expr) -> exp.Expr:
    """Return what sqlglot has put a conversion to a day around."""
    inner = node
    while isinstance(inner, exp.TsOrDsToDate) and inner.args.get("format") is None:
        inner = inner.this
    return inner


def _field(name: str, time: exp.Expr, types: TypeOf) -> Scalar | None:
    inner, words = unwrapped(time), _FIELDS.get(name.upper())
    taken = ("TIMESTAMP",) if name.upper() in _OF_MOMENTS else _TIMES
    if words is None or types(inner) not in taken:
        return None
    text = words.format(field=name.lower())
    return form("INT", f"CAST({text} AS INTEGER)", inner)


def _field_by_class(node: exp.Expr, types: TypeOf) -> Scalar | None:
    return _field(_CLASS_FIELDS[type(node)], node.this, types)


def _extract(node: exp.Expr, types: TypeOf) -> Scalar | None:
    return _named_field(node.this.name, node.expression, types)


def _named_field(name: str, time: exp.Expr, types: TypeOf) -> Scalar | None:
    # The second that is extracted has a fraction, other than SECOND(t).
    return None if name.upper() == "SECOND" else _field(name, time, types)


def _date_part(node: exp.Expr, types: TypeOf) -> Scalar | None:
    name, time = literal_text(node.expressions[0]), node.expressions[-1]
    known = name is not None and len(node.expressions) == 2
    return _named_field(name, time, types) if name is not None and known else None


def _weekday(node: exp.Expr, types: TypeOf) -> Scalar | None:
    (time,) = node.expressions
    known = types(time) in _TIMES
    return form("INT", "CAST(isodow({0}) - 1 AS INTEGER)", time) if known else None


def _days_later(node: exp.Expr, types: TypeOf) -> Scalar | None:
    day, days = unwrapped(node.this), node.expression
    known = node.text("unit").upper() == "DAY" and types(day) in _TIMES and types(days) == "INT"
    return form("DATE", "CAST(CAST({0} AS DATE) + {1} AS DATE)", day, days) if known else None


def _days_between(node: exp.Expr, types: TypeOf) -> Scalar | None:
    parts = (unwrapped(node.this), unwrapped(node.expression))
    if node.args.get("unit") is not None or any(types(part) not in _TIMES for part in parts):
        return None
    return form("INT", "CAST(CAST({0} AS DATE) - CAST({1} AS DATE) AS INTEGER)", *parts)


def _last_day(node: exp.Expr, types: TypeOf) -> Scalar | None:
    known = types(node.this) in _TIMES
    return form("DATE", "last_day({0})", node.this) if known else None


def _months_later(node: exp.Expr, types: TypeOf) -> Scalar | None:
    day, months = unwrapped(node.this), node.expression
    if types(day) not in _TIMES or types(months) != "INT":
        return None
    return form("DATE", "CAST(CAST({0} AS DATE) + to_months({1}) AS DATE)", day, months)


def _truncated(node: exp.Expr, types: TypeOf) -> Scalar | None:
    """Read date_trunc of weeks and what is longer; see `certified` for shorter units."""
    unit = _LONG_UNITS.get(node.text("unit").upper())
    if unit is None or types(node.this) != "TIMESTAMP":
        return None
    return form("TIMESTAMP", f"CAST(date_trunc('{unit}', {{0}}) AS TIMESTAMP)", node.this)


def _day_truncated(node: exp.Expr, types: TypeOf) -> Scalar | None:
    named = literal_text(node.args.get("unit"))
    unit = None if named is None else _LONG_UNITS.get(named.upper())
    day = unwrapped(node.this)
    if unit is None or types(day) not in _TIMES:
        return None
    return form("DATE", f"CAST(date_trunc('{unit}', {{0}}) AS DATE)", day)


def whole_units(us: str, size: int) -> str:
    """Write microseconds as whole units, rounded down."""
    return f"(({us} - (({us} % {size} + {size}) % {size})) // {size})"


def _unix(node: exp.Expr, types: TypeOf) -> Scalar | None:
    size = 1_000 if isinstance(node, exp.UnixMillis) else 1_000_000
    known = types(node.this) == "TIMESTAMP"
    return form("BIGINT", whole_units("epoch_us({0})", size), node.this) if known else None


def _moment(node: exp.Expr, types: TypeOf) -> Scalar | None:
    (number,) = node.expressions
    size = _MOMENTS_US[node.name.lower()]
    if types(number) not in WHOLE:
        return None
    return form("TIMESTAMP", f"make_timestamp(CAST({{0}} AS BIGINT) * {size})", number)


def _units_between(node: exp.Expr, types: TypeOf) -> Scalar | None:
    size = _PER_UNIT_US.get(node.text("unit").upper())
    parts = (node.this, node.expression)
    if size is None or any(types(part) != "TIMESTAMP" for part in parts):
        return None
    return form("BIGINT", f"((epoch_us({{0}}) - epoch_us({{1}})) // {size})", *parts)


def _moved(node: exp.Expr, types: TypeOf) -> Scalar | None:
    """Read days, months or years that are added to a time; see `certified` for others."""
    length = calendar_length(node.expression)
    kind = types(node.this)
    if length is None or kind not in _TIMES or (kind == "TIMESTAMP" and length.days is not None):
        return None
    count = length.months if length.days is None else length.days
    unit = "months" if length.days is None else "days"
    count = -count if isinstance(node, exp.Sub) else count
    return form(kind, f"CAST({{0}} + to_{unit}({count}) AS {kind})", node.this)


def calculated(node: exp.Expr, types: TypeOf) -> Scalar | None:
    """Read a sum or a difference: a time and a length, or numbers."""
    lengthy = isinstance(node.expression, exp.Interval)
    rule = _moved if lengthy else scalar_decimals.CLASSES[type(node)]
    return rule(node, types)


CLASSES: Mapping[type[exp.Expr], Rule] = {
    **dict.fromkeys(_CLASS_FIELDS, _field_by_class),
    **dict.fromkeys((exp.Add, exp.Sub), calculated),
    exp.Extract: _extract,
    exp.TsOrDsAdd: _days_later,
    exp.DateDiff: _days_between,
    exp.LastDay: _last_day,
    exp.AddMonths: _months_later,
    exp.TimestampTrunc: _truncated,
    exp.DateTrunc: _day_truncated,
    exp.UnixSeconds: _unix,
    exp.UnixMillis: _unix,
    exp.TimestampDiff: _units_between,
}
NAMED: Mapping[str, Rule] = {
    "date_part": _date_part,
    "weekday": _weekday,
    **dict.fromkeys(_MOMENTS_US, _moment),
}
