"""Operators with state, as steps over tables of weighted rows in DuckDB.

A change is a row with a weight: +1 for one that came, -1 for one that went. Every step reads the
changes of its inputs and what it keeps of earlier rounds, and makes the table of its own changes.
What it keeps is brought up to date after all steps of a round have run.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from projections.run.database import TEXT, Database
from projections.run.key_parts import WHOLE, KeyPart, listed_keys
from projections.run.operator_tables import (
    Listed,
    OperatorTables,
    all_columns,
    bag,
    consolidated,
)
from projections.run.regions import keys_of, region_of, same
from projections.sql.operators.shape import END, NOTHING_ENDED
from projections.sql.operators.tree import Final, Join, JoinKind, Match, Recomputed
from projections.sql.rendering.batch import over_rows
from projections.sql.rendering.join_text import join_condition, joined

_TAKEN = {
    JoinKind.INNER: ", l._w * r._w AS _w",
    JoinKind.LEFT: ", l._w * coalesce(r._w, 1) AS _w",
    JoinKind.SEMI: ", l._w AS _w",
    JoinKind.ANTI: ", l._w AS _w",
}


class Operator(Protocol):
    """One stateful node at work."""

    changes: str
    """The table of what this round changes in its results."""

    def start(self) -> None:
        """Make the empty tables of what is kept, and empty changes."""
        ...

    def step(self) -> None:
        """Compute this round's changes."""
        ...

    def keep(self) -> None:
        """Bring what is kept up to date, after all steps of the round."""
        ...

    def compact(self) -> None:
        """Drop from what is kept the rows that came and went, where it is time to."""
        ...


class RecomputedOperator:
    """Computes regions again: groups, sessions, functions over rows, the newest of each key."""

    def __init__(
        self,
        database: Database,
        number: int,
        node: Recomputed,
        input_changes: str,
    ) -> None:
        self._tables = OperatorTables(database, number)
        self._input_changes = input_changes
        self._input = all_columns(node.input)
        self._output = all_columns(node)
        self._query = over_rows(node, TEXT)
        self.changes = self._tables.name("changed")
        self._keys = keys_of(node)
        self._listed = listed_keys(self._keys)
        # What was given out for the keys that came: there is one region for each of them at least.
        self._given = self._tables.name("given_near" if self._keys else "given")
        self._region = region_of(node, self._tables.name("came"), self._given)
        # A search through the partition: what parts of the keys are let through of it comes last.
        self._sought = isinstance(node, Match)
        self.rows_went = True
        """Whether a row of the input may have been taken back, in this round or before."""

    def start(self) -> None:
        """See `Operator`."""
        changes = consolidated(self._input_changes, self._input)
        self._tables.stored("rows", changes, self._keys)
        result = self._query(f"SELECT {self._input} FROM {self._tables.name('rows')}")
        weighed = f"SELECT {self._output}, CAST(1 AS BIGINT) AS _w FROM ({result}) AS q"
        self._tables.stored("given", weighed, self._keys)
        for what in ("changed", "given_near"):
            self._tables.fresh(what, f"FROM {self._tables.name('given')}")

    def step(self) -> None:
        """See `Operator`."""
        tables = self._tables
        tables.fresh_by_parts("came", self._listed, 0, self._came)
        if tables.empty("came"):
            tables.fresh("changed", f"FROM {tables.name('given')} LIMIT 0")
            return
        if self._keys:
            same_keys = same(self._keys, "g", "c")
            tables.fresh(
                "given_near",
                f"SELECT g.* FROM {self._near('given')} AS g "
                f"SEMI JOIN {tables.name('came')} AS c ON {same_keys}",
            )
        near = self._near("rows")
        changed = partial(self._changed, near)
        tables.fresh_by_parts("changed", self._listed, tables.count("came"), changed)

    def _came(self, part: KeyPart) -> str:
        """Write the changes of the input whose keys are of a part."""
        rows = f"SELECT {self._input}, _w FROM ({self._input_changes}) AS c"
        rows += part.where(self._listed)
        return consolidated(rows, self._input) if self.rows_went else rows

    def _changed(self, near: str, part: KeyPart) -> str:
        """Write what changed of the keys of a part, of which `near` has the stored rows."""
        rows = f"({self._region.rows})"
        if self._sought and part.of > 1:
            if part.number == 0:
                self._tables.fresh("regions", self._region.rows)
            rows = self._tables.name("regions")
        self._tables.fresh("region", f"FROM {rows} AS r{part.where(self._listed)}")
        now = self._touched(f"SELECT *, 1 AS _w FROM ({self._query(self._need(near, part))}) AS q")
        before = f"SELECT * REPLACE (-_w AS _w) FROM ({self._before()}) AS g"
        return consolidated(f"{now} UNION ALL {before}", self._output)

    def _near(self, what: str) -> str:
        """Return the stored rows of the keys that came, and perhaps others."""
        return self._tables.near(what, f"FROM {self._tables.name('came')}", self._keys)

    def _need(self, near: str, part: KeyPart) -> str:
        """Write the input's rows, as they are now, that the region is computed from."""
        stored = (
            f"SELECT x.* FROM {near} x "
            f"SEMI JOIN {self._tables.name('region')} r ON {self._region.need}"
        )
        rows = f"{stored} UNION ALL FROM {self._tables.name('came')}{part.where(self._listed)}"
        # Where rows only come each has the weight 1, also where two are alike.
        return bag(rows, self._input) if self.rows_went else f"SELECT {self._input} FROM ({rows})"

    def _before(self) -> str:
        """Write what was given out for the region: as remembered, never computed again."""
        return self._touched(f"FROM {self._given}")

    def _touched(self, results: str) -> str:
        region = self._tables.name("region")
        columns = f"{self._output}, _w"
        return (
            f"SELECT {columns} FROM ({results}) AS y "
            f"SEMI JOIN {region} AS r ON {self._region.touched}"
        )

    def keep(self) -> None:
        """See `Operator`."""
        if not self._tables.empty("came"):
            self._tables.add("rows", f"FROM {self._tables.name('came')}")
            self._tables.add("given", f"FROM {self.changes}")

    def compact(self) -> None:
        """See `Operator`."""
        self._tables.compact("rows", self._input if self.rows_went else None)
        self._tables.compact("given", self._output)


class FinalOperator:
    """Holds rows back until the watermark has passed their end.

    A row that ended before goes through at once, and so does its being taken back. The watermark
    is an input like any other, with changes of its own: what it passes is given out.
    """

    def __init__(self, database: Database, number: int, node: Final, input_changes: str) -> None:
        self._tables = OperatorTables(database, number)
        self._views = database.views
        self._input_changes = input_changes
        self._columns = all_columns(node)
        self._watermark_us = NOTHING_ENDED
        self._passed = f"(SELECT us FROM {self._tables.name('watermark')})"
        self.changes = self._tables.name("changed")

    def pass_watermark(self, watermark_us: int) -> None:
        """Take the watermark of the next round. It never goes back: what is out stays out."""
        self._watermark_us = max(self._watermark_us, watermark_us)
        passed = pa.table({"us": pa.array([self._watermark_us], pa.int64())})
        self._views.put(self._tables.name("watermark"), passed)

    @property
    def waiting(self) -> int:
        """Return how many rows are held back."""
        return self._tables.sum("waiting")

    def start(self) -> None:
        """See `Operator`."""
        self.pass_watermark(NOTHING_ENDED)
        none = f"FROM ({consolidated(self._input_changes, self._columns)}) AS q LIMIT 0"
        self._tables.fresh("waiting", none)
        self._tables.fresh("changed", f"FROM {self._tables.name('waiting')}")

    def step(self) -> None:
        """See `Operator`."""
        held = f"FROM {self._tables.name('waiting')} UNION ALL SELECT {self._columns}, _w FROM "
        self._tables.fresh(
            "held", consolidated(f"{held}({self._input_changes}) AS c", self._columns)
        )
        ended = f"{END} <= {self._passed}"
        self._tables.fresh("changed", f"FROM {self._tables.name('held')} WHERE {ended}")

    def keep(self) -> None:
        """See `Operator`."""
        rest = f"{END} IS NULL OR {END} > {self._passed}"
        self._tables.fresh("waiting", f"FROM {self._tables.name('held')} WHERE {rest}")

    def compact(self) -> None:
        """See `Operator`: each round leaves what waits, and no more."""


class JoinOperator:
    """Pairs rows: those of the left side that are new, and those whose right rows changed."""

    def __init__(
        self,
        database: Database,
        number: int,
        node: Join,
        left_changes: str,
        right_changes: str,
    ) -> None:
        self._tables = OperatorTables(database, number)
        self._node = node
        self._sides = {"left": left_changes, "right": right_changes}
        # Of a right side that gives no columns it matters which rows there are, not when they came.
        self._alone = node.kind in (JoinKind.SEMI, JoinKind.ANTI)
        right = Listed.of(node.right) if self._alone else all_columns(node.right)
        self._columns = {"left": all_columns(node.left), "right": right}
        self._keys = {
            "left": [TEXT.name(ours) for ours, _ in node.pairs],
            "right": [TEXT.name(theirs) for _, theirs in node.pairs],
        }
        self._listed = {side: ", ".join(keys) for side, keys in self._keys.items()}
        self._output = all_columns(node)
        self.changes = self._tables.name("changed")
        self._alike = False

    def start(self) -> None:
        """See `Operator`."""
        tables = self._tables
        if self._node.pairs:
            left, right = (
                tables.types(f"SELECT {self._listed[side]} FROM ({changes}) AS c").values()
                for side, changes in self._sides.items()
            )
            # Equal values of other types have other hashes.
            self._alike = [*left] == [*right]
        for side, changes in self._sides.items():
            keys = [pair[side == "right"] for pair in self._node.pairs]
            self._tables.stored(side, consolidated(changes, self._columns[side]), keys)
        empty = self._joined("left", "right", WHOLE)
        self._tables.fresh("changed", f"SELECT {self._output}, _w FROM ({empty}) AS q LIMIT 0")

    def step(self) -> None:
        """See `Operator`."""
        tables = self._tables
        for side in self._sides:
            came = partial(self._came, side)
            tables.fresh_by_parts(f"{side}_came", self._listed[side], 0, came)
        if self._resting():
            tables.fresh("changed", f"FROM {self.changes} LIMIT 0")
            return
        self._find("right_before", "right", ("left_came", "right_came"))
        right = tables.count("right_before", "right_came")
        tables.fresh_by_parts("right_now", self._listed["right"], right, self._right_now)
        turned = self._turned()
        self._find("left_near", "left", (turned,))
        on = join_condition(self._node, TEXT)
        tables.fresh(
            "left_met",
            f"SELECT l.* FROM {tables.name('left_near')} l "
            f"SEMI JOIN {tables.name(turned)} r ON {on}",
        )
        left = tables.count("left_came", "left_met")
        tables.fresh_by_parts("changed", self._listed["left"], left, self._changed)

    def _came(self, side: str, part: KeyPart) -> str:
        """Write the changes of a side whose keys are of a part."""
        rows = f"FROM ({self._sides[side]}) AS c{part.where(self._listed[side])}"
        return consolidated(rows, self._columns[side])

    def _right_now(self, part: KeyPart) -> str:
        both = (self._tables.name(what) for what in ("right_before", "right_came"))
        own = part.where(self._listed["right"])
        return consolidated(
            " UNION ALL ".join(f"FROM {each}{own}" for each in both), self._columns["right"]
        )

    def _changed(self, part: KeyPart) -> str:
        """Write what changed of the keys of a part."""
        parts = [
            self._joined("left_came", "right_now", part),
            self._joined("left_met", "right_now", part),
            self._joined("left_met", "right_before", part, sign="-"),
        ]
        rows = " UNION ALL ".join(f"({each})" for each in parts)
        return consolidated(rows, self._output)

    def keep(self) -> None:
        """See `Operator`."""
        for side in self._sides:
            self._tables.add(side, f"FROM {self._tables.name(f'{side}_came')}")

    def compact(self) -> None:
        """See `Operator`."""
        for side, columns in self._columns.items():
            self._tables.compact(side, columns)

    def _resting(self) -> bool:
        return self._tables.empty("left_came") and self._tables.empty("right_came")

    def _turned(self) -> str:
        """Return the table of right rows whose change may change what left rows give.

        Of a semi or an anti join these are rows of which there were none, or are none any more.
        """
        if not self._alone:
            return "right_came"
        columns = self._columns["right"]
        now, before = map(self._tables.name, ("right_now", "right_before"))
        both = f"SELECT {columns}, 1 AS _w FROM {now} UNION ALL SELECT {columns}, -1 FROM {before}"
        self._tables.fresh("right_turned", consolidated(both, columns))
        return "right_turned"

    def _joined(self, left: str, right: str, part: KeyPart, *, sign: str = "") -> str:
        weight = _TAKEN[self._node.kind]
        ours = f"FROM {self._tables.name(left)}{part.where(self._listed['left'])}"
        theirs = f"FROM {self._tables.name(right)}"
        if self._alike:
            theirs += part.where(self._listed["right"])
        rows = joined(self._node, ours, theirs, TEXT, weight)
        return f"SELECT {self._output}, {sign}_w AS _w FROM ({rows}) AS j"

    def _find(self, what: str, side: str, came: Sequence[str]) -> None:
        """Read the stored rows of a side that some of the rows that came may be paired with."""
        tables = self._tables
        keys = []
        for each in came:
            own = self._keys["left" if each.startswith("left") else "right"]
            named = ", ".join(f"{key} AS k{i}" for i, key in enumerate(own))
            keys.append(f"SELECT {named} FROM {tables.name(each)}")
        named_keys = [f"k{i}" for i, _ in enumerate(self._keys[side])]
        equal = " AND ".join(f"x.{key} = k.k{i}" for i, key in enumerate(self._keys[side]))
        near = f"({' UNION ALL '.join(keys)}) AS k"
        stored = tables.near(side, " UNION ALL ".join(keys), named_keys)
        rows = f"SELECT x.* FROM {stored} x SEMI JOIN {near} ON {equal}"
        tables.fresh(what, consolidated(rows, self._columns[side]))
