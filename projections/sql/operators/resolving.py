"""Names of a step of a query: what they mean, as columns of the plan tree below it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from projections.sql.operators.scope import QueryScope, QuerySource
from projections.sql.operators.tree import WINDOW_END, WINDOW_START, Computed, column
from projections.sql.values.types import type_of
from projections.sql.words.places import Script
from projections.sql.words.type_names import normal

_OWN = {WINDOW_START: "TIMESTAMP", WINDOW_END: "TIMESTAMP"}


class Names:
    """The inputs of one SELECT, whose rows the tree has as columns `alias.column`."""

    def __init__(self, script: Script, sources: Sequence[QuerySource], *, at: int) -> None:
        self.script = script
        self.at = at
        self.scope = QueryScope(script, sources, at=at)
        self._types = {
            f"{source.alias}.{each.name}": normal(each.type)
            for source in sources
            for each in (*source.columns.values(), *source.fields)
        } | _OWN
        self._fields = {
            (source.alias, each.name.lower()): each for source in sources for each in source.fields
        }

    def flat(self, node: exp.Expr) -> exp.Expr:
        """Turn `alias`.`column` of a resolved expression into one name of the tree."""

        def renamed(found: exp.Expr) -> exp.Expr:
            if isinstance(found, exp.Dot):
                return self._field(found) or found
            if not isinstance(found, exp.Column) or not found.table:
                return found
            made = column(found.name if found.name in _OWN else f"{found.table}.{found.name}")
            made.meta.update(found.meta)
            return made

        return node.copy().transform(renamed)

    def _field(self, node: exp.Expr) -> exp.Expr | None:
        """Return the column that a field of a struct is, if it is one."""
        path, base = [node.name], node.this
        while isinstance(base, exp.Dot):
            path, base = [base.name, *path], base.this
        if not isinstance(base, exp.Column):
            return None
        known = self._fields.get((base.table, ".".join([base.name, *path]).lower()))
        made = None if known is None else column(f"{base.table}.{known.name}")
        if made is not None:
            made.meta.update(base.meta)
        return made

    def knows(self, name: str, kind: str) -> None:
        """Add a column that this step makes."""
        self._types[name] = kind

    def type_of(self, node: exp.Expr) -> str:
        """Return the type of an expression over the tree's columns, or the empty text."""
        return type_of(node, lambda found: self._types.get(found.name, ""))

    def computed(self, name: str, node: exp.Expr) -> Computed:
        """Make a column of the tree."""
        return Computed(name=name, expression=node, type=self.type_of(node))


def used(node: exp.Expr) -> set[str]:
    """Return the columns of the tree that an expression reads."""
    return {found.name for found in node.find_all(exp.Column)}
