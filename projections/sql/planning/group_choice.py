"""OVER and QUALIFY beside GROUP BY: the groups as a query of their own, and these around it.

What they read of the groups becomes a column of theirs: aggregates, expressions that are grouped
by, and columns, each whole. What is computed over several groups stays around them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.forms.grouping_sets import groups_in
from projections.sql.forms.set_operations import distinct
from projections.sql.operators.query import Output, is_distinct, read_items, unique
from projections.sql.operators.resolving import Names
from projections.sql.operators.scope import QuerySource
from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import Computed, Map, Node, column
from projections.sql.operators.windows import is_session, window_kind
from projections.sql.planning.grouping import GroupTexts
from projections.sql.planning.ranking import Windows
from projections.sql.values.expressions import AGGREGATES, same_text
from projections.sql.values.time_zones import OF_ZONES
from projections.sql.words.catalog import Relation
from projections.sql.words.places import offset_of

_GROUPS = "penstock_groups"
_FURTHER = "penstock_group_"
_OVER = "penstock_over_"
"""The name of the groups, and what begins names of columns of theirs that no query has."""
_COMPUTED = (exp.Condition, exp.Filter, *OF_ZONES)
"""What has a value; not all of it is a condition to the parser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoice:
    """A SELECT of groups, over which it computes or of which QUALIFY leaves some.

    `select` gives the groups alone, `outputs` are the result columns over them.
    """

    select: exp.Select
    names: Names
    outputs: list[Output]
    qualify: exp.Expr | None
    distinct: bool

    def among(self, groups: Node) -> Node:
        """Return the result columns of those groups that QUALIFY leaves."""
        relation = Relation(name=_GROUPS, columns=groups.columns, key=(), event_time=None)
        source = QuerySource(
            alias=_GROUPS,
            index=0,
            kind=InputKind.STREAM,
            relation=relation,
            columns={each.name.lower(): each for each in groups.columns},
        )
        named = tuple(
            Computed(name=f"{_GROUPS}.{each.name}", expression=column(each.name), type=each.type)
            for each in groups.columns
        )
        names = Names(self.names.script, [source], at=self.names.at)
        over = Windows(names, self.outputs)
        made: Node = over.results(Map(input=groups, outputs=named), self.qualify)
        return distinct(made) if self.distinct else made


def choice_of(names: Names, select: exp.Select) -> GroupChoice | None:
    """Read OVER and QUALIFY of a SELECT with GROUP BY; None for a SELECT without them."""
    qualify = select.args.get("qualify")
    over = [_is_over(each) for each in select.expressions]
    if select.args.get("group") is None or (qualify is None and not any(over)):
        return None
    items = read_items(names.script, select, names.at)
    unique(names.script, tuple(items))
    reading = _Reading(names=names, items=items, groups=_texts_of_groups(names, select, items))
    outputs = [replace(item, expression=reading.output(item)) for item in items]
    asked = None
    if qualify is not None:
        asked = exp.Qualify(this=reading.over_groups(qualify.this, by_name=True))
    groups = select.copy()
    for clause in ("qualify", "distinct"):
        groups.set(clause, None)
    # What is over the groups keeps a place among their columns: GROUP BY may count them.
    kept = [
        exp.alias_(exp.Literal.number(1), f"{_OVER}{place}") if over[place] else each
        for place, each in enumerate(groups.expressions)
    ]
    groups.set("expressions", [*kept, *reading.further.values()])
    return GroupChoice(
        select=groups,
        names=names,
        outputs=outputs,
        qualify=asked,
        distinct=is_distinct(names.script, select, names.at),
    )


@dataclass(slots=True, kw_only=True)
class _Reading:
    """Finds what is read of the groups over them. `further` are columns that SELECT has not."""

    names: Names
    items: list[Output]
    groups: frozenset[str]
    further: dict[str, exp.Expr] = field(default_factory=dict)

    def output(self, item: Output) -> exp.Expr:
        """Turn a result column into one over the groups; most are columns of theirs."""
        if _is_over(item.expression):
            return self.over_groups(item.expression, by_name=False)
        return _of_groups(item.name, item.at)

    def over_groups(self, node: exp.Expr, *, by_name: bool) -> exp.Expr:
        """Turn an expression over rows and groups into one over columns of the groups.

        `by_name`: it knows the names given by AS.
        """
        texts = GroupTexts(self.names, self.items)

        def replaced(found: exp.Expr) -> exp.Expr:
            if not isinstance(found, _COMPUTED) or isinstance(found, exp.Literal):
                return found
            if isinstance(found, exp.Column):
                return self._named(found) if by_name else self._further(found)
            whole = isinstance(found, (exp.Filter, exp.Grouping, *AGGREGATES))
            if (whole and not _is_called(found)) or texts.text(found) in self.groups:
                return self._further(found)
            return found

        return node.copy().transform(replaced)

    def _named(self, found: exp.Column) -> exp.Expr:
        """Read a name given by AS, which no column of the input has as well, or a column."""
        alone = len(found.parts) == 1
        item = next((i for i in self.items if i.name.lower() == found.name.lower()), None)
        if not alone or item is None:
            return self._further(found)
        if self.names.scope.knows(found.name):
            resolved = self.names.scope.resolve
            if same_text(resolved(found)) != same_text(resolved(item.expression)):
                raise self._ambiguous(found)
        # What is over the groups has its name around them alone.
        over = _is_over(item.expression)
        return found if over else _of_groups(item.name, offset_of(found, self.names.at))

    def _further(self, found: exp.Expr) -> exp.Expr:
        text = same_text(found)
        if text not in self.further:
            name = f"{_FURTHER}{len(self.further)}"
            self.further[text] = exp.alias_(found.copy(), name)
        return _of_groups(self.further[text].alias, offset_of(found, self.names.at))

    def _ambiguous(self, found: exp.Expr) -> InvalidRequest:
        return self.names.script.refusal(
            f"{found.name} in QUALIFY is a column of the input and a name given by AS",
            at=offset_of(found, self.names.at),
            fix="Group in a subquery, and write OVER in the query around it.",
        )


def _texts_of_groups(names: Names, select: exp.Select, items: list[Output]) -> frozenset[str]:
    """Return the texts of what is grouped by, windows left out: those have columns."""
    texts = GroupTexts(names, items)
    groups = groups_in(names.script, select, names.at)
    return frozenset(texts.group(each)[0] for each in groups if not _is_window(each))


def _is_window(node: exp.Expr) -> bool:
    return is_session(node) or window_kind(node) is not None


def _is_called(found: exp.Expr) -> bool:
    """Say whether this is the function before an OVER, which is computed over the groups."""
    filtered = isinstance(found.parent, exp.Filter) and found.arg_key == "this"
    whole = found.parent if filtered and found.parent is not None else found
    return isinstance(whole.parent, exp.Window) and whole.arg_key == "this"


def _of_groups(name: str, at: int) -> exp.Expr:
    made: exp.Expr = exp.column(name, table=_GROUPS, quoted=True)
    made.meta["start"] = at
    return made


def _is_over(node: exp.Expr) -> bool:
    """Say whether an expression computes something over several groups."""
    return node.find(exp.Window) is not None
