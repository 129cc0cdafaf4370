"""One projection's operators and what they keep, in a DuckDB of its own.

Disposable: all of it follows from the typed tables and histories of the lake. A round takes what is
new in the inputs and gives the changes of the projection's rows. What went wrong in a round leaves
the dataflow unusable; whoever runs it then begins anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import assert_never

import pyarrow as pa

from kernel.errors import ContractViolation
from projections.run.added_groups import AddedOperator
from projections.run.changing_groups import ChangingOperator
from projections.run.database import (
    MEMORY_BYTES,
    ORDER_TYPES,
    TEXT,
    Database,
    arrow_type,
    types_of,
    without_zones,
)
from projections.run.duckdb_functions import register_called
from projections.run.key_parts import KeyPart, by_parts, listed_keys
from projections.run.operator_tables import Listed, consolidated
from projections.run.operators import (
    FinalOperator,
    JoinOperator,
    Operator,
    RecomputedOperator,
)
from projections.sql.operators.presence import right_rows
from projections.sql.operators.shape import NOTHING_ENDED, ORDER, InputKind
from projections.sql.operators.tree import (
    Exploded,
    Final,
    Grouped,
    Join,
    Map,
    Match,
    Newest,
    Node,
    Over,
    Scan,
    Sessions,
    UnionAll,
    Windowed,
    scans,
    walk,
)
from projections.sql.plans.adding import known_of_facts
from projections.sql.plans.changing_groups import changing_of
from projections.sql.rendering.batch import keyed, listed, mapped, names, united, windowed
from projections.sql.rendering.explosion_text import exploded

_MORE = ", _w"
_STATEFUL = (Join, Final, Grouped, Sessions, Over, Match, Newest)
"""Nodes that take back rows that they gave, where rows of their input only come."""


class Dataflow:
    """Keeps one plan tree's rows up to date. For one thread."""

    def __init__(self, tree: Newest, *, memory_bytes: int = MEMORY_BYTES) -> None:
        self._database = Database(memory_bytes=memory_bytes)
        self._connection = self._database.connection
        self._tree = tree
        register_called(self._connection, tree)
        self._came: Counter[str] = Counter()
        self._went: set[str] = set()
        self._of_facts: list[tuple[RecomputedOperator, frozenset[str]]] = []
        self._operators: list[Operator] = []
        self._finals: list[FinalOperator] = []
        for scan in scans(tree):
            self._make_input(scan)
        self._changes = self._changes_of(tree)

    def close(self) -> None:
        """Give back memory and disk."""
        self._database.close()

    def add(self, scan: Scan, rows: Iterable[pa.Table], *, weight: int = 1) -> None:
        """Take rows that came in an input, or with weight -1 those that went.

        They have the columns of the input and those of `ORDER`. A row that comes and goes in one
        round is no change.
        """
        with self._database.within_memory():
            columns = [*names(scan), *ORDER]
            if weight < 0:
                self._went.add(scan.view)
            count = self._insert(scan.view, (part.select(columns) for part in rows), weight=weight)
            if weight < 0 and count and scan.kind is InputKind.STREAM:
                added = any(isinstance(each, AddedOperator) for each in self._operators)
                assert not added, "facts only come: no row is kept to be taken back"

    def pass_watermark(self, watermark_us: int | None) -> None:
        """Take the watermark of the next round, in microseconds since 1970; None before any."""
        for each in self._finals:
            each.pass_watermark(NOTHING_ENDED if watermark_us is None else watermark_us)

    @property
    def waiting(self) -> int:
        """How many rows wait for the watermark to pass their end."""
        return sum(each.waiting for each in self._finals)

    @property
    def state_bytes(self) -> int:
        """How much memory, and disk behind it, is taken by what is kept between rounds."""
        return self._database.held_bytes()

    def round(self) -> pa.Table:
        """Let the inputs' changes through all operators; return the rows that came and went.

        They have the tree's columns and `_w`, +1 or -1. Raises `ContractViolation` for values that
        the query cannot be computed of, as in a division by zero, `BeyondThisProcess` for those
        that Spark alone reads, `TooLarge` where the state or the round fit neither into memory nor
        onto the disk behind it.
        """
        return self._round(self._changes)

    def begin(
        self,
        stored: Iterable[pa.Table],
        twice: Callable[[pa.Table], Exception],
    ) -> pa.Table:
        """Do the first round; return what leads from the rows that a table has to the right ones.

        Neither of them is held in memory as a whole. Raises what `twice` makes of keys that the
        table has more than once: of two rows one would be taken back, and both go with their key.
        """
        columns = listed(TEXT, names(self._tree))
        rows = f"SELECT {columns}, _w FROM ({self._changes}) AS c"
        with self._database.within_memory():
            self._connection.execute(f"CREATE TEMP TABLE stored AS {rows} LIMIT 0")
            columns_of = names(self._tree)
            self._insert("stored", (part.select(columns_of) for part in stored), weight=-1)
        keys = list(self._tree.keys)
        named = listed(TEXT, keys)
        repeated = "SELECT {} FROM stored {} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
        try:
            changes = self._round(f"{rows} UNION ALL FROM stored")
        except ContractViolation as error:
            found = self._connection.sql(repeated.format(named, "")).to_arrow_table()
            if found.num_rows:
                raise twice(found) from error
            raise
        if changes.num_rows:
            self._connection.register("__changed", without_zones(changes.select(keys)))
            near = repeated.format(named, f"SEMI JOIN __changed USING ({named})")
            found = self._connection.sql(near).to_arrow_table()
            self._connection.unregister("__changed")
            if found.num_rows:
                raise twice(found)
        self._connection.execute("DROP TABLE stored")
        return changes

    def _round(self, results: str) -> pa.Table:
        with self._database.within_memory():
            for of_facts, views in self._of_facts:
                of_facts.rows_went = not views.isdisjoint(self._went)
            with self._database.computing():
                for operator in self._operators:
                    operator.step()
                changes = by_parts(self._came["stored"], partial(self._result, results))
            self._settle()
        return changes

    def _settle(self) -> None:
        """Bring what is kept up to date, and empty the inputs."""
        for operator in self._operators:
            operator.keep()
            operator.compact()
        for scan in scans(self._tree):
            if self._came[scan.view]:
                self._database.kept.execute(f"TRUNCATE {scan.view}")
        self._came.clear()

    def _insert(self, table: str, rows: Iterable[pa.Table], *, weight: int) -> int:
        count = self._database.insert(table, rows, more=f", {weight} AS _w")
        self._came[table] += count
        return count

    def _result(self, results: str, parts: Iterable[KeyPart]) -> pa.Table:
        """Return the rows that came and went, of one part of the keys after another."""
        keys, columns = listed_keys(self._tree.keys), Listed.of(self._tree)
        return pa.concat_tables(
            self._arrow(consolidated(f"FROM ({results}) AS r{part.where(keys)}", columns))
            for part in parts
        )

    def _arrow(self, query: str) -> pa.Table:
        found = self._database.kept.rows(query)
        weights = set(found["_w"].to_pylist())
        if weights - {1, -1}:
            raise ContractViolation(
                f"a key has several rows or a row that never was: weights {sorted(weights)}",
                remedy="Report this with the projection's SQL; its state is computed anew.",
            )
        fields = [pa.field(each.name, arrow_type(each)) for each in self._tree.columns]
        return found.select([*names(self._tree), "_w"]).cast(
            pa.schema([*fields, pa.field("_w", pa.int64())])
        )

    def _make_input(self, scan: Scan) -> None:
        self._database.make(scan.view, types_of(scan.columns) | ORDER_TYPES | {"_w": "BIGINT"})

    def _changes_of(self, node: Node) -> str:
        """Return the query for a node's changes in a round, and make the operators it takes."""
        match node:
            case Scan():
                return f"FROM {node.view}"
            case Map():
                return mapped(node, self._changes_of(node.input), TEXT, _MORE)
            case Windowed():
                return windowed(node, self._changes_of(node.input), TEXT, _MORE)
            case Exploded():
                return exploded(node, self._changes_of(node.input), TEXT, _MORE)
            case UnionAll():
                return united(node, [*map(self._changes_of, node.inputs)], TEXT, _MORE)
            case Join():
                left, right = self._changes_of(node.left), self._changes_of(right_rows(node))
                number = len(self._operators)
                return self._started(JoinOperator(self._database, number, node, left, right))
            case Newest() if node.unique:
                return keyed(node, self._changes_of(node.input), TEXT, _MORE)
            case Final():
                below = self._changes_of(node.input)
                made = FinalOperator(self._database, len(self._operators), node, below)
                self._finals.append(made)
                return self._started(made)
            case Grouped() if (added := self._by_what_is_new(node)) is not None:
                return self._started(added)
            case Grouped() | Sessions() | Over() | Match() | Newest():
                below = self._changes_of(node.input)
                number = len(self._operators)
                recomputed = RecomputedOperator(self._database, number, node, below)
                if not any(isinstance(each, _STATEFUL) for each in walk(node.input)):
                    views = frozenset(scan.view for scan in scans(node.input))
                    self._of_facts.append((recomputed, views))
                return self._started(recomputed)
            case _:
                assert_never(node)

    def _by_what_is_new(self, node: Grouped) -> Operator | None:
        """Return the operator of groups that are not computed from all rows of theirs."""
        known, changing = known_of_facts(node), changing_of(node)
        if known is not None:
            below = self._changes_of(known.of_facts.input)
            return AddedOperator(self._database, len(self._operators), node, known, below)
        if changing is not None:
            below = self._changes_of(changing.totals.of_facts.input)
            return ChangingOperator(self._database, len(self._operators), node, changing, below)
        return None

    def _started(self, operator: Operator) -> str:
        operator.start()
        self._operators.append(operator)
        return f"FROM {operator.changes}"
