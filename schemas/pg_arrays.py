"""The text of PostgreSQL's arrays to lists of their items' texts.

Ordinary arrays are cut by Arrow; only those with quotes or several dimensions are parsed one by
one. Grammar: PostgreSQL's `array_out`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def array_texts(
    texts: pa.Array, dimensions: int, delimiter: str
) -> tuple[pa.Array, pa.Array | None]:
    """Return lists (of lists, by `dimensions`) of item texts, and the rows that do not fit.

    A row does not fit when it has another number of dimensions, or does not count from one. It is
    null then. Raises `ValueError` for text that is no array.
    """
    simple = (
        dimensions == 1 and not pc.any(pc.match_substring_regex(texts, r'["\\\[;]|^{{')).as_py()
    )
    if simple and delimiter == ",":
        return _cut(texts), None
    rows = [None if text is None else _parsed(text, delimiter) for text in texts.to_pylist()]
    fits = [row is None or row[0] in (0, dimensions) for row in rows]
    kept = [
        row[1] if row is not None and fit else None for row, fit in zip(rows, fits, strict=True)
    ]
    kind: pa.DataType = pa.string()
    for _ in range(dimensions):
        kind = pa.list_(kind)
    lost = None if all(fits) else pa.array([not fit for fit in fits], pa.bool_())
    return pa.array(kept, kind), lost


def _cut(texts: pa.Array) -> pa.Array:
    """Cut arrays of one dimension whose items need no quotes."""
    if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
        bad = pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}")))
        if bad.as_py() is False:
            raise ValueError("not an array")
    inner = pc.utf8_slice_codeunits(texts, 1, -1)
    cut = pc.split_pattern(inner, ",")
    # The empty array is cut into one empty text, which no other array is: that would be quoted.
    items = cut.flatten()
    lengths = pc.if_else(pc.equal(inner, ""), 0, pc.list_value_length(cut))
    ends = pa.concat_arrays(
        [pa.array([0], pa.int32()), pc.cumulative_sum(pc.fill_null(lengths, 0)).cast(pa.int32())]
    )
    items = items.filter(pc.not_equal(items, ""))
    items = pc.if_else(pc.equal(items, "NULL"), None, items)
    mask = pc.is_null(texts) if texts.null_count else None
    return pa.ListArray.from_arrays(ends, items, mask=mask)


@lru_cache(maxsize=8)
def _tokens(delimiter: str) -> re.Pattern[str]:
    mark = re.escape(delimiter)
    return re.compile(rf'([{{}}])|{mark}|"((?:[^"\\]|\\.)*)"|([^{{}}"{mark}]+)', re.DOTALL)


def _parsed(text: str, delimiter: str) -> tuple[int, list[Any] | None]:
    """Return the number of dimensions (-1 for other lower bounds) and the nested lists."""
    if text.startswith("["):
        return -1, None
    root: list[Any] = []
    open_: list[list[Any]] = []
    deepest = 0
    for token in _tokens(delimiter).finditer(text):
        brace, quoted, bare = token.groups()
        if brace == "{":
            fresh: list[Any] = []
            (open_[-1] if open_ else root).append(fresh)
            open_.append(fresh)
            deepest = max(deepest, len(open_))
        elif brace == "}":
            open_.pop()
        elif quoted is not None:
            open_[-1].append(_ESCAPED.sub(r"\1", quoted) if "\\" in quoted else quoted)
        elif bare is not None:
            open_[-1].append(None if bare == "NULL" else bare)
    if len(root) != 1 or open_:
        raise ValueError(f"not an array: {text[:40]}")
    return (deepest if root[0] else 0), root[0]
