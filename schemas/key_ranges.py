"""Ranges of a table's keys that the source and the lake cut alike.

A range holds the keys in [low, high), compared column by column in the key's order; None is no
bound. Bounds are PostgreSQL's own texts (`cdc.columns.TEXT_SETTINGS`). Both sides must agree on
order, so text is compared by its bytes (COLLATE "C" at the source), and a key with a column whose
order the lake does not keep (an enum, a numeric without scale, an interval) has no ranges but the
whole table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from schemas.arrow_kinds import is_bytes, is_text
from schemas.lake_columns import captured_column
from schemas.pg_types import SourceColumn, decimal_of

Bound = tuple[str, ...]
"""One text per key column, as PostgreSQL prints it."""
KeyValue = int | str | bytes | Decimal

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1, 1, 1).toordinal() - date(1970, 1, 1).toordinal()
_LAST_DAY = date(9999, 12, 31).toordinal() - date(1970, 1, 1).toordinal()
_DAY_MICROS = 86_400_000_000


class KeyOrder(StrEnum):
    """How the values of a key column compare, on both sides."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    TEXT = "text"
    UUID = "uuid"
    BYTES = "bytes"
    DATE = "date"
    TIMESTAMP = "timestamp"


_ORDERS = {
    "int2": KeyOrder.INTEGER,
    "int4": KeyOrder.INTEGER,
    "int8": KeyOrder.INTEGER,
    "oid": KeyOrder.INTEGER,
    "text": KeyOrder.TEXT,
    "varchar": KeyOrder.TEXT,
    "name": KeyOrder.TEXT,
    "uuid": KeyOrder.UUID,
    "bytea": KeyOrder.BYTES,
    "date": KeyOrder.DATE,
    "timestamp": KeyOrder.TIMESTAMP,
    "timestamptz": KeyOrder.TIMESTAMP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyColumn:
    """A column of a key that has ranges. `type` is PostgreSQL's, domains resolved."""

    name: str
    type: str
    order: KeyOrder

    @property
    def lake_name(self) -> str:
        """What the column is called in the lake."""
        return captured_column(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRange:
    """Keys in [low, high). None: no bound on that side."""

    low: Bound | None = None
    high: Bound | None = None

    @property
    def is_all(self) -> bool:
        """Whether it holds every key."""
        return self.low is None and self.high is None

    def __str__(self) -> str:
        """Render it for people: `[1, 5)`, `(…, 5)`."""
        low = "(…" if self.low is None else f"[{_shown(self.low)}"
        return f"{low}, {'…' if self.high is None else _shown(self.high)})"


WHOLE = KeyRange()


def ordered_key(columns: Sequence[SourceColumn]) -> tuple[KeyColumn, ...] | None:
    """Return the key's columns with their orders; None when one has an order of its own."""
    found: list[KeyColumn] = []
    for column in columns:
        order = None if column.is_array or column.kind != "b" else _ORDERS.get(column.type)
        if column.type == "numeric" and not column.is_array and decimal_of(column.modifier):
            order = KeyOrder.DECIMAL
        if order is None:
            return None
        found.append(KeyColumn(name=column.name, type=column.type, order=order))
    return tuple(found) or None


def cut_at(bounds: Sequence[Bound]) -> tuple[KeyRange, ...]:
    """Return the ranges between ascending bounds, the first and the last open: one more of them."""
    edges: list[Bound | None] = [None, *bounds, None]
    return tuple(KeyRange(low=low, high=high) for low, high in pairwise(edges))


def joined(ranges: Sequence[KeyRange]) -> tuple[KeyRange, ...]:
    """Put neighbours among ascending ranges together."""
    out: list[KeyRange] = []
    for one in ranges:
        if out and out[-1].high is not None and out[-1].high == one.low:
            out[-1] = KeyRange(low=out[-1].low, high=one.high)
        else:
            out.append(one)
    return tuple(out)


def value_of(text: str, order: KeyOrder) -> KeyValue:
    """Read a bound's text as the lake holds it: days and microseconds are since 1970."""
    match order:
        case KeyOrder.INTEGER:
            return int(text)
        case KeyOrder.DECIMAL:
            return Decimal(text)
        case KeyOrder.TEXT | KeyOrder.UUID:
            return text
        case KeyOrder.BYTES:
            return bytes.fromhex(text.removeprefix("\\x"))
        case KeyOrder.DATE:
            return _days(text)
        case KeyOrder.TIMESTAMP:
            return _micros(text)


def fits(order: KeyOrder, kind: pa.DataType) -> bool:
    """Say whether a lake column of this type has the order: else its table has no ranges."""
    match order:
        case KeyOrder.INTEGER:
            return bool(pa.types.is_integer(kind))
        case KeyOrder.DECIMAL:
            return bool(pa.types.is_decimal(kind))
        case KeyOrder.TEXT | KeyOrder.UUID:
            return is_text(kind)
        case KeyOrder.BYTES:
            return is_bytes(kind)
        case KeyOrder.DATE:
            return bool(pa.types.is_date32(kind))
        case KeyOrder.TIMESTAMP:
            return bool(pa.types.is_timestamp(kind))


def lake_filter(
    range_: KeyRange, key: Sequence[KeyColumn], schema: pa.Schema
) -> pc.Expression | None:
    """Return the range as a filter of a lake table's rows; None for the whole table.

    Files and row groups outside are skipped by their statistics.
    """
    parts = [
        _compared(bound, key, schema, low=is_low)
        for bound, is_low in ((range_.low, True), (range_.high, False))
        if bound is not None
    ]
    if not parts:
        return None
    return parts[0] if len(parts) == 1 else parts[0] & parts[1]


def _compared(
    bound: Bound, key: Sequence[KeyColumn], schema: pa.Schema, *, low: bool
) -> pc.Expression:
    """Compare the whole key: (a, b) >= (x, y) is a > x or (a = x and b >= y); high is `<`."""
    scalars = list(_scalars(bound, key, schema))
    last = pc.field(key[-1].lake_name)
    condition = last >= scalars[-1] if low else last < scalars[-1]
    for column, scalar in reversed(list(zip(key[:-1], scalars[:-1], strict=True))):
        field = pc.field(column.lake_name)
        beyond = field > scalar if low else field < scalar
        condition = beyond | ((field == scalar) & condition)
    return condition


def _scalars(bound: Bound, key: Sequence[KeyColumn], schema: pa.Schema) -> Iterator[pa.Scalar]:
    for text, column in zip(bound, key, strict=True):
        kind = schema.field(column.lake_name).type
        value = value_of(text, column.order)
        if column.order is KeyOrder.DATE:
            yield pa.scalar(value, pa.int32()).cast(kind)
        elif column.order is KeyOrder.TIMESTAMP:
            yield pa.scalar(value, pa.int64()).cast(pa.timestamp("us", kind.tz)).cast(kind)
        else:
            yield pa.scalar(value, kind)


def _shown(bound: Bound) -> str:
    return bound[0] if len(bound) == 1 else f"({', '.join(bound)})"


def _days(text: str) -> int:
    if (extreme := _extreme(text)) is not None:
        return _LAST_DAY if extreme else _FIRST_DAY
    return date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()


def _micros(text: str) -> int:
    if (extreme := _extreme(text)) is not None:
        return (_LAST_DAY + 1) * _DAY_MICROS - 1 if extreme else _FIRST_DAY * _DAY_MICROS
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _extreme(text: str) -> bool | None:
    """Say whether a moment saturates in the lake: True at the last, False at the first."""
    if text == "infinity":
        return True
    if text == "-infinity" or text.endswith(" BC"):
        return False
    return True if len(text.split("-", 1)[0]) > 4 else None
