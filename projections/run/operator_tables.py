"""The tables of operators with state, in DuckDB, and how their rows with weights are added up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from projections.run.database import TEXT, Database
from projections.run.key_parts import WHOLE, KeyPart, by_parts
from projections.run.sorted_runs import SortedRuns, as_they_are
from projections.sql.operators.shape import ORDER
from projections.sql.operators.tree import Node
from projections.sql.words.catalog import Column
from projections.sql.words.decimals import FLOATING

SMALL_ROWS = 20_000
"""So many rows are read over sooner than they are looked through for pairs that cancel out."""
RUN_ROWS = 100_000
"""So many rows are looked through; of more those that a round needs are found by their keys."""
NEGATIVE = "a row is taken back that was never given out"
_PLAIN = re.compile(
    r"(BOOLEAN|(TINY|SMALL|BIG)INT|INTEGER|FLOAT|DOUBLE|VARCHAR|BLOB|DATE|TIMESTAMP"
    r"|DECIMAL\(\d+,\d+\))(\[\])*"
)
"""Types of DuckDB that come back from Arrow as they were."""
_FLOATS = ("FLOAT", "DOUBLE")


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of columns as it is written, and as rows are told apart by them.

    The two zeros of a floating column are equal, and not the same value.
    """

    columns: str
    apart: str

    @classmethod
    def of(cls, node: Node, *more: str) -> Listed:
        """Return a node's columns, and `more`."""
        return cls.of_columns(node.columns, *more)

    @classmethod
    def of_columns(cls, found: Sequence[Column], *more: str) -> Listed:
        """Return some columns, and `more`."""
        columns = ", ".join([*(TEXT.name(each.name) for each in found), *more])
        floating = (TEXT.name(each.name) for each in found if each.type in FLOATING)
        zeros = "".join(f", ({name} = 0 AND signbit({name}))" for name in floating)
        return cls(columns, f"{columns}{zeros}")

    def __str__(self) -> str:
        return self.columns


def all_columns(node: Node) -> Listed:
    """Write a node's columns and those of the order."""
    return Listed.of(node, *ORDER)


def consolidated(rows: str, columns: Listed) -> str:
    """Add up the weights of rows that are the same, and leave out those that cancel each other."""
    return (
        f"SELECT {columns}, CAST(sum(_w) AS BIGINT) AS _w FROM ({rows}) AS c "
        f"GROUP BY {columns.apart} HAVING sum(_w) <> 0"
    )


def bag(rows: str, columns: Listed) -> str:
    """Write each row as often as its weight says.

    A weight below zero is an error: something was taken back that was never given out.
    """
    counted = consolidated(rows, columns)
    times = f"CASE WHEN _w < 0 THEN CAST(error('{NEGATIVE}') AS BIGINT) ELSE _w END"
    return f"SELECT {columns} FROM (SELECT {columns}, unnest(range({times})) FROM ({counted}) AS b)"


@dataclass(slots=True)
class _Stored:
    """A table for all rounds: of which `rows` are in it, others in `runs` where it may have some.

    `added` are those that came since all were `settled`. `keys` are columns by which rows are
    looked for, with their types.
    """

    runs: SortedRuns | None
    keys: dict[str, str]
    rows: int = 0
    added: int = 0
    settled: int = 0


class OperatorTables:
    """The tables of one operator, under names with its number."""

    def __init__(self, database: Database, number: int) -> None:
        self._database = database
        self._connection = database.connection
        self._number = number
        self._stored: dict[str, _Stored] = {}
        self._filled: dict[str, int] = {}
        self._alike: dict[tuple[str, str], bool] = {}

    def name(self, what: str) -> str:
        """Return the name of one of its tables."""
        return f"{what}_{self._number}"

    def fresh(self, what: str, query: str) -> None:
        """Make a table for this round, in the place of the one of the round before.

        That is emptied: a table that is made anew changes the catalog, and all plans are made anew.
        """
        table, kept = self.name(what), self._database.kept
        if what not in self._filled:
            made = f"CREATE TEMP TABLE {table} AS {query}"
            found = self._connection.execute(made).fetchone()
            self._filled[what] = 0 if found is None else int(found[0])
            return
        if self._filled[what]:
            kept.execute(f"TRUNCATE {table}")
        self._filled[what] = kept.execute(f"INSERT INTO {table} {query}")

    def fresh_by_parts(
        self, what: str, keys: str, rows: int, query: Callable[[KeyPart], str]
    ) -> None:
        """Make a table for this round of one part of the keys of so many rows after another.

        `keys` are those columns, as SQL; without any it is made at once.
        """
        if not keys:
            self.fresh(what, query(WHOLE))
            return

        def fill(parts: Iterator[KeyPart]) -> None:
            for part in parts:
                text = query(part)
                if part.number == 0:
                    self.fresh(what, text)
                    continue
                more = f"INSERT INTO {self.name(what)} {text}"
                self._filled[what] += self._database.kept.execute(more)

        by_parts(rows, fill)

    def count(self, *what: str) -> int:
        """Return how many rows this round's tables have."""
        return sum(map(self._filled.__getitem__, what))

    def stored(self, what: str, query: str, keys: Sequence[str] = ()) -> None:
        """Make an empty table for all rounds, in the shape of a query's result.

        `keys` are the columns by which its rows are looked for; without any all are looked through.
        """
        table = self.name(what)
        self._connection.execute(f"CREATE TABLE {table} AS SELECT * FROM ({query}) AS q LIMIT 0")
        types = self.types(f"FROM {table}")
        found = {key: types[key] for key in keys}
        suits = all(map(_PLAIN.fullmatch, types.values())) and {*_FLOATS}.isdisjoint(found.values())
        columns, by = (", ".join(map(TEXT.name, each)) for each in (types, found))
        runs = SortedRuns(self._database, f"near_{table}", columns, by) if keys and suits else None
        self._stored[what] = _Stored(runs, found)

    def is_sorted(self, what: str) -> bool:
        """Say whether many of the rows stored are found by their keys, not looked through."""
        return self._stored[what].runs is not None

    def near(
        self, what: str, rows: str, keys: Sequence[str], *, most_bytes: int | None = None
    ) -> str:
        """Return a relation with the stored rows whose keys are those of some rows, and others.

        `rows` is a query with the `keys`, in the order of those that the table was stored by.
        Raises `BeyondThisProcess` where those that are found take more than `most_bytes`.
        """
        stored, table = self._stored[what], self.name(what)
        if stored.runs is None or not stored.runs.count:
            return table
        listed = ", ".join(map(TEXT.name, keys))
        if (what, rows) not in self._alike:
            types = self.types(f"SELECT {listed} FROM ({rows}) AS k")
            self._alike[what, rows] = [*types.values()] == [*stored.keys.values()]
        stored.runs.find(
            f"hash({listed}) FROM ({rows}) AS k",
            all_rows=not self._alike[what, rows],
            most_bytes=most_bytes,
        )
        return f"(FROM {table} UNION ALL {stored.runs.rows})"

    def add(self, what: str, rows: str) -> None:
        """Add rows to what is stored."""
        count = self._database.kept.execute(f"INSERT INTO {self.name(what)} {rows}")
        self._stored[what].rows += count
        self._stored[what].added += count

    def compact(self, what: str, columns: Listed | None = None) -> None:
        """Drop rows that came and went, once as many were added as there were.

        So what is read over stays in proportion to what there is, and so does the work for that.
        Rows that only come have no `columns` by which they are told apart. Many are sorted.
        """
        stored = self._stored[what]
        runs, rows = stored.runs, f"FROM {self.name(what)}"
        if columns is not None and stored.added > max(SMALL_ROWS, stored.settled):
            if runs is not None and (runs.count or stored.rows > RUN_ROWS):
                runs.settle(rows, stored.rows, lambda each: consolidated(each, columns))
                self._emptied(what)
            else:
                self._settle(what, rows, columns)
            stored.settled = stored.rows + (runs.count if runs is not None else 0)
            stored.added = 0
        elif runs is not None and stored.rows > RUN_ROWS:
            settled = as_they_are if columns is None else partial(consolidated, columns=columns)
            runs.add(rows, stored.rows, settled)
            self._emptied(what)

    def _settle(self, what: str, rows: str, columns: Listed) -> None:
        settled, kept = f"{what}_settled", self._database.kept
        self.fresh(settled, consolidated(rows, columns))
        self._emptied(what)
        self._stored[what].rows = kept.execute(
            f"INSERT INTO {self.name(what)} FROM {self.name(settled)}"
        )
        self.fresh(settled, f"FROM {self.name(settled)} LIMIT 0")

    def _emptied(self, what: str) -> None:
        self._database.kept.execute(f"TRUNCATE {self.name(what)}")
        self._stored[what].rows = 0

    def types(self, query: str) -> dict[str, str]:
        """Return DuckDB's types of the columns of a query, by name."""
        found = self._connection.execute(f"DESCRIBE {query}").fetchall()
        return {str(row[0]): str(row[1]) for row in found}

    def sum(self, what: str) -> int:
        """Return the weights of a table, added up."""
        query = f"SELECT coalesce(sum(_w), 0) FROM {self.name(what)}"
        return int(self._connection.execute(query).fetchall()[0][0])

    def empty(self, what: str) -> bool:
        """Say whether this round's table has no row."""
        return not self._filled[what]
