"""Whether a table's columns hold the values of rows as they are.

deltalake and Spark convert values to the stored type without a word: 1.75 becomes 1 in a column of
whole numbers.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Incompatible


def refuse_inexact(stored: pa.Schema, rows: pa.Table, where: str) -> None:
    """Raise `Incompatible` where a stored column's type would change values of the rows."""
    for item in rows.schema:
        kind = stored.field(item.name).type if item.name in stored.names else item.type
        if not _exact(rows[item.name], kind):
            raise Incompatible(
                f"column {item.name} of {where} is {kind}, which does not hold values of the type "
                f"{item.type} as they are",
                remedy="Compute the table anew (of a projection: penstock replay apply, then "
                "swap), or convert the values to the stored type by CAST.",
            )


def _exact(values: pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Say whether values stay what they are as another type. Fields that it lacks are added."""
    own = values.type
    if own == kind:
        return True
    if pa.types.is_struct(own) and pa.types.is_struct(kind):
        return all(
            _exact(pc.struct_field(values, [item.name]), kind.field(item.name).type)
            for item in own
            if kind.get_field_index(item.name) >= 0
        )
    if _is_list(own) and _is_list(kind):
        return _exact(pc.list_flatten(values), kind.value_type)
    if pa.types.is_timestamp(own) and pa.types.is_date(kind):
        return False
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        return False
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        # Not a conversion that could lose something silently: whoever writes refuses it.
        return True
    return True


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))
