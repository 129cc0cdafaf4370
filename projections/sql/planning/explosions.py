"""Elements of arrays and entries of maps as rows: what a join of rows with their own elements is.

The form is read by `projections.sql.forms.element_forms`; here names and types are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.forms.element_forms import FORM, is_generator, names_of
from projections.sql.forms.outer_joins import side_of
from projections.sql.operators.query import resolved
from projections.sql.operators.resolving import Names
from projections.sql.operators.scope import QuerySource
from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import Computed, Exploded, Map, Node, passed
from projections.sql.values.expressions import render
from projections.sql.words.catalog import Column, Relation
from projections.sql.words.nested_types import (
    ArrayOf,
    ElementColumn,
    MapOf,
    StructOf,
    fields_in,
    nested_of,
)
from projections.sql.words.places import offset_of

_JOINED = (
    "Write CROSS JOIN UNNEST(x.lines) AS t(line), or LEFT JOIN UNNEST(x.lines) AS t(line) ON TRUE."
)
_PIVOTED = (
    "Write FROM (SELECT x.key, line.sku, line.n FROM x LATERAL VIEW explode(x.lines) t AS line) q "
    "PIVOT (SUM(n) FOR sku IN ('a', 'b'))."
)
_OF_STRUCTS = (exp.Inline, exp.Anonymous)
"""The parser does not know `inline_outer`."""
Parts = Sequence[tuple[str, str, tuple[str, ...]]]
"""What elements give: the name of each column by itself, its type, and the field that it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explosion:
    """A join of rows with the elements of an array of theirs, under the names of `source`."""

    source: QuerySource
    values: exp.Expr
    type: str
    entries: bool
    outer: bool
    place: str | None
    first: int
    elements: tuple[ElementColumn, ...]

    def over(self, node: Node) -> Exploded:
        """Return the node that explodes rows."""
        kept = tuple(each.name for each in node.columns)
        if isinstance(self.values, exp.Column):
            values = self.values.name
        else:
            values = f"__x{sum(name.startswith('__x') for name in kept)}"
            made = Computed(name=values, expression=self.values, type=self.type)
            node = Map(input=node, outputs=(*passed(node.columns), made))
        return Exploded(
            input=node,
            values=values,
            entries=self.entries,
            outer=self.outer,
            kept=kept,
            place=self.place,
            first=self.first,
            elements=self.elements,
        )


def explosion_of(names: Names, join: exp.Expr) -> Explosion:
    """Read a join of rows with their own elements. Raises `InvalidRequest` for what is none."""
    return _Reading(names, join).explosion()


class _Reading:
    """Reads one form: what is exploded, and what its columns are called."""

    def __init__(self, names: Names, join: exp.Expr) -> None:
        self._names = names
        self._join = join
        item = join.this
        lateral = isinstance(item, exp.Lateral)
        self._call = item.this if lateral else item
        alias = item.args.get("alias")
        self._alias = "" if alias is None else str(alias.name)
        self._named = [*names_of(alias)]
        self._at = offset_of(item, names.at)
        self._outer = side_of(join) == "LEFT" or bool(lateral and item.args.get("outer"))

    def explosion(self) -> Explosion:
        self._check_join()
        unnest = isinstance(self._call, exp.Unnest)
        values = self._values()
        kind = self._names.type_of(values)
        numbered, first = self._numbered()
        parts, entries = self._parts(values, kind, numbered)
        if not self._alias:
            raise self._refusal("elements without an alias", _JOINED if unnest else FORM)
        own = [name for name, _, _ in parts]
        place, given = self._placed(own, numbered, last=unnest)
        named = [*([place] if place else []), *given]
        if len({name.lower() for name in named}) < len(named):
            raise self._refusal("two columns of one name", "Give each a name of its own.")
        whole = [((name,), kind, path) for name, (_, kind, path) in zip(given, parts, strict=True)]
        fields = [
            ((*names, *further), inner, (*path, *further))
            for names, kind, path in whole
            for further, inner in fields_in(kind)
        ]
        columns = tuple(Column(name=name, type=kind) for (name,), kind, _ in whole)
        if place:
            columns = (*columns, Column(name=place, type="BIGINT" if first else "INT"))
        source = QuerySource(
            alias=self._alias,
            index=0,
            kind=InputKind.STREAM,
            relation=Relation(name=self._alias, columns=columns, key=(), event_time=None),
            columns={each.name.lower(): each for each in columns},
            fields=tuple(Column(name=".".join(names), type=kind) for names, kind, _ in fields),
        )
        return Explosion(
            source=source,
            values=values,
            type=kind,
            entries=entries,
            outer=self._outer or isinstance(self._call, exp.ExplodeOuter | exp.Anonymous),
            place=f"{self._alias}.{place}" if place else None,
            first=first,
            elements=tuple(
                ElementColumn(name=".".join([self._alias, *names]), type=kind, path=path)
                for names, kind, path in (*whole, *fields)
            ),
        )

    def _check_join(self) -> None:
        join = self._join
        if join.args.get("pivots"):
            raise self._refusal("PIVOT stands behind a query in brackets, not elements", _PIVOTED)
        if not (isinstance(self._call, exp.Unnest) or is_generator(self._call)):
            raise self._refusal(f"{render(self._call)} gives no elements that are read", FORM)
        on = join.args.get("on")
        always = on is None or (isinstance(on, exp.Boolean) and bool(on.this))
        side, kind = side_of(join), join.text("kind").upper()
        plain = (side, kind) in (("", "CROSS"), ("", ""), ("", "INNER"), ("LEFT", ""))
        plain = plain or (side, kind) == ("LEFT", "OUTER")
        known = ("this", "side", "kind", "on")
        further = [clause for clause, given in join.args.items() if given and clause not in known]
        if not (always and plain) or further or (side == "LEFT" and on is None):
            raise self._refusal("elements are joined to their own row by no condition", _JOINED)

    def _values(self) -> exp.Expr:
        call = self._call
        own = [] if isinstance(call, exp.Unnest | exp.Anonymous) else [call.this]
        given = [*own, *(call.args.get("expressions") or [])]
        if len(given) != 1:
            raise self._refusal("elements of several arrays side by side are not read", FORM)
        return self._names.flat(resolved(self._names.scope, given[0]))

    def _numbered(self) -> tuple[bool, int]:
        """Return whether there is a column with the place of an element, and its first number."""
        if isinstance(self._call, exp.Unnest):
            offset = self._call.args.get("offset") or self._join.this.args.get("ordinality")
            if isinstance(offset, exp.Identifier):
                self._named.append(str(offset.name))
            return bool(offset), 1
        if self._join.this.args.get("ordinality"):
            raise self._refusal("WITH ORDINALITY goes with UNNEST", "Write posexplode(x.lines).")
        return isinstance(self._call, exp.Posexplode), 0

    def _parts(self, values: exp.Expr, kind: str, numbered: bool) -> tuple[Parts, bool]:
        """Return the columns that an element gives, and whether it is an entry of a map."""
        nested = nested_of(kind)
        count = len(self._named) - numbered
        match nested:
            case MapOf():
                self._refuse_inline(kind)
                return [("key", nested.key, ("key",)), ("value", nested.value, ("value",))], True
            case ArrayOf():
                return self._of_array(nested.element, count), False
            case _ if (kind and "<" not in kind) or isinstance(nested, StructOf):
                raise self._refusal(
                    f"{render(values)} is {kind}, neither an array nor a map",
                    "Explode an array, as explode(split(tags, ',')), or a map.",
                )
            case _:
                self._refuse_inline("what only Spark derives")
                if count == 2:
                    return [("key", "", ("key",)), ("value", "", ("value",))], True
                return [("col", "", ())], False

    def _of_array(self, element: str, count: int) -> Parts:
        struct = nested_of(element)
        fields = struct.fields if isinstance(struct, StructOf) else ()
        whole: Parts = [("col", element, ())]
        apart: Parts = [(name, kind, (name,)) for name, kind in fields]
        if isinstance(self._call, _OF_STRUCTS):
            if not fields:
                self._refuse_inline(f"ARRAY<{element}>")
            return apart
        if not isinstance(self._call, exp.Unnest) or not fields:
            return whole
        if len(fields) == 1 and count == 1:
            raise self._refusal(
                "UNNEST of structs of one field: the name may be that of either",
                "Say which: LATERAL VIEW explode(x.lines) t AS line, or LATERAL VIEW inline(…).",
            )
        return whole if count == 1 else apart

    def _refuse_inline(self, kind: str) -> None:
        if isinstance(self._call, _OF_STRUCTS):
            raise self._refusal(f"inline of {kind}: it reads arrays of structs", FORM)

    def _placed(
        self, own: Sequence[str], numbered: bool, *, last: bool
    ) -> tuple[str | None, Sequence[str]]:
        """Return the name of the place, and those of the columns that elements give."""
        given = self._named or [*(["pos"] if numbered and not last else []), *own]
        if last and not self._named and len(own) == 1:
            given = [self._alias]  # As PostgreSQL has it, the alias is the column's name, too.
        if len(given) != len(own) + numbered:
            raise self._refusal(
                f"an element gives {len(own) + numbered} columns here, not {len(given)}",
                f"Name each: {', '.join([*(['pos'] if numbered else []), *own])}.",
            )
        if not numbered:
            return None, given
        return (given[-1], given[:-1]) if last else (given[0], given[1:])

    def _refusal(self, message: str, fix: str) -> InvalidRequest:
        return self._names.script.refusal(message, at=self._at, fix=fix)
