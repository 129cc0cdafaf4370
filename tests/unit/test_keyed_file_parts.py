"""Keys are found in the files of a version, however many and large they are."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from projections.serve import keyed_rows
from projections.serve.keyed_rows import FilePart, HeldRows
from projections.serve.row_values import Key, comparable, place

MOMENT = pa.timestamp("us", "UTC")
KEYS: dict[pa.DataType, list[object]] = {
    pa.int64(): [-5, 0, 3, 2**40],
    pa.string(): ["", "a", "aa", "é", "\U0001f600"],
    pa.float64(): [float("-inf"), -0.5, 1.0, float("nan")],
    MOMENT: [datetime(1969, 1, 1, tzinfo=UTC), datetime(2013, 1, 1, 0, 0, 1, tzinfo=UTC)],
}


def held(parts: list[pa.Table], key: tuple[str, ...]) -> HeldRows:
    files = {str(number): FilePart.of(rows, key) for number, rows in enumerate(parts)}
    return HeldRows(schema=parts[0].schema, key=key, parts=files)


def key_to(values: list[pa.Scalar]) -> Key:
    places = tuple(place(comparable(pa.repeat(value, 1))[0].as_py()) for value in values)
    return Key(values=tuple(values), places=places)


@pytest.mark.parametrize("listed", [0, 2, 2_000])
@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_every_key_is_found_and_no_other(
    kind: pa.DataType, listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_rows, "MOST_LISTED", listed)
    dice = random.Random(1)
    pairs = [(value, number) for value in KEYS[kind] for number in range(6)]
    dice.shuffle(pairs)
    shape = pa.schema([("a", kind), ("b", pa.int64()), ("n", pa.int64())])
    there, away = pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]
    rows = [{"a": a, "b": b, "n": n} for n, (a, b) in enumerate(there)]
    cut = [rows[:1], rows[1:4], [], rows[4:]]
    found = held([pa.Table.from_pylist(part, shape) for part in cut], ("a", "b"))
    for n, (a, b) in enumerate(there):
        assert found.find([_key(a, b, kind)])["n"].to_pylist() == [n]
    assert found.find([_key(a, b, kind) for a, b in away]).num_rows == 0


def _key(a: object, b: int, kind: pa.DataType) -> Key:
    return key_to([pa.scalar(a, kind), pa.scalar(b, pa.int64())])


def test_a_search_asks_no_small_file_for_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dozens of them may have any key: step by step that took half a millisecond."""
    files = [pa.table({"id": pa.array(range(n, 3_000, 30), pa.int64())}) for n in range(30)]
    found, asked = held(files, ("id",)), [0]

    def counted(value: object) -> object:
        asked[0] += 1
        return value

    key = key_to([pa.scalar(1_234, pa.int64())])
    monkeypatch.setattr(keyed_rows, "place", counted)
    assert found.find([key])["id"].to_pylist() == [1_234]
    assert asked == [0]


def test_listed_keys_count_as_memory() -> None:
    rows = pa.table({"id": pa.array(range(1_000), pa.int64())})
    part = FilePart.of(rows, ("id",))
    assert part.nbytes > rows.nbytes * 2 + 100 * rows.num_rows
