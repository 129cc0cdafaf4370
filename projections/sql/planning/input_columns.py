"""What columns the inputs of a SELECT have, before any of them is read.

`*` in a query that another one reads is the columns that its inputs have: those that are not read
are of no matter, so that a new field changes nothing. In the outermost query it is known only where
all inputs are queries that name their columns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.forms.column_owners import qualified
from projections.sql.forms.comma_joins import alias_of_input, move_conditions
from projections.sql.forms.name_lists import is_star
from projections.sql.forms.natural_joins import is_natural, shared_by, without_natural_joins
from projections.sql.forms.outer_joins import adds_rows
from projections.sql.forms.pivots import pivot_columns
from projections.sql.operators.inputs import source_at
from projections.sql.operators.shape import InputKind
from projections.sql.statements.match_clause import MatchClause, clause_of, columns_of_match
from projections.sql.words.catalog import Catalog
from projections.sql.words.collected_refusals import raising
from projections.sql.words.places import Script, offset_of

_NAMELESS = "\0"
"""Begins what stands for the alias of a query that has none."""
Queries = Mapping[str, exp.Expr]
"""The queries of WITH, by their names in lower case."""


class InputColumns:
    """Looks up what stands in FROM and JOIN."""

    def __init__(
        self, script: Script, catalog: Catalog, matches: Sequence[MatchClause], *, at: int
    ) -> None:
        self._script = script
        self._catalog = catalog
        self._matches = matches
        self._at = at

    def owned(self, select: exp.Select, named: Queries) -> exp.Select:
        """Move conditions into joins, by the inputs that their columns are of."""
        made = self.qualified(select, named)
        move_conditions(made)
        return made

    def qualified(self, select: exp.Select, named: Queries) -> exp.Select:
        """Say of which inputs columns are, where joins and subqueries have to know it."""
        return qualified(select, lambda item: self._known(item, named))

    def joined(self, query: exp.Expr, named: Queries) -> exp.Expr:
        """Return a query with USING in the place of NATURAL."""
        if not isinstance(query, exp.Select):
            return query
        at = offset_of(query, self._at)
        return without_natural_joins(
            self._script, query, lambda i, fixed: self._visible(i, named, fixed=fixed), at
        )

    def starless(self, query: exp.Expr, named: Queries) -> exp.Expr:
        """Return a query that another one reads, with columns in the place of `*`."""
        return self._without_stars(query, named, fixed=False)

    def fixed(self, query: exp.Expr, named: Queries) -> exp.Expr:
        """Return a query with columns in the place of `*`, where its inputs name them."""
        return self._without_stars(query, named, fixed=True)

    def key_of(self, select: exp.Select, named: Queries) -> Collection[str]:
        """Return the key, in lower case, of the table that a query reads; nothing for others."""
        first = select.args.get("from_")
        item = None if first is None else first.this
        if item is None or isinstance(item, exp.Stream) or self.inner(item, named) is not None:
            return ()
        source = source_at(self._script, item, self._catalog, index=0, at=self._at)
        rows = source.kind in (InputKind.LATEST, InputKind.PROJECTION)
        return [each.lower() for each in source.relation.key] if rows else ()

    def inner(self, item: exp.Expr, named: Queries) -> tuple[exp.Expr, Queries] | None:
        """Return the query that an input stands for, with the names that it knows."""
        if isinstance(item, exp.Subquery):
            return item.this, named
        if isinstance(item, exp.Lateral) and isinstance(item.this, exp.Subquery):
            return item.this.this, named
        if isinstance(item, exp.Table) and len(item.parts) == 1 and item.name.lower() in named:
            before: dict[str, exp.Expr] = {}
            for name, query in named.items():
                if name == item.name.lower():
                    return query, before
                before[name] = query
        return None

    def query_of(self, item: exp.Expr, named: Queries) -> exp.Expr | None:
        """Return the query that an input stands for; None for what is read."""
        inner = self.inner(item, named)
        return None if inner is None else inner[0]

    def _known(self, item: exp.Expr, named: Queries) -> Collection[str] | None:
        """Return the columns of an input in lower case, those that `*` leaves out, too."""
        inner = self.inner(item, named)
        if inner is not None or _names_behind(item):
            names = self._visible(item, named, fixed=False)
            return None if names is None else [each.lower() for each in names]
        try:
            with raising():
                return source_at(self._script, item, self._catalog, index=0, at=self._at).columns
        except InvalidRequest:
            return None  # It is refused where it is read.

    def _visible(self, item: exp.Expr, named: Queries, *, fixed: bool) -> Sequence[str] | None:
        """Return the columns of an input in their order; None where they are not known.

        `fixed`: those alone that a query names.
        """
        if _names_behind(item):
            return _names_behind(item)
        inner = self.inner(item, named)
        clause = None if inner is None else clause_of(inner[0], self._matches)
        if inner is not None and clause is not None:
            rows = inner[0].args["from_"].this
            return columns_of_match(clause, self._visible(rows, inner[1], fixed=fixed))
        if inner is not None:
            query = self._without_stars(*inner, fixed=fixed)
            return self._of_pivot(item, query) if item.args.get("pivots") else _given(query)
        if fixed:
            return None
        try:
            with raising():
                source = source_at(self._script, item, self._catalog, index=0, at=self._at)
        except InvalidRequest:
            return None
        return [each.name for each in source.relation.columns]

    def _of_pivot(self, item: exp.Expr, query: exp.Expr) -> Sequence[str] | None:
        try:
            with raising():
                return pivot_columns(self._script, item, query, self._at)
        except InvalidRequest:
            return None  # It is refused where it is read.

    def _without_stars(self, query: exp.Expr, named: Queries, *, fixed: bool) -> exp.Expr:
        if not isinstance(query, exp.Select) or (query.args.get("distinct") and not fixed):
            return query
        if not any(map(is_star, query.expressions)):
            return query
        inputs = self._inputs(query, named, fixed=fixed)
        items: list[exp.Expr] = []
        for item in query.expressions:
            made = _columns(item, query, inputs, self._at) if is_star(item) else [item]
            if made is None:
                return query  # It is refused where it is read.
            items += made
        changed = query.copy()
        changed.set("expressions", [each.copy() for each in items])
        return changed

    def _inputs(
        self, select: exp.Select, named: Queries, *, fixed: bool
    ) -> dict[str, Sequence[str] | None]:
        """Return the columns of each input of which `*` has some, by its alias."""
        first = select.args.get("from_")
        found: dict[str, Sequence[str] | None] = {}
        if first is not None:
            found[alias_of_input(first.this)] = self._visible(first.this, named, fixed=fixed)
        for place, join in enumerate(select.args.get("joins") or []):
            if join.text("kind").upper() in ("SEMI", "ANTI"):
                continue
            alias = _alias_at(join, place)
            found[alias] = self._visible(join.this, named, fixed=fixed)
        return found


def _alias_at(join: exp.Expr, place: int) -> str:
    return alias_of_input(join.this) or f"{_NAMELESS}{place}"


def _names_behind(item: exp.Expr) -> list[str]:
    alias = item.args.get("alias")
    names = alias.args.get("columns") if isinstance(alias, exp.TableAlias) else None
    return [each.name for each in names or []]


def _given(query: exp.Expr) -> list[str] | None:
    """Return the names of a query's results; None where they are not plain."""
    while isinstance(query, exp.SetOperation | exp.Subquery):
        if isinstance(query, exp.Subquery) and query.args.get("pivots"):
            return None
        query = query.this
    if not isinstance(query, exp.Select) or any(map(is_star, query.expressions)):
        return None
    names = [_name_of(each) for each in query.expressions]
    return None if "" in names else names


def _name_of(item: exp.Expr) -> str:
    return str(item.expression.name if isinstance(item, exp.Dot) else item.alias_or_name)


def _columns(
    item: exp.Expr, select: exp.Select, inputs: Mapping[str, Sequence[str] | None], at: int
) -> list[exp.Expr] | None:
    """Return the columns that a `*` stands for; None where they are not known."""
    star = item.this if isinstance(item, exp.Column) else item
    further = [name for name, content in star.args.items() if content]
    left_out = {each.name.lower() for each in star.args.get("except_") or []}
    wanted = [item.table.lower()] if isinstance(item, exp.Column) else [*inputs]
    if any(inputs.get(alias) is None for alias in wanted) or {*further} - {"except_", "replace"}:
        return None
    known = {alias: names or () for alias, names in inputs.items()}
    pairs = (
        [(wanted[0], name) for name in known[wanted[0]]]
        if isinstance(item, exp.Column)
        else _in_order(select, known)
    )
    other = {each.alias.lower(): each.copy() for each in star.args.get("replace") or []}
    made: list[exp.Expr] = []
    for alias, name in pairs:
        if name.lower() not in left_out:
            table = None if alias.startswith(_NAMELESS) or not alias else alias
            column: exp.Expr = exp.column(name, table=table, quoted=True)
            column.meta["start"] = offset_of(item, at)
            made.append(other.get(name.lower(), column))
    return made


def _in_order(select: exp.Select, inputs: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    """Return the columns of all inputs with their aliases: those in USING come first, and once.

    Of a RIGHT or FULL join these are of either side: they have no alias.
    """
    first = select.args.get("from_")
    own = "" if first is None else alias_of_input(first.this)
    found = [(own, name) for name in inputs.get(own, ())]
    for place, join in enumerate(select.args.get("joins") or []):
        alias = _alias_at(join, place)
        using = [each.name.lower() for each in join.args.get("using") or []]
        if is_natural(join):
            using = shared_by([name.lower() for _, name in found], inputs.get(alias, ()))
        either = adds_rows(join)
        by = [
            ("" if either else alias, name)
            for each in using
            for alias, name in found
            if name.lower() == each
        ]
        rest = [*found, *((alias, name) for name in inputs.get(alias, ()))]
        found = [*by, *(pair for pair in rest if pair[1].lower() not in using)]
    return found
