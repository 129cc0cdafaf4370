"""PostgreSQL types and the lake's: what each column becomes, and which columns are refused.

    pg_attribute -> cdc.columns.columns_of -> SourceColumn -> lake_type | refusal

`docs/reference/capture-types.md` is the same as a table for readers; a test holds the two equal.
Every way into the lake gives these types: the connector's Avro (`schemas.columns`) and
PostgreSQL's own text (`schemas.pg_text`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from schemas.lake_columns import captured_column, numbered

LOCAL_MICROS = pa.timestamp("us")
UTC_MICROS = pa.timestamp("us", "UTC")

DECIMAL_DIGITS = 38
"""The most digits that a decimal of the lake holds; beyond, a numeric is text."""

MOST_DIMENSIONS = 6
"""No array of PostgreSQL has more, whatever its column was declared with."""


Caveat = Literal["", "infinite", "locale"]
"""`infinite`: an interval that nothing keeps from being infinite; `locale`: lc_monetary prints
money otherwise than `$1,234.56`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column of the source: its type (of the items, for an array) with domains resolved.

    `type` is PostgreSQL's typname, `kind` its typtype (`b` base, `e` enum, `c` composite, `r`
    range, `m` multirange, `p` pseudo), `modifier` its atttypmod, -1 without one. `dimensions` is
    how many an array is declared with (at least 1), 0 for what is no array, `delimiter` what stands
    between its items. `generated` is attgenerated: `` for an ordinary column, `s` stored, `v`
    virtual. `caveat` names what of this database makes the type unsafe, `` for nothing. `root` is
    the oid of the declared type without its domains, `domain` whether there were any. `number` is
    the column's among those of its table whose names differ in letter case only.
    """

    name: str
    type: str
    kind: str = "b"
    modifier: int = -1
    is_array: bool = False
    dimensions: int = 0
    not_null: bool = False
    generated: str = ""
    delimiter: str = ","
    caveat: Caveat = ""
    root: int = 0
    domain: bool = False
    number: int = 1

    def __post_init__(self) -> None:
        # PostgreSQL lets a column be declared with thousands, and whoever may connect can tell us
        # so of any table. Arrow compares types by recursion, which ends the process there.
        object.__setattr__(self, "dimensions", min(self.dimensions, MOST_DIMENSIONS))

    @property
    def lake_name(self) -> str:
        """What the column is called in the lake."""
        return captured_column(numbered(self.name, self.number))


EXACT = "_exact"
"""The column of values that their own column cannot hold: see `schemas.pg_exact`."""

_NAMES_OF_OBJECTS = frozenset(
    (
        *("regclass", "regproc", "regprocedure", "regoper", "regoperator", "regtype", "regrole"),
        *("regnamespace", "regconfig", "regdictionary", "regcollation", "aclitem"),
    )
)

_SCALARS: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "money": pa.decimal128(19, 2),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": LOCAL_MICROS,
    "timestamptz": UTC_MICROS,
}


def type_text(column: SourceColumn) -> str:
    """Write what decides on the lake's type, to travel in a schema; see `type_of_text`."""
    spelled = {
        "type": column.type,
        "kind": column.kind,
        "modifier": column.modifier,
        "dimensions": column.dimensions,
        "delimiter": column.delimiter,
    }
    return json.dumps(spelled, separators=(",", ":"))


def type_of_text(text: str) -> SourceColumn:
    """Read what `type_text` wrote; the column has no name."""
    spelled = json.loads(text)
    return SourceColumn(name="", is_array=spelled["dimensions"] > 0, **spelled)


def lake_type(column: SourceColumn) -> pa.DataType:
    """Return the Arrow type that the lake holds the column in. Text where nothing else is exact."""
    item = item_type(column)
    for _ in range(column.dimensions if column.is_array else 0):
        item = pa.list_(item)
    return item


def modifier_of(precision: int, scale: int) -> int:
    """Return the modifier of numeric(precision, scale), for a scale that is not negative."""
    return ((precision << 16) | scale) + 4


def item_type(column: SourceColumn) -> pa.DataType:
    """Return the type of the column's values, or of its items where it is an array."""
    if column.type == "bit" and column.modifier == 1:
        return pa.bool_()
    if column.type == "numeric":
        decimal = decimal_of(column.modifier)
        return pa.string() if decimal is None else pa.decimal128(*decimal)
    if column.kind != "b":
        return pa.string()
    return _SCALARS.get(column.type, pa.string())


def refusal(column: SourceColumn) -> str | None:
    """Say why a column cannot be captured without altering values, and what to do; else None."""
    if column.generated:
        return None
    if column.caveat == "infinite":
        return (
            "the connector writes an infinite interval as zero: forbid it"
            f" (ADD CHECK (isfinite({column.name}))), or exclude the column"
        )
    if column.caveat == "locale":
        return (
            "money is printed in another way than $1,234.56: set lc_monetary of the database to C,"
            " change the type to numeric, or exclude the column"
        )
    if column.kind == "b" and column.type in _NAMES_OF_OBJECTS:
        return (
            f"{column.type} prints the name of an object, which changes without the row: change"
            " the type to oid, or exclude the column"
        )
    return None


def decimal_of(modifier: int) -> tuple[int, int] | None:
    """Return precision and scale of the lake's decimal for a numeric's modifier, None for text."""
    if modifier < 4:
        return None
    precision, scale = ((modifier - 4) >> 16) & 0xFFFF, scale_of(modifier)
    digits = max(precision - min(scale, 0), scale)
    return (digits, max(scale, 0)) if digits <= DECIMAL_DIGITS else None


def scale_of(modifier: int) -> int:
    """Return the scale of a numeric's modifier. Below 0 PostgreSQL rounds ahead of the point."""
    return (((modifier - 4) & 0x7FF) ^ 1024) - 1024
