"""A query of several steps to a plan tree: FROM, WHERE, SELECT, and what stands around a SELECT.

Every SELECT becomes the same chain: its inputs joined one after the other, conditions, groups,
functions over rows, result columns. A subquery and a name of WITH are trees of their own, built
anew wherever they are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from sqlglot import exp

from projections.sql.forms.constant_queries import is_beside
from projections.sql.forms.earlier_names import with_earlier_names
from projections.sql.forms.element_forms import is_of_elements, refuse_before_outer
from projections.sql.forms.first_rows import with_first_rows
from projections.sql.forms.grouping_sets import has_sets, queries_of_sets
from projections.sql.forms.having_subqueries import without_having_subqueries
from projections.sql.forms.laterals import without_laterals
from projections.sql.forms.name_lists import with_names
from projections.sql.forms.named_windows import with_named_windows
from projections.sql.forms.outer_joins import adds_rows, full, mirrored, shared_columns
from projections.sql.forms.pivots import alias_of, pivoted
from projections.sql.forms.query_steps import STEPS
from projections.sql.forms.scalar_subqueries import with_values
from projections.sql.forms.set_operations import (
    distinct,
    in_order_of,
    matching,
    named_alike,
    operated,
    word_of,
)
from projections.sql.forms.subquery_joins import without_subqueries
from projections.sql.forms.total_queries import with_totals
from projections.sql.operators.inputs import source_at
from projections.sql.operators.query import (
    is_distinct,
    read_items,
    refuse_clauses,
    refuse_others,
    refuse_totals,
    resolved,
    unique,
)
from projections.sql.operators.resolving import Names
from projections.sql.operators.scope import QuerySource, joined_by_names
from projections.sql.operators.shape import HIDDEN_STREAM, InputKind
from projections.sql.operators.tree import (
    Computed,
    Map,
    Newest,
    Node,
    Scan,
    UnionAll,
    column,
    passed,
    walk,
)
from projections.sql.planning import joins
from projections.sql.planning.constant_rows import ConstantRows, constant_rows
from projections.sql.planning.emission import emitted
from projections.sql.planning.explosions import explosion_of
from projections.sql.planning.finality import final
from projections.sql.planning.group_choice import choice_of
from projections.sql.planning.grouping import GroupTexts, grouped
from projections.sql.planning.input_columns import InputColumns
from projections.sql.planning.key_columns import key_meant
from projections.sql.planning.matching import matched
from projections.sql.planning.ranking import Windows
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.statements.match_clause import MatchClause, clause_of, refuse_further
from projections.sql.values.constant_days import with_days
from projections.sql.values.expressions import conjuncts
from projections.sql.words.catalog import Catalog, Relation
from projections.sql.words.places import Script, offset_of
from projections.sql.words.type_names import normal

_AROUND = ("this", "expression", "distinct", "with_", "alias", "pivots")
"""What a query in brackets, or several with UNION and its like between, may have of its own."""


def read_tree(decl: ProjectionDecl, catalog: Catalog) -> Newest:
    """Read a projection's query. Raises `InvalidRequest` for what the dialect lacks."""
    reader = _Reader(
        script=decl.script,
        catalog=catalog,
        at=decl.offset,
        matches=decl.matches,
        inputs=InputColumns(decl.script, catalog, decl.matches, at=decl.offset),
    )
    # What it refuses may be deployed: a text that is only read is refused nothing here.
    node = reader.query(with_named_windows(decl.script, with_days(decl.query.copy())), {})
    known = {each.name.lower(): each.name for each in node.columns}
    keys = [n.lower() if n.lower() in known else key_meant(decl, n, known) for n in decl.key]
    newest = Newest(input=node, keys=tuple(known[name] for name in dict.fromkeys(keys)))
    if decl.final:
        return final(decl, newest)
    return newest if decl.when is None else emitted(decl, decl.when, newest)


@dataclass(slots=True, kw_only=True)
class _Reader:
    """Reads the SELECTs of one projection. `scanned` counts its inputs."""

    script: Script
    catalog: Catalog
    at: int
    matches: tuple[MatchClause, ...]
    inputs: InputColumns
    scanned: int = field(default=0)

    def query(self, node: exp.Expr, named: Mapping[str, exp.Expr]) -> Node:
        """Read a SELECT or a union. `named` are the queries of WITH around it."""
        node = self.inputs.joined(node, {**named, **self._with(node)})
        node = self.inputs.fixed(node, {**named, **self._with(node)})
        node = with_first_rows(self.script, node, offset_of(node, self.at))
        named = {**named, **self._with(node)}
        if not isinstance(node, exp.Select):
            by_name = ("by_name",) if isinstance(node, exp.Union) else ()
            refuse_others(self.script, node, offset_of(node, self.at), (*_AROUND, *by_name))
        match node:
            case exp.Subquery():
                return self.query(node.this, named)
            case exp.Union():
                union = UnionAll(inputs=self._sides(node, named))
                return distinct(union) if node.args.get("distinct") else union
            case exp.Intersect() | exp.Except():
                return operated(node, *self._sides(node, named))
            case exp.Select():
                return self._select(node, named)
            case _:
                raise self.script.refusal(
                    f"{word_of(node)} is not compiled",
                    at=offset_of(node, self.at),
                    fix="Write a SELECT, or several with UNION [ALL], INTERSECT or EXCEPT between.",
                )

    def _with(self, node: exp.Expr) -> dict[str, exp.Expr]:
        clause = node.args.get("with_")
        if clause is None:
            return {}
        if clause.args.get("recursive"):
            raise self.script.refusal(
                "WITH RECURSIVE is not compiled",
                at=offset_of(clause, self.at),
                fix="Write each step as a query of its own: WITH a AS (SELECT …), b AS (SELECT … "
                "FROM a JOIN t ON t.parent = a.id) SELECT … FROM a UNION ALL SELECT … FROM b. A "
                "sequence of numbers is LATERAL VIEW explode(sequence(1, 10)) v AS n.",
            )
        return {each.alias.lower(): self._renamed(each, each.this) for each in clause.expressions}

    def _renamed(self, item: exp.Expr, query: exp.Expr) -> exp.Expr:
        """Return a query with the names of columns that stand behind its own one."""
        return with_names(self.script, query, item.args.get("alias"), offset_of(item, self.at))

    def _sides(self, node: exp.SetOperation, named: Mapping[str, exp.Expr]) -> tuple[Node, Node]:
        """Read both sides of a UNION and its like, under the names that the first one has."""
        first = self.query(node.this, named)
        by_name = node.args.get("by_name")
        second = self.query(
            node.expression if by_name else named_alike(node.expression, first), named
        )
        if by_name:
            second = in_order_of(self.script, second, first, offset_of(node.expression, self.at))
        at = offset_of(node.expression, self.at)
        return matching(self.script, first, second, word_of(node), at)

    def _select(self, select: exp.Select, named: Mapping[str, exp.Expr]) -> Node:
        at = offset_of(select, self.at)
        is_distinct(self.script, select, at)
        refuse_clauses(self.script, select, at, known=STEPS)
        refuse_before_outer(self.script, select.args.get("joins") or [], at)
        shared = shared_columns(select.args.get("joins") or [])
        select = with_totals(select, lambda item: self.inputs.query_of(item, named))
        select = without_laterals(self.script, self.inputs.qualified(select, named), at)
        select = without_having_subqueries(self.script, self.inputs.owned(select, named), at)

        def known(query: exp.Select) -> set[str]:
            return self._columns(query, named, at)

        select = without_subqueries(self.script, select, at, known)
        select = mirrored(select)
        key_of = partial(self.inputs.key_of, named=named)
        select = with_values(self.script, select, at, known, key_of)
        if select.args.get("from_") is None:
            raise self.script.refusal(
                "a SELECT without FROM", at=at, fix="Read something: FROM STREAM events.<category>."
            )
        node, sources = self._joined(select, len(select.args.get("joins") or []), named, at)
        names = Names(self.script, sources, at=at)
        names.scope.shared = shared
        select = with_earlier_names(select, names.scope.knows)
        choice = choice_of(names, select)
        select = select if choice is None else choice.select
        made = self._rows(names, select, node, named, at)
        return made if choice is None else choice.among(made)

    def _rows(
        self, names: Names, select: exp.Select, node: Node, named: Mapping[str, exp.Expr], at: int
    ) -> Node:
        """Read what stands behind FROM, but for OVER and QUALIFY of groups."""
        if has_sets(select):
            return self._sets(names, select, named, at)
        where = select.args.get("where")
        conditions = conjuncts(where.this if where is not None else None)
        node = Map(
            input=node,
            outputs=passed(node.columns),
            where=tuple(names.flat(resolved(names.scope, part)) for part in conditions),
        )
        return self._results(names, select, node, at)

    def _joined(
        self, select: exp.Select, count: int, named: Mapping[str, exp.Expr], at: int
    ) -> tuple[Node, list[QuerySource]]:
        """Read FROM and the first `count` joins."""
        node, first = self._input(select.args["from_"].this, named, [], at)
        sources = [first]
        written = select.args.get("joins") or []
        for place, join in enumerate(written[:count]):
            if is_of_elements(join):
                node = self._exploded(join, node, sources, at)
                continue
            right, source = self._joined_input(join.this, named, sources, at)
            names = Names(self.script, [*sources, source], at=at)
            names.scope.shared = shared_columns(written[:place])
            if isinstance(right, ConstantRows):
                made: Node = right.joined(names, join, node)
            else:
                made = joins.joined(names, join, node, right, source)
            if adds_rows(join):
                left, before = self._joined(select, place, named, at)
                right, source = self._input(join.this, named, before, at)
                facts = _has_facts(left)
                alone = joins.unmatched(names, join, left, right, source, timed=facts)
                made = full(made, alone)
            node = made
            if joins.gives_columns(join):
                sources.append(joined_by_names(source, join))
        return node, sources

    def _exploded(self, join: exp.Expr, node: Node, sources: list[QuerySource], at: int) -> Node:
        """Join the rows so far with their own elements, and add these to their inputs."""
        explosion = explosion_of(Names(self.script, sources, at=at), join)
        self._refuse_alike(explosion.source, sources, offset_of(join, at))
        sources.append(explosion.source)
        return explosion.over(node)

    def _columns(self, select: exp.Select, named: Mapping[str, exp.Expr], at: int) -> set[str]:
        """Return the names of the columns of a query's inputs, without reading it for good."""
        scanned, sources = self.scanned, list[QuerySource]()
        first = select.args.get("from_")
        for item in (*([] if first is None else [first]), *(select.args.get("joins") or [])):
            if is_of_elements(item):
                names = Names(self.script, sources, at=at)
                sources.append(explosion_of(names, item).source)
            else:
                sources.append(self._joined_input(item.this, named, sources, at)[1])
        self.scanned = scanned
        return {name for source in sources for name in source.columns}

    def _sets(
        self, names: Names, select: exp.Select, named: Mapping[str, exp.Expr], at: int
    ) -> Node:
        """Read a SELECT once for each of its sets of groups."""
        items = read_items(self.script, select, at)
        queries = queries_of_sets(self.script, select, at, GroupTexts(names, items))
        first, *others = (self._select(each, named) for each in queries)
        return UnionAll(inputs=(first, *others)) if others else first

    def _results(self, names: Names, select: exp.Select, node: Node, at: int) -> Node:
        items = read_items(self.script, select, at)
        if select.args.get("group") is not None:
            made: Node = grouped(names, select, node, items)
        else:
            refuse_totals(self.script, items)
            if (having := select.args.get("having")) is not None:
                raise self.script.refusal(
                    "HAVING without GROUP BY",
                    at=offset_of(having, at),
                    fix="Use WHERE for single rows.",
                )
            made = Windows(names, items).results(node, select.args.get("qualify"))
        unique(self.script, tuple(items))
        return distinct(made) if is_distinct(self.script, select, at) else made

    def _input(
        self, item: exp.Expr, named: Mapping[str, exp.Expr], before: list[QuerySource], at: int
    ) -> tuple[Node, QuerySource]:
        """Read what stands in FROM or JOIN: its rows under the names `alias.column`."""
        at = offset_of(item, at)
        inner = self.inputs.inner(item, named)
        if inner is not None:
            if isinstance(item, exp.Subquery):
                refuse_others(self.script, item, at, _AROUND)
            query, rest = inner
            named_behind = isinstance(item, exp.Subquery) and item.alias_column_names
            known = self.inputs.fixed if named_behind else self.inputs.starless
            query = self._renamed(item, known(query, rest))
            query = pivoted(
                self.script, item, query, at, lambda rows, name: self._names(rows, name, rest, at)
            )
            node = self._read(query, rest)
            source = self._source(alias_of(item) or f"query_{len(before)}", node)
        else:
            source = source_at(self.script, item, self.catalog, index=self.scanned, at=at)
            self._check_versions(item, source, before, at)
            own = tuple(replace(c, type=normal(c.type)) for c in source.columns.values())
            node = Scan(
                kind=source.kind,
                relation=source.relation,
                view=source.view,
                columns=own,
            )
            self.scanned += 1
        self._refuse_alike(source, before, at)
        outputs = tuple(
            Computed(name=f"{source.alias}.{c.name}", expression=column(c.name), type=c.type)
            for c in node.columns
        )
        return Map(input=node, outputs=outputs), source

    def _joined_input(
        self, item: exp.Expr, named: Mapping[str, exp.Expr], before: list[QuerySource], at: int
    ) -> tuple[Node | ConstantRows, QuerySource]:
        """Read what stands in JOIN."""
        if not isinstance(item, exp.Values):
            return self._input(item, named, before, at)
        beside = Names(self.script, before, at=at) if is_beside(item) else None
        rows = constant_rows(self.script, item, index=self.scanned, at=at, before=beside)
        self._refuse_alike(rows.source, before, at)
        return rows, rows.source

    def _read(self, query: exp.Expr, named: Mapping[str, exp.Expr]) -> Node:
        """Read the query that an input stands for, or its pattern."""
        clause = clause_of(query, self.matches)
        return self.query(query, named) if clause is None else self._match(query, clause, named)

    def _source(self, alias: str, node: Node) -> QuerySource:
        relation = Relation(name=alias, columns=node.columns, key=(), event_time=None)
        return QuerySource(
            alias=alias,
            index=self.scanned,
            kind=InputKind.STREAM if _has_facts(node) else InputKind.LATEST,
            relation=relation,
            columns={each.name.lower(): each for each in relation.columns},
        )

    def _names(self, query: exp.Expr, alias: str, named: Mapping[str, exp.Expr], at: int) -> Names:
        """Return the names of the columns of a query, without reading it for good."""
        scanned = self.scanned
        source = self._source(alias, self._read(query, named))
        self.scanned = scanned
        return Names(self.script, [source], at=at)

    def _match(self, query: exp.Expr, clause: MatchClause, named: Mapping[str, exp.Expr]) -> Node:
        refuse_further(self.script, query, clause)
        rows, source = self._input(query.args["from_"].this, named, [], clause.at)
        return matched(Names(self.script, [source], at=clause.at), clause, rows)

    def _refuse_alike(self, source: QuerySource, before: list[QuerySource], at: int) -> None:
        if source.alias.lower() in {known.alias.lower() for known in before}:
            raise self.script.refusal(
                f"two inputs are named {source.alias}", at=at, fix="Give one of them another alias."
            )

    def _check_versions(
        self, item: exp.Expr, source: QuerySource, before: list[QuerySource], at: int
    ) -> None:
        if source.kind is InputKind.HISTORY and not before:
            raise self.script.refusal(
                "FOR SYSTEM_TIME AS OF belongs to a joined table",
                at=at,
                fix="Read FROM STREAM x, and join the table AS OF a time of x.",
            )
        for name in HIDDEN_STREAM:
            if name in source.columns:
                raise self.script.refusal(
                    f"{source.relation.name} has a column {name}, a name of Penstock's own",
                    at=at,
                    fix="Rename the field at its origin.",
                )


def _has_facts(node: Node) -> bool:
    return any(isinstance(each, Scan) and each.kind is InputKind.STREAM for each in walk(node))
