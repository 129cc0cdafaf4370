"""Values that the type of their lake column cannot hold: they stay in their row, as text.

A `numeric(10, 2)` may be NaN, a date may be infinite or before Christ, an `int[]` may have two
dimensions today. The typed column then holds null (a date: the nearest one that it can hold), and
the column `_exact` of the same row holds a JSON object from column name to PostgreSQL's own text:

    price NULL, _exact {"price":"NaN"}

A table has the column `_exact` from the first such row on; elsewhere it is null. A quarantine of
the row was the other way: it would take the row's other values away with the one, and tear its
transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from kernel.errors import SchemaViolation
from schemas.pg_types import EXACT

__all__ = [
    "EXACT",
    "ExactReading",
    "carried_exact",
    "exact_column",
    "exact_texts",
    "refuse_lost_keys",
    "renamed_exact",
    "with_exact",
]


@dataclass(frozen=True, slots=True)
class ExactReading:
    """A column's values, and the rows (bool, no nulls) whose value it could not hold, if any."""

    values: pa.Array
    lost: pa.Array | None = None

    def lost_rows(self) -> pa.Array:
        """Return the mask of lost rows, all false where there are none."""
        if self.lost is not None:
            return self.lost
        return pa.array([False] * len(self.values), pa.bool_())


def exact_column(lost: Mapping[str, tuple[pa.ChunkedArray, pa.ChunkedArray]]) -> pa.Array | None:
    """Return `_exact` for columns given as (texts, lost rows); None when no row lost anything."""
    found: dict[int, dict[str, str]] = {}
    rows = 0
    for name, (texts, mask) in sorted(lost.items()):
        rows = len(texts)
        places = [place for place, gone in enumerate(mask.to_pylist()) if gone]
        for place, text in zip(places, texts.filter(mask).to_pylist(), strict=True):
            found.setdefault(place, {})[name] = text
    return exact_texts(found, rows)


def exact_texts(found: Mapping[int, Mapping[str, str]], rows: int) -> pa.Array | None:
    """Return `_exact` of texts by row and column; None when there are none."""
    if not found:
        return None
    texts: list[str | None] = [None] * rows
    for place, values in found.items():
        texts[place] = json.dumps(
            dict(sorted(values.items())), ensure_ascii=False, separators=(",", ":")
        )
    return pa.array(texts, pa.string())


_ENDS = frozenset(("infinity", "-infinity", "NaN"))
"""Lost values of which there is one in a column: what stands for each is no other lost value."""


def refuse_lost_keys(exact: pa.Array | pa.ChunkedArray, keys: Collection[str]) -> None:
    """Raise `SchemaViolation` where a key is a value that the lake holds another one for.

    `exact` are the rows' texts. Several of them would be one row, and the end of one would end the
    other: `0044-03-15 BC` and `0045-03-15 BC` are both the first day.
    """
    for text in exact.drop_null().to_pylist():
        for name, said in json.loads(text).items():
            if name in keys and said not in _ENDS:
                raise SchemaViolation(
                    f"a row has the key {name} = {said}, which the lake cannot tell from others",
                    remedy="Give the row another key, or the table another type of key, and read it"
                    " again: penstock source resnapshot NAME --tables TABLE",
                )


def renamed_exact(text: str, called: Mapping[str, str | None]) -> str | None:
    """Return `_exact` of a row whose columns are `called` otherwise now; None: which are gone."""
    said: dict[str, str] = json.loads(text)
    kept = {name: exact for name, exact in said.items() if name not in called}
    kept |= {new: said[old] for old, new in called.items() if new is not None and old in said}
    texts = exact_texts({0: kept} if kept else {}, 1)
    return None if texts is None else str(texts[0])


def carried_exact(own: object, before: object, left: Collection[str]) -> str | None:
    """Return `_exact` of a row some of whose columns an UPDATE left alone.

    It has what the row's own values say, and of the row before only what belongs to `left`.
    """
    kept = {} if before is None else json.loads(str(before))
    said = {name: text for name, text in kept.items() if name in left}
    said |= {} if own is None else json.loads(str(own))
    texts = exact_texts({0: said} if said else {}, 1)
    return None if texts is None else str(texts[0])


def with_exact(table: pa.Table, exact: pa.Array | None) -> pa.Table:
    """Append `_exact` where there is one."""
    return table if exact is None else table.append_column(EXACT, exact)
