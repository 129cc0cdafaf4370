"""What an operator gave out for groups: remembered, and taken back as that when they change."""

from __future__ import annotations

from collections.abc import Callable

from projections.run.key_parts import WHOLE, KeyPart, listed_keys
from projections.run.operator_tables import OperatorTables, all_columns, consolidated
from projections.run.regions import same
from projections.sql.operators.tree import Grouped


class GivenGroups:
    """The groups of one operator, in its tables.

    In a round `new` has a row of each group that changes, which the operator makes; `before` gets
    what was given out for these, `turned` their rows as they are now and, below zero, as they were,
    `changed` what of that is shown.
    """

    def __init__(
        self,
        tables: OperatorTables,
        node: Grouped,
        known: Grouped,
        now: Callable[[KeyPart], str],
    ) -> None:
        """`known` has more of each group than `node` shows; `now` writes its rows as they are."""
        self._tables = tables
        self._keys, self._listed = node.keys, listed_keys(node.keys)
        self._output, self._all = all_columns(node), all_columns(known)
        self._now = now
        self.changes = tables.name("changed")

    def start(self, first: str) -> None:
        """Make the empty tables, in the shape of groups of which nothing was known."""
        tables = self._tables
        tables.stored("given", self._weighed(first), self._keys)
        for what in ("before", "turned"):
            tables.fresh(what, f"FROM {tables.name('given')}")
        tables.fresh("changed", self._changed(WHOLE))

    def rest(self) -> None:
        """Change nothing in this round."""
        self._tables.fresh("changed", f"FROM {self.changes} LIMIT 0")

    def find(self) -> None:
        """Find what was given out for the groups that change."""
        tables, new = self._tables, self._tables.name("new")
        near = tables.near("given", f"FROM {new}", self._keys)
        met = f"SELECT g.* FROM {near} AS g SEMI JOIN {new} AS n ON {same(self._keys, 'g', 'n')}"

        def before(part: KeyPart) -> str:
            return consolidated(f"FROM ({met}) AS r{part.where(self._listed)}", self._all)

        tables.fresh_by_parts("before", self._listed, 0, before)

    def turn(self) -> None:
        """Make what changes of the groups. They were found, and whatever `now` reads was made."""
        tables = self._tables
        tables.fresh_by_parts("turned", self._listed, tables.count("new", "before"), self._turned)
        tables.fresh_by_parts("changed", self._listed, tables.count("turned"), self._changed)

    def keep(self) -> None:
        """Remember what the groups are now."""
        self._tables.add("given", f"FROM {self._tables.name('turned')}")

    def compact(self) -> None:
        """See `Operator`."""
        self._tables.compact("given", self._all)

    def _weighed(self, rows: str) -> str:
        return f"SELECT {self._all}, CAST(1 AS BIGINT) AS _w FROM ({rows}) AS o"

    def _turned(self, part: KeyPart) -> str:
        # What was given out is taken back as remembered, never computed again.
        before = f"{self._tables.name('before')}{part.where(self._listed)}"
        now = self._weighed(self._now(part))
        return f"{now} UNION ALL SELECT * REPLACE (-_w AS _w) FROM {before}"

    def _changed(self, part: KeyPart) -> str:
        turned = f"{self._tables.name('turned')}{part.where(self._listed)}"
        return consolidated(f"SELECT {self._output}, _w FROM {turned}", self._output)
