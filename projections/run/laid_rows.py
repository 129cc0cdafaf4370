"""Rows of a plan's inputs in files of the local disk, laid apart by the slice that needs them.

Whoever computes slices one after the other, each from its own rows, would read all rows for each of
them. Here they are read once, piece by piece; a slice then reads its own files. What is here lies
in the folder that this process spills into: it is disposable, and ends with the process.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from lake import storage
from lake.spill_folders import spill_folder
from projections.run.database import TEXT
from projections.sql.operators.tree import Node, Scan
from projections.sql.rendering.batch import Parts, listed
from schemas.identifiers import text_literal

MOST_FILES = 96
"""Files that DuckDB writes at a time, and keeps open: of more slices some share one."""
_HELD_BYTES, _UNPACKED = 32 * 2**20, 4
"""So much a thread holds of what it lays apart; in memory rows take so many times their files."""
_LEAST_HELD, _MOST_HELD = 8_192, 524_288
_SLICE, _FILE = "penstock__slice", "penstock__file"
_KEPT = frozenset(
    {"boolean", "tinyint", "smallint", "integer", "bigint", "float", "double"}
    | {"varchar", "blob", "date", "timestamp", "decimal", "list", "struct", "map"}
)
"""DuckDB's types that come back from Parquet as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPiece:
    """Rows of a node that are laid apart at once; `rows` and `bytes` of files are read for them.

    They are those of some files, `paths` of the `table`-th of `scan`; without one all of the node.
    """

    node: Node
    scan: Scan | None = None
    table: int = 0
    paths: tuple[str, ...] = ()
    rows: int
    bytes: int


class LaidRows:
    """The rows of some nodes, by slice. They take `bytes`; `rows` of `pieces` were read for them.

    `places`: for each node an expression of DuckDB that numbers the slice of a row, from 0 to
    `slices`. Rows of slices before `first` are left out.
    """

    def __init__(self, places: Mapping[Node, str], slices: int, *, first: int = 0) -> None:
        self.slices, self.first = slices, first
        self.rows = self.bytes = self.pieces = 0
        self._places = places
        self._together = -(-slices // MOST_FILES)
        self._folder = tempfile.TemporaryDirectory(prefix="laid-", dir=spill_folder())
        self._columns: dict[Node, Mapping[str, str]] = {}
        self._files: defaultdict[tuple[Node, int], list[Path]] = defaultdict(list)

    @property
    def place(self) -> str:
        """The folder that holds them."""
        return self._folder.name

    @property
    def free_bytes(self) -> int:
        """How much more the disk behind them takes."""
        return storage.free_bytes(self.place) or 0

    def add(self, connection: duckdb.DuckDBPyConnection, piece: InputPiece, query: str) -> bool:
        """Lay the rows that a query gives of a piece apart; False where files would change them.

        Raises what DuckDB does: also an error of files where their disk is full.
        """
        found = connection.sql(query)
        if not all(map(_is_kept, found.types)):
            return False
        kinds = zip(found.columns, map(str, found.types), strict=True)
        self._columns[piece.node] = dict(kinds)
        folder = Path(self.place, str(self.pieces))
        self.pieces += 1
        connection.execute(f"SET partitioned_write_flush_threshold = {_held_rows(piece)}")
        numbered = f"SELECT *, {self._places[piece.node]} AS {_SLICE} FROM ({query}) AS n"
        connection.execute(
            f"COPY (SELECT *, {_SLICE} // {self._together} AS {_FILE} FROM ({numbered}) AS p "
            f"WHERE {_SLICE} >= {self.first}) TO {text_literal(str(folder))} "
            f"(FORMAT parquet, COMPRESSION lz4, PARTITION_BY ({_FILE}))"
        )
        for path in folder.glob(f"{_FILE}=*/*"):
            number = int(path.parent.name.partition("=")[2])
            self._files[piece.node, number].append(path)
            self.bytes += path.stat().st_size
        self.rows += piece.rows
        return True

    def parts(self, number: int, many: int) -> Parts:
        """Return how the rows of so many slices are read in place of being computed."""
        return {node: self._read(node, number, number + many - 1) for node in self._places}

    def drop(self, *, before: int) -> None:
        """Remove what slices before one needed alone."""
        for (node, file), paths in [*self._files.items()]:
            if (file + 1) * self._together <= before:
                for path in paths:
                    path.unlink(missing_ok=True)
                del self._files[node, file]

    def close(self) -> None:
        """Remove all of it."""
        self._folder.cleanup()

    def _read(self, node: Node, first: int, last: int) -> Callable[[str], str]:
        numbers = range(first // self._together, last // self._together + 1)
        files = [path for each in numbers for path in self._files.get((node, each), [])]
        text = _reading(files, self._columns[node], first, last)
        return lambda _: text


def _held_rows(piece: InputPiece) -> int:
    """Return how many rows a thread is to hold before it writes them: long ones are fewer."""
    width = _UNPACKED * piece.bytes // max(piece.rows, 1)
    return max(_LEAST_HELD, min(_MOST_HELD, _HELD_BYTES // max(width, 1)))


def _reading(files: Sequence[Path], columns: Mapping[str, str], first: int, last: int) -> str:
    if not files:
        nothing = (f"CAST(NULL AS {kind}) AS {TEXT.name(name)}" for name, kind in columns.items())
        return f"SELECT {', '.join(nothing)} WHERE false"
    named = ", ".join(text_literal(str(path)) for path in files)
    return (
        f"SELECT {listed(TEXT, [*columns])} FROM read_parquet([{named}], hive_partitioning = false)"
        f" WHERE {_SLICE} BETWEEN {first} AND {last}"
    )


def _is_kept(kind: Any) -> bool:
    """Say whether files keep values of one of DuckDB's types, and of what it consists of."""
    inner = kind.children if kind.id in ("list", "struct", "map") else []
    return kind.id in _KEPT and all(_is_kept(each) for _, each in inner)
