"""Groups of rows that come and go, brought up to date by these; see `plans.changing_groups`.

No row of the input is kept: of each group what is known of it, and of columns of which more is
asked than a total the values that it has, each once with how often it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from projections.run.database import TEXT, Database
from projections.run.given_groups import GivenGroups
from projections.run.key_parts import WHOLE, KeyPart, listed_keys
from projections.run.operator_tables import (
    NEGATIVE,
    Listed,
    OperatorTables,
    bag,
    consolidated,
)
from projections.run.regions import same
from projections.sql.operators.shape import ORDER
from projections.sql.operators.tree import Call, Function, Grouped
from projections.sql.plans.changing_groups import (
    ROWS,
    ChangingGroups,
    DoubleTotals,
    ValuesOfGroups,
)
from projections.sql.rendering.batch import called, listed, names
from projections.sql.rendering.totals import EXACT_TOTAL

_NO_PLACE = f"make_timestamp(0) AS {ORDER[0]}, {', '.join(f'0 AS {name}' for name in ORDER[1:])}"
"""Nobody asks for the place of these groups: it is one for all."""

_THERE = f"CASE WHEN g.{ROWS} < 0 THEN CAST(error('{NEGATIVE}') AS BOOLEAN) ELSE g.{ROWS} > 0 END"
SOME = "{} > 0"
"""What holds of the number of values that a sum is of: of none it is NULL."""
_SURE = f"CASE WHEN _w < 0 THEN CAST(error('{NEGATIVE}') AS BOOLEAN) ELSE true END"


class ChangingOperator:
    """Adds what came to groups and takes off what went. See `projections.run.operators.Operator`.

    What was given out is taken back as remembered, never computed again.
    """

    def __init__(
        self,
        database: Database,
        number: int,
        node: Grouped,
        changing: ChangingGroups,
        input_changes: str,
    ) -> None:
        """`input_changes` is the query for the changes of the input of `totals.of_facts`."""
        self._tables = tables = OperatorTables(database, number)
        self._keys, self._listed = node.keys, listed_keys(node.keys)
        new = changing.totals.of_facts
        self._came = _came(changing, input_changes)
        self._new = partial(_new, new, tables.name("came"))
        self._values = [
            _ValueBag(tables, changing.groups, each, place)
            for place, each in enumerate(changing.values)
        ]
        self._changing = changing
        self._given = GivenGroups(tables, node, changing.groups, self._now)
        self.changes = self._given.changes

    def start(self) -> None:
        """See `Operator`."""
        tables = self._tables
        tables.fresh("came", f"{self._came} LIMIT 0")
        tables.fresh("new", self._new(WHOLE))
        for each in self._values:
            each.start()
        # What is known of a group has the types that it gets by being added to nothing.
        self._given.start(self._now(WHOLE, begun=True))

    def step(self) -> None:
        """See `Operator`."""
        tables = self._tables
        tables.fresh("came", self._came)
        if tables.empty("came"):
            self._given.rest()
            return
        tables.fresh_by_parts("new", self._listed, tables.count("came"), self._new)
        self._given.find()
        for each in self._values:
            each.step()
        self._given.turn()

    def keep(self) -> None:
        """See `Operator`."""
        if not self._tables.empty("came"):
            self._given.keep()
            for each in self._values:
                each.keep()

    def compact(self) -> None:
        """See `Operator`."""
        self._given.compact()
        for each in self._values:
            each.compact()

    def _now(self, part: KeyPart, *, begun: bool = False) -> str:
        """Write the groups of a part, from what came to them and, unless `begun`, was before."""
        changing, totals = self._changing, self._changing.totals
        held, where = listed(TEXT, names(totals.of_facts)), part.where(self._listed)
        read = map(self._tables.name, ["new"] if begun else ["new", "before"])
        rows = " UNION ALL ".join(f"SELECT {held} FROM {each}{where}" for each in read)
        totalled = _grouped(self._keys, totals.results(TEXT), rows)
        columns = {c.name: f"g.{TEXT.name(c.name)}" for c in changing.groups.calls}
        for call, count in changing.known:
            columns[call.name] = (
                f"CASE WHEN {SOME.format(columns[count])} THEN {columns[call.name]} END"
            )
        joins = []
        for place, each in enumerate(self._values):
            table, of = self._tables.name(each.results), f"v{place}"
            joins.append(f" LEFT JOIN (FROM {table}{where}) AS {of} ON {same(self._keys, 'g', of)}")
            columns |= each.columns(of)
        for doubles in changing.doubles:
            columns |= _double_totals(doubles, columns)
        keys = listed(TEXT, self._keys, "g")
        own = [call.name for call in changing.groups.calls]
        made = ", ".join(f"{columns[name]} AS {TEXT.name(name)}" for name in own)
        return (
            f"SELECT {keys}, {made}, {_NO_PLACE} FROM ({totalled}) AS g{''.join(joins)} "
            f"WHERE {_THERE}"
        )


class _ValueBag:
    """The values that each group has in one column, with how often each is there."""

    def __init__(
        self, tables: OperatorTables, groups: Grouped, values: ValuesOfGroups, place: int
    ) -> None:
        self._tables = tables
        self._what = values
        self._keys = groups.keys
        own = [each for each in groups.columns if each.name in groups.keys]
        self._listed = listed_keys(groups.keys)
        self._columns = Listed.of_columns([*own, values.argument])
        self._bag, self._came, self._now = (f"{what}{place}" for what in ("bag", "values", "have"))
        self._lost = f"lost{place}"
        self.results = f"results{place}"
        known = f"{TEXT.name(values.argument.name)} IS NOT NULL"
        self._values = f"SELECT {self._columns}, _w FROM {tables.name('came')} WHERE {known}"

    def columns(self, of: str) -> dict[str, str]:
        """Write the results, from the relation `of`; there is no row for a group of no value."""
        found = {}
        for call in self._what.calls:
            value = f"{of}.{TEXT.name(call.name)}"
            none = call.function is Function.COUNT
            found[call.name] = f"coalesce({value}, 0)" if none else value
        return found

    def start(self) -> None:
        """Make the empty tables."""
        tables = self._tables
        tables.fresh(self._came, self._changes(WHOLE))
        tables.stored(self._bag, self._changes(WHOLE), self._keys)
        tables.fresh(self._now, f"FROM {tables.name(self._came)}")
        tables.fresh(
            self._lost, f"SELECT {listed(TEXT, self._keys)} FROM {tables.name(self._came)}"
        )
        tables.fresh(self.results, self._results("", WHOLE))

    def step(self) -> None:
        """Compute what is asked of the values of the groups that came."""
        tables = self._tables
        tables.fresh_by_parts(self._came, self._listed, tables.count("came"), self._changes)
        came, groups, beside = tables.name(self._came), "new", ""
        if self._what.extremes:
            # Only of what was the least or the greatest, and went, the next one is not known.
            tables.fresh(self._lost, self._at_an_end())
            groups, beside = self._lost, f" UNION ALL {self._ends()}"
        touched, both = tables.name(groups), same(self._keys, "v", "n")
        near = f"(FROM {tables.name(self._bag)} LIMIT 0)"
        if not tables.empty(groups):
            near = tables.near(self._bag, f"FROM {touched}", self._keys)
        parts = (
            f"SELECT v.* FROM {o} AS v SEMI JOIN {touched} AS n ON {both}" for o in (near, came)
        )
        have = f"FROM ({' UNION ALL '.join(parts)}) AS r"
        tables.fresh_by_parts(
            self._now,
            self._listed,
            tables.count("came"),
            lambda part: consolidated(f"{have}{part.where(self._listed)}", self._columns),
        )
        rows, results = tables.count(self._now, self._came), partial(self._results, beside)
        tables.fresh_by_parts(self.results, self._listed, rows, results)

    def _at_an_end(self) -> str:
        """Write the groups that a value left which was the least or the greatest of theirs."""
        value = TEXT.name(self._what.argument.name)
        equal = " OR ".join(f"c.{value} = g.{TEXT.name(call.name)}" for call in self._what.calls)
        return (
            f"SELECT DISTINCT {listed(TEXT, self._keys, 'c')} FROM {self._tables.name(self._came)} "
            f"AS c JOIN {self._tables.name('before')} AS g ON {same(self._keys, 'c', 'g')} "
            f"WHERE c._w < 0 AND ({equal})"
        )

    def _ends(self) -> str:
        """Write for all other groups the values that came, and those that were at an end."""
        tables, keys = self._tables, listed(TEXT, self._keys, "g")
        others = f"AS g ANTI JOIN {tables.name(self._lost)} AS n ON {same(self._keys, 'g', 'n')}"
        value = TEXT.name(self._what.argument.name)
        parts = [f"SELECT {keys}, g.{value} FROM {tables.name(self._came)} {others} WHERE g._w > 0"]
        for call in self._what.calls:
            end = f"g.{TEXT.name(call.name)}"
            known = f"WHERE {end} IS NOT NULL"
            parts.append(f"SELECT {keys}, {end} FROM {tables.name('before')} {others} {known}")
        return " UNION ALL ".join(parts)

    def keep(self) -> None:
        """Bring the values up to date."""
        self._tables.add(self._bag, f"FROM {self._tables.name(self._came)}")

    def compact(self) -> None:
        """See `Operator`."""
        self._tables.compact(self._bag, self._columns)

    def _changes(self, part: KeyPart) -> str:
        """Write what came and went of the values of the groups of a part."""
        return consolidated(f"FROM ({self._values}) AS r{part.where(self._listed)}", self._columns)

    def _results(self, beside: str, part: KeyPart) -> str:
        """Write the results of each group that has a value; `beside` are further ones, as SQL."""
        what, where = self._what, part.where(self._listed)
        values = f"FROM {self._tables.name(self._now)}"
        known = f"SELECT {self._columns} {values} WHERE {_SURE}{beside}"
        once = self._of(what.once, f"FROM ({known}) AS r{where}")
        if not what.times:
            return once
        times = self._of(what.times, bag(f"{values}{where}", self._columns))
        if not what.once:
            return times
        more = listed(TEXT, [call.name for call in what.times], "t")
        on = same(self._keys, "o", "t")
        return f"SELECT o.*, {more} FROM ({once}) AS o JOIN ({times}) AS t ON {on}"

    def _of(self, calls: Sequence[Call], rows: str) -> str:
        return _grouped(self._keys, [*map(_call, calls)], rows)


def _call(call: Call) -> str:
    return f"{called(call, TEXT)} AS {TEXT.name(call.name)}"


def _grouped(keys: Sequence[str], results: Sequence[str], rows: str) -> str:
    by = listed(TEXT, keys)
    return f"SELECT {', '.join([by, *results])} FROM ({rows}) AS x GROUP BY {by}"


def _came(changing: ChangingGroups, changes: str) -> str:
    """Write the rows that came and went, with their doubles apart: finite ones, and others."""
    columns = [listed(TEXT, names(changing.totals.of_facts.input))]
    for each in changing.doubles:
        value = f"CAST({TEXT.name(each.argument)} AS DOUBLE)"
        finite = f"isfinite({value})"
        columns.append(f"CASE WHEN {finite} THEN {value} END AS {each.finite}")
        columns.append(f"CASE WHEN NOT {finite} THEN {value} END AS {each.beyond.name}")
    return f"SELECT {', '.join(filter(None, columns))}, _w FROM ({changes}) AS c"


def _double_totals(doubles: DoubleTotals, columns: Mapping[str, str]) -> dict[str, str]:
    """Write sums and averages of doubles; one that is not finite makes theirs such."""
    count = columns[doubles.count.name]
    finite = f"{EXACT_TOTAL}({columns[doubles.parts.name]})"
    total = f"coalesce({columns[doubles.total_beyond.name]}, {finite})"
    results = {Function.SUM: total, Function.AVG: f"({total} / {count})"}
    return {
        call.name: f"CASE WHEN {SOME.format(count)} THEN {results[call.function]} END"
        for call in doubles.calls
    }


def _new(new: Grouped, came: str, part: KeyPart) -> str:
    """Write totals of what came, by group, and below zero those of what went, of a part of them."""
    parts, keys = [], listed(TEXT, new.keys)
    for sign in ("", "-"):
        own = f"(FROM {came}{part.where(keys)}) AS c"
        times = f"SELECT *, unnest(range({sign}_w)) FROM {own} WHERE {sign}_w > 0"
        parts.append(_grouped(new.keys, [*map(_call, new.calls)], times))
    less = ", ".join(f"{_less(call)} AS {TEXT.name(call.name)}" for call in new.calls)
    return f"{parts[0]} UNION ALL SELECT {keys}, {less} FROM ({parts[1]}) AS went"


def _less(call: Call) -> str:
    name = TEXT.name(call.name)
    parts = call.function is Function.PARTS
    return f"list_transform({name}, lambda one: -one)" if parts else f"-{name}"
