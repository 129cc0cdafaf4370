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
_BYTES = np.arange(256, dtype=np.int64)
_OF_ONE_BYTE = (_BYTES >> 1) ^ -(_BYTES & 1)
"""The zigzag number that each byte is by itself; of those that go on it says nothing."""


class _Misfit(Exception):
    """The bytes are not what the schema says, or not what this reader can read."""


@dataclass(slots=True)
class _Bytes:
    """All records in one buffer, where each is read next and ends. `found` takes the columns.

    `all_rows` are the places of all of them. Who reads these very places, as nearly every field
    does, takes arrays as they are, where some rows have to be picked and put back.
    """

    buffer: npt.NDArray[np.uint8]
    at: Places
    ends: Places
    wanted: frozenset[Path]
    all_rows: Places
    found: dict[Path, pa.Array] = field(default_factory=dict)

    def places(self, rows: Places) -> Places:
        """Return where some records are read next; not to be changed."""
        return self.at if rows is self.all_rows else self.at[rows]

    def move(self, rows: Places, at: Places) -> None:
        """Have some records be read next at these places, which are given away."""
        if rows is self.all_rows:
            self.at = at
        else:
            self.at[rows] = at


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
    rows = np.arange(len(binary), dtype=np.int64)
    state = _Bytes(buffer, offsets[:-1] + HEADER_BYTES, offsets[1:], wanted, rows)
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
    at = state.places(rows)
    first = state.buffer[at]
    value = _OF_ONE_BYTE[first]
    at = at + 1
    open_ = np.flatnonzero(first & 0x80)
    if open_.size and open_.size == len(first):
        value, at = _long_varint(state.buffer, first, at)
    elif open_.size:
        value[open_], at[open_] = _long_varint(state.buffer, first[open_], at[open_])
    state.move(rows, at)
    return value


def _long_varint(
    buffer: npt.NDArray[np.uint8], first: npt.NDArray[np.uint8], at: Places
) -> tuple[Places, Places]:
    """Return numbers of which each goes on behind its `first` byte, and where they end.

    Numbers of one field are mostly of one length: while all of them go on none is picked out.
    """
    value, at = (first & 0x7F).astype(np.uint64), at.copy()
    left: Places | None = None
    for shift in range(7, 7 * _LONGEST_VARINT, 7):
        byte = buffer[at if left is None else at[left]]
        bits = (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        goes_on = np.flatnonzero(byte & 0x80)
        if left is None:
            value |= bits
            at += 1
            left = None if goes_on.size == len(byte) else goes_on
        else:
            value[left] |= bits
            at[left] += 1
            left = left[goes_on]
        if left is not None and not left.size:
            sign = ~(value & np.uint64(1)) + np.uint64(1)
            return ((value >> np.uint64(1)) ^ sign).astype(np.int64), at
    raise _Misfit


def _long(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
    value = _varint(state, rows)
    return pa.array(value) if path in state.wanted else None


def _float(kind: str) -> Reader:
    width = np.dtype(kind).itemsize

    def read(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
        at = state.places(rows)
        state.move(rows, at + width)
        if path not in state.wanted:
            return None
        return pa.array(_pieces(state.buffer, at, width).view(kind))

    return read


def _boolean(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
    at = state.places(rows)
    state.move(rows, at + 1)
    return pa.array(state.buffer[at] != 0) if path in state.wanted else None


def _text(arrow: pa.DataType) -> Reader:
    def read(state: _Bytes, rows: Places, path: Path) -> pa.Array | None:
        length = _varint(state, rows)
        at = state.places(rows)
        left = (state.ends if rows is state.all_rows else state.ends[rows]) - at
        # Lengths within the record: else those of a batch could say that it has gigabytes.
        if (length < 0).any() or (length > left).any():
            raise _Misfit
        state.move(rows, at + length)
        return _gathered(state.buffer, at, length, arrow) if path in state.wanted else None

    return read


def _pieces(buffer: npt.NDArray[np.uint8], at: Places, width: int) -> npt.NDArray[np.void]:
    """Return the `width` bytes that begin at each place, behind one another."""
    kind = np.dtype(f"V{width}")
    if not len(at):
        return np.empty(0, kind)
    if len(buffer) < width:
        raise _Misfit
    return np.ndarray((len(buffer) - width + 1,), kind, buffer, strides=(1,))[at]


def _gathered(
    buffer: npt.NDArray[np.uint8], at: Places, length: Places, arrow: pa.DataType
) -> pa.Array:
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(length)])
    total = int(ends[-1])
    if total >= 2**31:
        raise _Misfit
    width = int(length[0]) if len(length) else 0
    if width and (length == width).all():
        # As texts of one column often are: copied as a whole each, and not byte by byte.
        found = _pieces(buffer, at, width).view(np.uint8)
    else:
        found = buffer[np.repeat(at - ends[:-1], length) + np.arange(total, dtype=np.int64)]
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(found)]
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
