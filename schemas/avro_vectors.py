"""Avro records of one schema read side by side: a column at a time over all of them, by numpy.

Avro has no marks between fields, so that one record is read from front to back. Many records of
one schema are read in step: each keeps its own place, and every field moves all places at once.
That is ten times as fast as record by record where rows are many, and only what is asked for is
copied. Arrays, maps and unions of several types are not read this way, nor are bytes that do not
fit: then the answer is None, and the reader record by record says which record it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from schemas.field_names import parsed
from schemas.wire import HEADER_BYTES

Places = npt.NDArray[np.int64]
Path = tuple[str, ...]
_LONGEST_VARINT = 10


class _Misfit(Exception):
    """The bytes are not what the schema says, or not what this reader can read."""


@dataclass(slots=True)
class _Bytes:
    """All records in one buffer, where each is read next and ends. `found` takes the columns."""

    buffer: npt.NDArray[np.uint8]
    at: Places
    ends: Places
    wanted: frozenset[Path]
    found: dict[Path, pa.Array] = field(default_factory=dict)


Reader = Callable[[_Bytes, Places, Path], pa.Array | None]
"""Moves the places of some records past a value; returns their column where it is wanted."""


@dataclass(frozen=True, slots=True)
class _Program:
    """A schema made ready: one reader per field, in order."""

    fields: tuple[tuple[str, Reader], ...]


def read_columns(
    records: pa.Array | Sequence[bytes], schema_json: str, wanted: Sequence[Path]
) -> dict[Path, pa.Array] | None:
    """Read fields of framed Avro records, none of them null, as Arrow columns in their order.

    `wanted` are paths of fields (`("source", "lsn")`); a path to a record gives a column of
    booleans, whether it is there. A field inside an absent record is null. Numbers come as int64
    or float64, texts as string, bytes as binary, enums as string; logical types are not applied.
    Returns None when this reader cannot read the schema or the bytes.
    """
    program = _program(schema_json, _last_of(wanted))
    if program is None:
        return None
    binary = records if isinstance(records, pa.Array) else pa.array(records, pa.binary())
    if len(binary) == 0 or binary.null_count:
        return None
    try:
        return _run(program, binary, frozenset(wanted))
    except (_Misfit, IndexError, pa.ArrowInvalid, OverflowError):
        return None


def _last_of(wanted: Sequence[Path]) -> frozenset[str]:
    return frozenset(path[0] for path in wanted)


def _run(program: _Program, binary: pa.Array, wanted: frozenset[Path]) -> dict[Path, pa.Array]:
    offsets = np.frombuffer(binary.buffers()[1], np.int32)[
        binary.offset : binary.offset + len(binary) + 1
    ].astype(np.int64)
    data = binary.buffers()[2]
    if data is None or offsets[-1] - offsets[0] < len(binary) * HEADER_BYTES:
        raise _Misfit
    buffer = np.frombuffer(data, np.uint8)[: offsets[-1]]
    state = _Bytes(buffer, offsets[:-1] + HEADER_BYTES, offsets[1:], wanted)
    rows = np.arange(len(binary), dtype=np.int64)
    for name, reader in program.fields:
        column = reader(state, rows, (name,))
        if column is not None:
            state.found[name,] = column
        if (state.at > state.ends).any():
            raise _Misfit
    if len(state.found) < len(wanted):
        raise _Misfit
    return state.found


@lru_cache(maxsize=1024)
def _program(schema_json: str, firsts: frozenset[str]) -> _Program | None:
    """Prepare a record's schema, up to the last field of which anything is wanted."""
    try:
        schema = parsed(schema_json)
        fields = schema["fields"]
        last = max(i for i, item in enumerate(fields) if item["name"] in firsts)
        named: dict[str, Any] = {}
        return _Program(tuple((f["name"], _reader(f["type"], named)) for f in fields[: last + 1]))
    except (_Misfit, KeyError, ValueError, TypeError, RecursionError):
        return None


def _reader(avro: Any, named: dict[str, Any]) -> Reader:
    if isinstance(avro, str):
        if avro in _PRIMITIVES:
            return _PRIMITIVES[avro]
        if avro in named:
            return _reader(named[avro], named)
        raise _Misfit
    if isinstance(avro, list):
        return _optional(avro, named)
    if avro is None:
        raise _Misfit
    kind = avro["type"]
    match kind:
        case "record":
            # A record within itself has no end: within it, its name stands for nothing.
            named[avro["name"]] = None
            fields = [(f["name"], _reader(f["type"], named)) for f in avro["fields"]]
            named[avro["name"]] = avro
            return _record(fields)
        case "enum":
            named[avro["name"]] = avro
            return _enum(avro["symbols"])
        case "array" | "map" | "fixed":
            raise _Misfit
        case _:
            return _reader(kind, named)


def _varint(state: _Bytes, rows: Places) -> Places:
    """Read one zigzag number of each record and move on."""
    at = state.at[rows]
    first = state.buffer[at]
    value = (first & 0x7F).astype(np.uint64)
    at += 1
    open_ = np.flatnonzero(first & 0x80)
    shift = 7
    while open_.size:
        if shift >= 7 * _LONGEST_VARINT:
            raise _Misfit
        byte = state.buffer[at[open_]]
        value[open_] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        at[open_] += 1
        open_ = open_[(byte & 0x80) != 0]
        shift += 7
    state.at[rows] = at
    return ((value >> np.uint64(1)) ^ (~(value & np.uint64(1)) + np.uint64(1))).astype(np.int64)


def _long(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
    value = _varint(state, rows)
    return pa.array(value) if path in state.wanted else None


def _float(kind: str) -> Reader:
    width = np.dtype(kind).itemsize

    def read(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
        at = state.at[rows]
        state.at[rows] = at + width
        if path not in state.wanted:
            return None
        raw = state.buffer[at[:, None] + np.arange(width)]
        return pa.array(np.ascontiguousarray(raw).view(kind).reshape(-1))

    return read


def _boolean(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
    at = state.at[rows]
    state.at[rows] = at + 1
    return pa.array(state.buffer[at] != 0) if path in state.wanted else None


def _text(arrow: pa.DataType) -> Reader:
    def read(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
        length = _varint(state, rows)
        at = state.at[rows]
        # Lengths within the record: else those of a batch could say that it has gigabytes.
        if (length < 0).any() or (length > state.ends[rows] - at).any():
            raise _Misfit
        state.at[rows] = at + length
        return _gathered(state.buffer, at, length, arrow) if path in state.wanted else None

    return read


def _gathered(
    buffer: npt.NDArray[np.uint8], at: Places, length: Places, arrow: pa.DataType
) -> pa.Array:
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
    total = int(ends[-1])
    if total >= 2**31:
        raise _Misfit
    places = np.repeat(at - ends[:-1], length) + np.arange(total, dtype=np.int64)
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(buffer[places])]
    column = pa.Array.from_buffers(arrow, len(at), buffers)
    if arrow == pa.string():
        column.validate(full=True)
    return column


def _null(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
    return pa.nulls(len(rows)) if path in state.wanted else None


def _enum(symbols: Sequence[str]) -> Reader:
    names = pa.array(list(symbols), pa.string())

    def read(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
        value = _varint(state, rows)
        return names.take(pa.array(value)) if path in state.wanted else None

    return read


def _record(fields: Sequence[tuple[str, Reader]]) -> Reader:
    def read(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
        for name, reader in fields:
            inner = (*path, name)
            column = reader(state, rows, inner)
            if column is not None:
                state.found[inner] = column
        return pa.array(np.ones(len(rows), bool)) if path in state.wanted else None

    return read


def _optional(branches: Sequence[Any], named: dict[str, Any]) -> Reader:
    if len(branches) == 1:
        return _single(_reader(branches[0], named))
    if len(branches) != 2 or "null" not in branches:
        raise _Misfit
    value_branch = 1 - list(branches).index("null")
    inner = _reader(branches[value_branch], named)

    def read(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
        branch = _varint(state, rows)
        if branch.size and (branch.min() < 0 or branch.max() > 1):
            raise _Misfit
        present = branch == value_branch
        if present.all():
            return inner(state, rows, path)
        if not present.any() and not any(p[: len(path)] == path for p in state.wanted):
            return None
        before = set(state.found)
        column = inner(state, rows[present], path)
        spread = _spread(present)
        for added in set(state.found) - before:
            state.found[added] = state.found[added].take(spread)
        return None if column is None else column.take(spread)

    return read


def _single(inner: Reader) -> Reader:
    def read(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
        if (_varint(state, rows) != 0).any():
            raise _Misfit
        return inner(state, rows, path)

    return read


def _spread(present: npt.NDArray[np.bool_]) -> pa.Array:
    """Return places that lay the values of present records out over all of them."""
    return pa.array(np.cumsum(present) - 1, pa.int64(), mask=~present)


_PRIMITIVES: Mapping[str, Reader] = {
    "null": _null,
    "boolean": _boolean,
    "int": _long,
    "long": _long,
    "float": _float("<f4"),
    "double": _float("<f8"),
    "string": _text(pa.string()),
    "bytes": _text(pa.binary()),
}
