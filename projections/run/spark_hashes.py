"""Spark's hash of a row in this process: by it slices of a build are told apart in either engine.

`xxhash64(a, b)` is XXH64 of `b` with the hash of `a` as its seed, that of the first one is 42.
Whole numbers below 64 bits are hashed by a form of their own; NULL leaves the seed as it is.
Source: Spark's `XXH64`, and the description of XXH64 (github.com/Cyan4973/xxHash).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from projections.run.functions import with_parameters
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.words.catalog import Column
from projections.sql.words.decimals import digits_of

_P1, _P2, _P3, _P4, _P5 = map(
    np.uint64,
    (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    ),
)
_SEED = 42
_STRIPE, _WORD, _HALF = 32, 8, 4
_LONG_DIGITS = 18
"""Decimals of more digits are hashed as bytes, by Spark alone."""
_SMALL = ("TINYINT", "SMALLINT", "INT")

_Hashes = npt.NDArray[np.uint64]
_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.int64]


def register_hashes(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the functions known that `hash_sql` calls."""
    for name, kind, hashed in (
        ("int", "INTEGER", _of_ints),
        ("long", "BIGINT", _of_longs),
        ("text", "VARCHAR", _of_texts),
    ):
        connection.create_function(
            f"spark_hash_{name}",
            _seeded(hashed),
            [kind, "BIGINT"],
            "BIGINT",
            type=PythonUDFType.ARROW,
            null_handling=FunctionNullHandling.SPECIAL,
        )


def is_hashed(column: Column) -> bool:
    """Say whether the values of a column have a hash here."""
    digits = digits_of(column.type) if column.type.startswith("DECIMAL") else None
    small = digits is not None and digits[0] <= _LONG_DIGITS
    return small or column.type in ("BOOLEAN", "DATE", "BIGINT", "TIMESTAMP", "STRING", *_SMALL)


def hash_sql(columns: Sequence[Column]) -> str:
    """Write Spark's `xxhash64` of columns that are all `is_hashed`, in DuckDB's words."""
    text = f"CAST({_SEED} AS BIGINT)"
    for column in columns:
        text = f"{_hashed(DuckText().name(column.name), column.type)}, {text})"
    return text


def _hashed(name: str, kind: str) -> str:
    """Write the beginning of the call that hashes a column, up to its seed."""
    match kind:
        case "BOOLEAN" | "TINYINT" | "SMALLINT" | "INT":
            return f"spark_hash_int(CAST({name} AS INTEGER)"
        case "DATE":
            return f"spark_hash_int(CAST({name} - DATE '1970-01-01' AS INTEGER)"
        case "BIGINT":
            return f"spark_hash_long({name}"
        case "TIMESTAMP":
            return f"spark_hash_long(epoch_us({name})"
        case "STRING":
            return f"spark_hash_text({name}"
        case _:
            return f"spark_hash_long(CAST(replace(CAST({name} AS VARCHAR), '.', '') AS BIGINT)"


def _seeded(hashed: Callable[[pa.Array, _Hashes], _Hashes]) -> Callable[..., pa.Array]:
    def computed(values: pa.Array, seeds: pa.Array) -> pa.Array:
        values, seeds = _whole(values), _whole(seeds)
        seed = seeds.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
        if len(seed) == 1 < len(values):
            seed = np.repeat(seed, len(values))
        with np.errstate(over="ignore"):
            found = hashed(values, seed).view(np.int64)
        if values.null_count:
            known = values.is_valid().to_numpy(zero_copy_only=False)
            found = np.where(known, found, seed.view(np.int64))
        return pa.array(found)

    return with_parameters(computed, 2)


def _whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _of_ints(values: pa.Array, seed: _Hashes) -> _Hashes:
    small = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
    word = small.view(np.uint32).astype(np.uint64)
    hashes = seed + _P5 + np.uint64(_HALF)
    hashes ^= word * _P1
    return _ended(_turned(hashes, 23) * _P2 + _P3)


def _of_longs(values: pa.Array, seed: _Hashes) -> _Hashes:
    words = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    return _ended(_with_word(seed + _P5 + np.uint64(_WORD), words))


def _of_texts(values: pa.Array, seed: _Hashes) -> _Hashes:
    """Hash the bytes of texts: stripes of 32, words of 8, half of one, and single bytes."""
    texts = values.fill_null("").cast(pa.large_binary())
    _, bounds, content = texts.buffers()
    starts = np.frombuffer(bounds, np.int64)[texts.offset :][: len(texts) + 1]
    known = np.frombuffer(content, np.uint8) if content is not None else np.empty(0, np.uint8)
    data = np.concatenate([known, np.zeros(_WORD, np.uint8)])
    at, length = starts[:-1].copy(), np.diff(starts)
    hashes = _of_stripes(data, at, length, seed)
    hashes = hashes + length.astype(np.uint64)
    at += length // _STRIPE * _STRIPE
    words = length % _STRIPE // _WORD
    for number in range(int(words.max(initial=0))):
        rows = words > number
        hashes[rows] = _with_word(hashes[rows], _word(data, at[rows] + number * _WORD))
    at += words * _WORD
    rows = length % _WORD >= _HALF
    half = _word(data, at[rows]) & np.uint64(0xFFFFFFFF)
    hashes[rows] = _turned(hashes[rows] ^ (half * _P1), 23) * _P2 + _P3
    at[rows] += _HALF
    left = length % _HALF
    for number in range(int(left.max(initial=0))):
        rows = left > number
        single = data[at[rows] + number].astype(np.uint64)
        hashes[rows] = _turned(hashes[rows] ^ (single * _P5), 11) * _P1
    return _ended(hashes)


def _of_stripes(data: _Bytes, at: _Places, length: _Places, seed: _Hashes) -> _Hashes:
    """Return what texts begin with: the seed, or four lanes over the stripes of a longer one."""
    hashes = seed + _P5
    (long,) = np.nonzero(length >= _STRIPE)
    if not len(long):
        return hashes
    own = seed[long]
    lanes = [own + _P1 + _P2, own + _P2, own.copy(), own - _P1]
    stripes, begin = length[long] // _STRIPE, at[long]
    for number in range(int(stripes.max())):
        rows = stripes > number
        for place, lane in enumerate(lanes):
            word = _word(data, begin[rows] + number * _STRIPE + place * _WORD)
            lane[rows] = _turned(lane[rows] + word * _P2, 31) * _P1
    found = sum(
        (_turned(lane, turn) for lane, turn in zip(lanes[1:], (7, 12, 18), strict=True)),
        _turned(lanes[0], 1),
    )
    for lane in lanes:
        found = (found ^ (_turned(lane * _P2, 31) * _P1)) * _P1 + _P4
    hashes[long] = found
    return hashes


def _with_word(hashes: _Hashes, words: _Hashes) -> _Hashes:
    hashes = hashes ^ (_turned(words * _P2, 31) * _P1)
    return _turned(hashes, 27) * _P1 + _P4


def _word(data: _Bytes, at: _Places) -> _Hashes:
    """Return the eight bytes at each place as a number; behind the last text are some of 0."""
    gathered: _Bytes = data[at[:, None] + np.arange(_WORD)]
    return gathered.reshape(-1).view("<u8").astype(np.uint64, copy=False)


def _turned(values: _Hashes, bits: int) -> _Hashes:
    return (values << np.uint64(bits)) | (values >> np.uint64(64 - bits))


def _ended(hashes: _Hashes) -> _Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))
