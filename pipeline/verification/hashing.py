"""Rows of a lake table as hashes: by groups, by keys, by columns; here or by executors.

A `LakeState` is a table with what changed since laid over it, newest wins. What is asked of it adds
up over parts of its rows, so that nobody has to see all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.verification.lake_state import LakeState
from pipeline.verification.large_states import LargeStates
from pipeline.verification.state_query import StateQuery, is_below
from schemas.key_ranges import WHOLE, Bound, KeyColumn, KeyRange
from schemas.row_hash import hash_text


@dataclass(slots=True)
class LakeRows:
    """Hashes rows of a state over `columns` (sorted as the source sorts them).

    With `large` executors hash the files of a large state.
    """

    state: LakeState
    columns: tuple[str, ...]
    ordered: tuple[KeyColumn, ...] | None
    large: LargeStates | None = None
    _all: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._all = tuple(dict.fromkeys((*self.state.key, *self.columns)))

    def group_hashes(
        self, bounds: Sequence[Bound], buckets: int, *, within: KeyRange = WHOLE
    ) -> dict[int, tuple[int, str]]:
        """Return (rows, hash) of each group that has rows; groups as the source numbers them."""
        group = self._group(bounds, buckets)
        found = self._run(
            f"SELECT g, count(*), {_half(1)}, {_half(17)} FROM (SELECT {group} AS g,"
            f" md5({self.state.cells(self.columns)}) AS h FROM state) GROUP BY g",
            within,
        )
        sums: dict[int, tuple[int, int, int]] = {}
        for number, *counted in found:
            held = sums.get(number, (0, 0, 0))
            rows, high, low = (a + b for a, b in zip(held, counted, strict=True))
            sums[number] = rows, high, low
        return {g: (rows, hash_text(high, low)) for g, (rows, high, low) in sums.items()}

    def row_hashes(
        self,
        *,
        within: KeyRange,
        group: tuple[Sequence[Bound], int, int] | None = None,
        keys: Sequence[str] | None = None,
    ) -> Iterator[tuple[str, str]]:
        """Yield (key, hash of the row) of a range, of one group, of some keys; unordered.

        `group` is (bounds, buckets, number).
        """
        where = "true"
        if group is not None:
            bounds, buckets, number = group
            where = f"{self._group(bounds, buckets)} = {number}"
        query = (
            f"SELECT {self.state.cells(self.state.key)} AS k, md5({self.state.cells(self.columns)})"
            f" FROM state WHERE {where}"
        )
        yield from self._run(query, within, keys)

    def column_hashes(
        self, *, within: KeyRange, keys: Sequence[str]
    ) -> Mapping[str, tuple[str, ...]]:
        """Return, by key, the hash of each column's cell."""
        cells = ", ".join(f"md5({self.state.cell(name)})" for name in self.columns)
        query = f"SELECT {self.state.cells(self.state.key)} AS k, [{cells}] FROM state"
        return {k: tuple(hashes) for k, hashes in self._run(query, within, keys)}

    def _run(
        self, sql: str, within: KeyRange, keys: Sequence[str] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        query = StateQuery(
            state=self.state,
            columns=self._all,
            ordered=self.ordered,
            sql=sql,
            within=within,
            keys=keys,
        )
        answers = None if self.large is None else self.large.answers(query)
        if answers is None:
            yield from query.rows()
        for answer in answers or ():
            yield from zip(*(column.to_pylist() for column in answer.columns), strict=True)

    def _group(self, bounds: Sequence[Bound], buckets: int) -> str:
        if bounds:
            return self._bisected(bounds, 0, len(bounds))
        if buckets == 1:
            return "0"
        return (
            f"('0x' || substr(md5({self.state.cells(self.state.key)}), 1, 8))::BIGINT % {buckets}"
        )

    def _bisected(self, bounds: Sequence[Bound], first: int, last: int) -> str:
        if first == last:
            return str(first)
        middle = (first + last) // 2
        below = self._bisected(bounds, first, middle)
        above = self._bisected(bounds, middle + 1, last)
        return f"CASE WHEN {is_below(bounds[middle], self.ordered)} THEN {below} ELSE {above} END"


def _half(start: int) -> str:
    return f"(sum(('0x' || substr(h, {start}, 16))::UBIGINT) % {2**64})::UBIGINT"
