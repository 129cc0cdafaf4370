"""The tables of operators with state, in DuckDB, and how their rows with weights are added up."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from projections.run.database import TEXT, Database
from projections.sql.batch import names
from projections.sql.decimals import FLOATING
from projections.sql.shape import ORDER
from projections.sql.tree import Node

SMALL_ROWS = 20_000
"""So many rows are read over sooner than they are looked through for pairs that cancel out."""
NEGATIVE = "a row is taken back that was never given out"


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
        columns = ", ".join([*map(TEXT.name, names(node)), *more])
        floating = (TEXT.name(each.name) for each in node.columns if each.type in FLOATING)
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


class OperatorTables:
    """The tables of one operator, under names with its number."""

    def __init__(self, database: Database, number: int) -> None:
        self._database = database
        self._connection = database.connection
        self._number = number
        self._settled: Counter[str] = Counter()
        self._added: Counter[str] = Counter()
        self._filled: dict[str, int] = {}

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

    def stored(self, what: str, query: str) -> None:
        """Make an empty table for all rounds, in the shape of a query's result."""
        self._connection.execute(
            f"CREATE TABLE {self.name(what)} AS SELECT * FROM ({query}) AS q LIMIT 0"
        )

    def add(self, what: str, rows: str) -> None:
        """Add rows to what is stored."""
        self._added[what] += self._database.kept.execute(f"INSERT INTO {self.name(what)} {rows}")

    def compact(self, what: str, columns: Listed) -> None:
        """Drop rows that came and went, once as many were added as there were.

        So what is read over stays in proportion to what there is, and so does the work for that.
        """
        if self._added[what] <= max(SMALL_ROWS, self._settled[what]):
            return
        settled, kept = f"{what}_settled", self._database.kept
        self.fresh(settled, consolidated(f"FROM {self.name(what)}", columns))
        kept.execute(f"TRUNCATE {self.name(what)}")
        kept.execute(f"INSERT INTO {self.name(what)} FROM {self.name(settled)}")
        self._settled[what] = self._filled[settled]
        self._added[what] = 0
        self.fresh(settled, f"FROM {self.name(settled)} LIMIT 0")

    def sum(self, what: str) -> int:
        """Return the weights of a table, added up."""
        query = f"SELECT coalesce(sum(_w), 0) FROM {self.name(what)}"
        return int(self._connection.execute(query).fetchall()[0][0])

    def empty(self, what: str) -> bool:
        """Say whether this round's table has no row."""
        return not self._filled[what]
