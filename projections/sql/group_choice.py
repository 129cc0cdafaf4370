"""QUALIFY beside GROUP BY: the groups as a query of their own, and QUALIFY in the query around it.

What QUALIFY reads of the groups becomes a column of theirs: aggregates, expressions that are
grouped by, and columns, each whole. What it computes over several groups stays around them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.catalog import Relation
from projections.sql.expressions import AGGREGATES, same_text
from projections.sql.grouping import GroupTexts
from projections.sql.grouping_sets import groups_in
from projections.sql.places import offset_of
from projections.sql.query import Output, is_distinct, read_items
from projections.sql.ranking import Windows
from projections.sql.resolving import Names
from projections.sql.scope import QuerySource
from projections.sql.set_operations import distinct
from projections.sql.shape import InputKind
from projections.sql.time_zones import OF_ZONES
from projections.sql.tree import Computed, Map, Node, column
from projections.sql.windows import is_session, window_kind

_GROUPS = "penstock_groups"
_FURTHER = "penstock_group_"
"""The name of the groups, and what begins names of columns of theirs that no query has."""
_COMPUTED = (exp.Condition, exp.Filter, *OF_ZONES)
"""What has a value; not all of it is a condition to the parser."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChoice:
    """A SELECT of groups of which QUALIFY leaves some: the SELECT without it, and the rest."""

    select: exp.Select
    names: Names
    items: list[Output]
    qualify: exp.Expr
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
        outputs = [replace(each, expression=_of_groups(each.name, each.at)) for each in self.items]
        made: Node = Windows(names, outputs).results(Map(input=groups, outputs=named), self.qualify)
        return distinct(made) if self.distinct else made


def choice_of(names: Names, select: exp.Select) -> GroupChoice | None:
    """Read the QUALIFY of a SELECT with GROUP BY; None for a SELECT without both."""
    qualify = select.args.get("qualify")
    if qualify is None or select.args.get("group") is None:
        return None
    items = read_items(names.script, select, names.at)
    reading = _Reading(names=names, items=items, groups=_texts_of_groups(names, select, items))
    asked = reading.over_groups(qualify.this)
    groups = select.copy()
    for clause in ("qualify", "distinct"):
        groups.set(clause, None)
    groups.set("expressions", [*groups.expressions, *reading.further.values()])
    return GroupChoice(
        select=groups,
        names=names,
        items=items,
        qualify=exp.Qualify(this=asked),
        distinct=is_distinct(names.script, select, names.at),
    )


@dataclass(slots=True, kw_only=True)
class _Reading:
    """Finds what a QUALIFY reads of the groups. `further` are columns that SELECT has not."""

    names: Names
    items: list[Output]
    groups: frozenset[str]
    further: dict[str, exp.Expr] = field(default_factory=dict)

    def over_groups(self, node: exp.Expr) -> exp.Expr:
        """Turn an expression over rows and groups into one over columns of the groups."""
        texts = GroupTexts(self.names, self.items)

        def replaced(found: exp.Expr) -> exp.Expr:
            if not isinstance(found, _COMPUTED) or isinstance(found, exp.Literal):
                return found
            if isinstance(found, exp.Column):
                return self._column(found)
            whole = isinstance(found, (exp.Filter, exp.Grouping, *AGGREGATES))
            if (whole and not _is_called(found)) or texts.text(found) in self.groups:
                return self._further(found)
            return found

        return node.copy().transform(replaced)

    def _column(self, found: exp.Column) -> exp.Expr:
        """Read a name given by AS, which no column of the input has as well, or a column."""
        alone = len(found.parts) == 1
        item = next((i for i in self.items if i.name.lower() == found.name.lower()), None)
        if not alone or item is None:
            return self._further(found)
        if self.names.scope.knows(found.name):
            resolved = self.names.scope.resolve
            if same_text(resolved(found)) != same_text(resolved(item.expression)):
                raise self._ambiguous(found)
        return _of_groups(item.name, offset_of(found, self.names.at))

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
