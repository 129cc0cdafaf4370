"""Keys as JSON, letter for letter as Spark renders them (`lake.quoting.as_json`)."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import BeyondThisProcess

_ESCAPE = re.compile(r"\\(u[0-9a-f]{4}|.)")
_RENDERED = (
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_boolean,
    pa.types.is_decimal,
    pa.types.is_date32,
    pa.types.is_timestamp,
)


def key_texts(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """Return the keys of incoming rows that may be halves of a changed key; null for all others.

    `rows` have the typed table's `_operation`, `_seq_hi` and `_lsn`. Nulls are left out of a text.
    Raises `BeyondThisProcess` for keys that Spark alone renders: of doubles, bytes or objects, or
    beyond the years 1 to 9999.
    """
    places = _halves(rows)
    texts: list[str | None] = [None] * rows.num_rows
    if places:
        if not all(any(of(rows.schema.field(n).type) for of in _RENDERED) for n in key):
            raise BeyondThisProcess("a changed key has a column that Spark alone renders")
        try:
            found = rows.select(list(key)).take(pa.array(places, pa.int64())).to_pylist()
            for place, values in zip(places, found, strict=True):
                texts[place] = _object(values)
        except (OverflowError, ValueError) as error:
            raise BeyondThisProcess(f"a changed key is beyond Python's calendar: {error}") from None
    return pa.array(texts, pa.string())


def _halves(rows: pa.Table) -> list[int]:
    """Return the places of rows that share their LSN with another one: a delete, an insert."""
    either = pc.is_in(rows["_operation"], pa.array(["c", "d"]))
    places = pc.indices_nonzero(pc.and_(either, pc.is_valid(rows["_lsn"])))
    if len(places) < 2:
        return []
    near = rows.select(["_seq_hi", "_lsn"]).take(places).append_column("place", places)
    sizes = near.group_by(["_seq_hi", "_lsn"]).aggregate([([], "count_all")])
    pairs = sizes.filter(pc.greater(sizes["count_all"], 1)).drop_columns(["count_all"])
    found = near.join(pairs, ["_seq_hi", "_lsn"], join_type="left semi")
    return [int(place) for place in found["place"].to_pylist()]


def _object(values: dict[str, object]) -> str:
    fields = (f"{_text(n)}:{_value(value)}" for n, value in values.items() if value is not None)
    return "{" + ",".join(fields) + "}"


def _value(value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | Decimal():
            return str(value)
        case datetime():
            return _text(value.isoformat(sep=" ", timespec="microseconds"))
        case date():
            return _text(value.isoformat())
        case _:
            return _text(str(value))


def _text(text: str) -> str:
    """Quote a text as Jackson does: what must be escaped, with capital digits."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPE.sub(
        lambda found: f"\\u{found[1][1:].upper()}" if len(found[1]) > 1 else found[0], quoted
    )
