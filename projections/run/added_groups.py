"""Groups of facts that are brought up to date by adding, as an operator of several steps.

Where rows only come, what was given out for a group and what has to be known beside it are enough,
however many facts it has: see `plans.adding`. So no row of the input is kept. Of values
that are counted each once those are kept that there were.
"""

from __future__ import annotations

from projections.run.database import TEXT, Database
from projections.run.given_groups import GivenGroups
from projections.run.key_parts import WHOLE, KeyPart, listed_keys
from projections.run.operator_tables import OperatorTables
from projections.run.regions import same
from projections.sql.operators.tree import Call, Function, Grouped
from projections.sql.plans.adding import KnownOfGroups
from projections.sql.rendering.batch import listed, names, over_rows, placed


class AddedOperator:
    """Adds the facts of a round to groups. See `projections.run.operators.Operator`."""

    def __init__(
        self,
        database: Database,
        number: int,
        node: Grouped,
        known: KnownOfGroups,
        input_changes: str,
    ) -> None:
        """`input_changes` is the query for the changes of the input of `known.of_facts`."""
        self._tables = tables = OperatorTables(database, number)
        self._listed = listed_keys(node.keys)
        self._known = known
        self._input_changes = input_changes
        new = known.of_facts
        self._values = [
            _Values(tables, new, argument, input_changes, place)
            for place, argument in enumerate(known.told_apart)
        ]
        self._given = GivenGroups(tables, node, known.groups, self._now)
        self.changes = self._given.changes

    def start(self) -> None:
        """See `Operator`."""
        for each in self._values:
            each.start()
        self._tables.fresh("new", self._new(WHOLE))
        self._given.start(self._made(WHOLE, "new"))

    def step(self) -> None:
        """See `Operator`."""
        for each in self._values:
            each.step()
        self._tables.fresh_by_parts("new", self._listed, 0, self._new)
        if self._tables.empty("new"):
            self._given.rest()
            return
        self._given.find()
        self._given.turn()

    def keep(self) -> None:
        """See `Operator`."""
        if not self._tables.empty("new"):
            self._given.keep()
            for each in self._values:
                each.keep()

    def compact(self) -> None:
        """See `Operator`."""
        self._given.compact()
        for each in self._values:
            each.compact()

    def _new(self, part: KeyPart) -> str:
        """Write what is to be known of the facts that came, of the groups of a part."""
        came = f"SELECT * FROM ({self._input_changes}) AS c{part.where(self._listed)}"
        made = over_rows(self._known.of_facts, TEXT)(came)
        for each in self._values:
            made = each.counted(made)
        return made

    def _now(self, part: KeyPart) -> str:
        """Write the groups of a part, of what came to them and what was before."""
        return self._made(part, "new", "before")

    def _made(self, part: KeyPart, *tables: str) -> str:
        held, where = placed(listed(TEXT, names(self._known.of_facts))), part.where(self._listed)
        read = map(self._tables.name, tables)
        rows = " UNION ALL ".join(f"SELECT {held} FROM {each}{where}" for each in read)
        return self._known.made_one(rows, TEXT)


class _Values:
    """The different values that each group had in one column, and those that are new in a round."""

    def __init__(
        self, tables: OperatorTables, groups: Grouped, argument: str, changes: str, place: int
    ) -> None:
        """`argument` is the column, of which `groups` have counts and totals."""
        self._tables = tables
        self._calls = [c for c in groups.calls if c.distinct and c.argument == argument]
        self._value = value = TEXT.name(argument)
        self._keys = listed(TEXT, groups.keys)
        self._by = (*groups.keys, argument)
        self._same_group = same(groups.keys, "x", "d")
        self._had, self._came, self._fresh = (f"{what}{place}" for what in ("had", "came", "fresh"))
        self._pairs = (
            f"SELECT DISTINCT {self._keys}, {value} FROM ({changes}) AS c WHERE {value} IS NOT NULL"
        )

    def start(self) -> None:
        """Make the empty tables."""
        self._tables.stored(self._had, self._pairs, self._by)
        self._tables.fresh(self._came, self._pairs)
        self._tables.fresh(self._fresh, f"FROM {self._tables.name(self._came)}")

    def step(self) -> None:
        """Find the values that a group did not have before this round."""
        self._tables.fresh(self._came, self._pairs)
        came = self._tables.name(self._came)
        had = self._tables.near(self._had, f"FROM {came}", self._by)
        both = same(self._by, "h", "c")
        # The few that came are looked for among the many that there were, not the other way round.
        met = f"SELECT h.* FROM {had} AS h SEMI JOIN {came} AS c ON {both}"
        self._tables.fresh(
            self._fresh, f"SELECT c.* FROM {came} AS c ANTI JOIN ({met}) AS h ON {both}"
        )

    def counted(self, groups: str) -> str:
        """Write groups of new facts with the number, or the total, of their fresh values."""
        fresh = self._tables.name(self._fresh)
        made = {f"n{place}": call for place, call in enumerate(self._calls)}
        counts = ", ".join(f"{self._of_fresh(call)} AS {name}" for name, call in made.items())
        told = ", ".join(
            f"{f'coalesce(d.{name}, 0)' if call.function is Function.COUNT else f'd.{name}'} "
            f"AS {TEXT.name(call.name)}"
            for name, call in made.items()
        )
        by_group = f"SELECT {self._keys}, {counts} FROM {fresh} GROUP BY {self._keys}"
        return (
            f"SELECT x.* REPLACE ({told}) FROM ({groups}) AS x "
            f"LEFT JOIN ({by_group}) AS d ON {self._same_group}"
        )

    def _of_fresh(self, call: Call) -> str:
        counts = call.function is Function.COUNT
        return "count(*)" if counts else f"CAST(sum({self._value}) AS {call.type})"

    def keep(self) -> None:
        """Bring what there was up to date."""
        self._tables.add(self._had, f"FROM {self._tables.name(self._fresh)}")

    def compact(self) -> None:
        """See `Operator`; values only come."""
        self._tables.compact(self._had)
