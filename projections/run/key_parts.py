"""Work over many rows, done for one part of their keys after another.

Tables of DuckDB go to disk when its memory is full. What is sorted, and what a function over rows
is given of them, has to be in memory at once: of all rows of a long history that is too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import duckdb

from kernel.errors import is_no_room
from projections.run.database import TEXT

PART_ROWS = 500_000
"""Of more rows one part is worked on after another."""
MOST_PARTS = 256
"""Into so many parts keys are cut where memory does not suffice for fewer."""
_MORE = 4
_HASHES = 2**64
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class KeyPart:
    """The keys of one range of hashes; those of the parts before it are smaller."""

    number: int
    of: int

    @property
    def hashes(self) -> tuple[int, int]:
        """The least and the greatest hash of its keys."""
        first, end = (_HASHES * number // self.of for number in (self.number, self.number + 1))
        return first, end - 1

    def where(self, keys: str) -> str:
        """Write, behind a relation, that its rows have keys of this part; `keys` are columns."""
        if self.of == 1:
            return ""
        first, last = self.hashes
        return f" WHERE hash({keys}) BETWEEN {first}::UBIGINT AND {last}::UBIGINT"


WHOLE = KeyPart(0, 1)
"""All keys."""


def listed_keys(keys: Sequence[str]) -> str:
    """Write names of columns as `KeyPart.where` takes them."""
    return ", ".join(map(TEXT.name, keys))


def by_parts(rows: int, work: Callable[[Iterator[KeyPart]], _Result]) -> _Result:
    """Have `work` go through the parts that so many rows are cut into, in the order of hashes.

    It begins again, with more parts, where one did not fit into memory. Raises DuckDB's own error
    where that is so of the smallest ones too, as of a single key with more rows than fit.
    """
    count = 1 + rows // PART_ROWS
    while True:
        try:
            return work(KeyPart(number, count) for number in range(count))
        except duckdb.OutOfMemoryException as error:
            if count >= MOST_PARTS or is_no_room(error):
                raise
            count = min(MOST_PARTS, count * _MORE)
