"""Names in a query: which column of which input each of them means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from projections.sql.operators.shape import HIDDEN_TABLE, INGESTED_AT, InputKind
from projections.sql.words.catalog import Column, Relation
from projections.sql.words.collected_refusals import MISSPELT, refuse
from projections.sql.words.nested_types import StructOf, nested_of
from projections.sql.words.places import Script, near_of, nearest, offset_of

WINDOW_COLUMNS = {"window_start": "__window_start", "window_end": "__window_end"}
PROCESSING_TIME = INGESTED_AT.removeprefix("_")
OF_CHANGES = (Column(name="_operation", type="STRING"), Column(name="_lsn", type="BIGINT"))
"""What a change of a captured table has beside the row: no column of a table is called so."""
ROW_TIME = "rowtime"
"""ksqlDB's name for the event time of a row, where no input has a column of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySource:
    """An input under its alias. Columns by lower-case name, as Spark compares them.

    `fields` are those of structs among them, by `column.field`, that the rows have as columns too.
    `using` are those by which it is joined that an input before it has as well: a name without an
    alias is the one of that input.
    """

    alias: str
    index: int
    kind: InputKind
    relation: Relation
    columns: dict[str, Column]
    using: frozenset[str] = frozenset()
    fields: tuple[Column, ...] = ()

    @property
    def view(self) -> str:
        """The view that the runner registers for this input."""
        return f"in_{self.index}"


def source_of(
    script: Script, relation: Relation, kind: InputKind, *, alias: str, index: int, at: int
) -> QuerySource:
    """Make a source; refuse a relation with columns under names that the runner needs."""
    versions = ("valid_from", "valid_to") if kind is InputKind.HISTORY else ()
    columns = {column.name.lower(): column for column in relation.columns}
    for name in (*HIDDEN_TABLE, *WINDOW_COLUMNS.values(), *versions):
        if name in columns:
            raise script.refusal(
                f"{relation.name} has a column {name}, which is a name of Penstock's own",
                at=at,
                fix=f"Rename the field at its origin; reserved: {', '.join(HIDDEN_TABLE)}, "
                "valid_from, valid_to.",
            )
    columns |= {name: Column(name=name, type="TIMESTAMP") for name in versions}
    if kind is InputKind.STREAM:
        columns.setdefault(PROCESSING_TIME, Column(name=INGESTED_AT, type="TIMESTAMP"))
        if relation.copied is not None:
            columns |= {each.name: each for each in OF_CHANGES}
    return QuerySource(alias=alias, index=index, kind=kind, relation=relation, columns=columns)


def joined_by_names(source: QuerySource, join: exp.Expr) -> QuerySource:
    """Return an input with the columns in USING of its join."""
    names = frozenset(each.name.lower() for each in join.args.get("using") or [])
    return replace(source, using=names)


class QueryScope:
    """The sources of one query, first the driving one. `window` adds window_start, window_end.

    `shared` are the columns, in lower case, by which a join is made that either side may lack.
    """

    def __init__(self, script: Script, sources: Sequence[QuerySource], *, at: int) -> None:
        self.script = script
        self.sources = tuple(sources)
        self.at = at
        self.window = False
        self.shared: frozenset[str] = frozenset()

    def resolve(self, node: exp.Expr) -> exp.Expr:
        """Return a copy in which every column is `alias`.`column`, in its own spelling."""
        return node.copy().transform(self._resolve_one)

    def knows(self, name: str) -> bool:
        """Whether an unqualified name means a column of an input or of the window."""
        return (self.window and name.lower() in WINDOW_COLUMNS) or any(
            name.lower() in source.columns for source in self.sources
        )

    def having(self, name: str) -> list[QuerySource]:
        """Return the inputs of which an unqualified name in lower case may be a column.

        Of a RIGHT or FULL join by it either side may lack the value: it may be of both.
        """
        either = name in self.shared
        return [s for s in self.sources if name in s.columns and (either or name not in s.using)]

    def used(self, node: exp.Expr) -> set[str]:
        """Return the aliases that a resolved expression reads."""
        return {column.table for column in node.find_all(exp.Column)}

    def column(self, node: exp.Expr) -> Column | None:
        """Return the column that a resolved expression is, if it is one and nothing more."""
        if not isinstance(node, exp.Column):
            return None
        if node.name in WINDOW_COLUMNS.values():
            return Column(name=node.name, type="TIMESTAMP")
        source = next(source for source in self.sources if source.alias == node.table)
        name = PROCESSING_TIME if node.name == INGESTED_AT else node.name.lower()
        return source.columns[name]

    def _resolve_one(self, node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        at = offset_of(node, self.at)
        if isinstance(node.this, exp.Star):
            raise self.script.refusal(
                "* does not name columns: a new field would change the projection",
                at=at,
                fix=f"Name them: {', '.join(c.name for c in self.sources[0].relation.columns)}.",
            )
        parts = self._without_row_time([str(part.name) for part in node.parts])
        if len(parts) == 1 and self.window and parts[0].lower() in WINDOW_COLUMNS:
            return _made(self.sources[0].alias, WINDOW_COLUMNS[parts[0].lower()], at)
        if len(parts) == 1 and self._is_of_either(parts[0].lower()):
            return self._of_either(parts[0].lower(), at)
        source = self._by_alias(parts[0]) if len(parts) > 1 else None
        if source is None or self._is_of_its_own(source, parts):
            source, parts = self._by_column(parts, at)
        else:
            parts = parts[1:]
        name, *fields = parts
        column = source.columns.get(name.lower())
        if column is None:
            near = near_of(name, source.columns)
            error = self.script.refusal(
                f"{source.relation.name} has no column {name}{nearest(name, source.columns)}",
                at=at,
                fix=f"Columns of {source.relation.name}: {_names_of(source)}.",
            )
            error.fields[MISSPELT] = name
            refuse(error, guessed=near is None)
            column = source.columns[near or next(iter(source.columns))]
        return self._with_fields(_made(source.alias, column.name, at), fields, column, at)

    def _is_of_either(self, name: str) -> bool:
        """Say whether a name in lower case is that of a RIGHT or FULL join by it, and no other."""
        alone = [s for s in self.sources if name in s.columns and name not in s.using]
        return name in self.shared and len(alone) == 1

    def _of_either(self, name: str, at: int) -> exp.Expr:
        """Write a column in USING of a RIGHT or FULL join: that of the side which has the row."""
        own, *others = (_made(s.alias, s.columns[name].name, at) for s in self.having(name))
        return exp.Coalesce(this=own, expressions=others) if others else own

    def _without_row_time(self, parts: list[str]) -> list[str]:
        """Return the column that ROWTIME stands for; other names as they are."""
        source = self.sources[0] if len(parts) == 1 else self._by_alias(parts[0])
        if parts[-1].lower() != ROW_TIME or len(parts) > 2 or source is None:
            return parts
        known = self.knows(ROW_TIME) or source.relation.event_time is None
        return parts if known else [source.alias, source.relation.event_time or ""]

    def _with_fields(self, made: exp.Expr, fields: list[str], column: Column, at: int) -> exp.Expr:
        kind = column.type.upper()
        if fields and kind and not kind.startswith(("STRUCT", "MAP", "ARRAY")):
            refuse(
                self.script.refusal(
                    f"{column.name} is {column.type} and has no field {fields[0]}",
                    at=at,
                    fix=f"Write {column.name} alone.",
                )
            )
            fields = []
        struct = nested_of(column.type)
        if fields and isinstance(struct, StructOf) and struct.field(fields[0]) is None:
            known = [name for name, _ in struct.fields]
            near = near_of(fields[0], known)
            refuse(
                self.script.refusal(
                    f"{column.name} has no field {fields[0]}{nearest(fields[0], known)}",
                    at=at,
                    fix=f"Fields of {column.name}: {', '.join(known)}.",
                ),
                guessed=near is None,
            )
            fields = [near or known[0], *fields[1:]]
        for field in fields:
            made = exp.Dot(this=made, expression=exp.to_identifier(field, quoted=True))
        return made

    def _by_alias(self, alias: str) -> QuerySource | None:
        return next((s for s in self.sources if s.alias.lower() == alias.lower()), None)

    def _is_of_its_own(self, source: QuerySource, parts: list[str]) -> bool:
        """Say whether `line.sku` is a field of the column `line` of the input `line`."""
        own, name = parts[0].lower(), parts[1].lower()
        return name not in source.columns and self.having(own) == [source]

    def _by_column(self, parts: list[str], at: int) -> tuple[QuerySource, list[str]]:
        """Return the input of a name that begins with a column, and what of that it names.

        Where errors are collected, a wrong name is read as the nearest one, else as any.
        """
        name = parts[0].lower()
        having = self.having(name)
        if len(having) == 1:
            return having[0], parts
        aliases = [source.alias for source in self.sources]
        if having:
            either = ", ".join(f"{s.alias}.{parts[0]}" for s in having)
            one = f"Say which one: {having[0].alias}.{parts[0]}."
            refuse(
                self.script.refusal(
                    f"{parts[0]} is a column of {' and of '.join(s.alias for s in having)}",
                    at=at,
                    fix=f"Write COALESCE({either})." if name in self.shared else one,
                ),
                guessed=False,
            )
            return having[0], parts
        if len(parts) > 1:
            near = near_of(name, aliases)
            refuse(
                self.script.refusal(
                    f"{parts[0]} is neither an alias nor a column{nearest(name, aliases)}",
                    at=at,
                    fix=f"Aliases of this query: {', '.join(aliases)}.",
                ),
                guessed=near is None,
            )
            meant = None if near is None else self._by_alias(near)
            return self._any() if meant is None else (meant, parts[1:])
        if name in WINDOW_COLUMNS:
            refuse(
                self.script.refusal(
                    f"{parts[0]} needs a window",
                    at=at,
                    fix="Add GROUP BY TUMBLE(t, size) or HOP(t, slide, size).",
                )
            )
            return self._any()
        return self._nearest(parts[0], at)

    def _nearest(self, name: str, at: int) -> tuple[QuerySource, list[str]]:
        known = {column: source for source in self.sources for column in source.columns}
        near = near_of(name, known)
        error = self.script.refusal(
            f"no input has a column {name}{nearest(name, known)}",
            at=at,
            fix=f"Write {known[near].alias}.{near}."
            if near is not None
            else "A name given by AS is known in later results of the same SELECT, in GROUP BY, "
            "HAVING and QUALIFY, not in WHERE: repeat the expression there. Qualify columns by an "
            "alias: "
            f"{', '.join(source.alias for source in self.sources)}.",
        )
        error.fields[MISSPELT] = name
        refuse(error, guessed=near is None)
        return self._any() if near is None else (known[near], [near])

    def _any(self) -> tuple[QuerySource, list[str]]:
        """Return some column, in place of a name of which nothing is known."""
        source = next(each for each in self.sources if each.columns)
        return source, [next(iter(source.columns))]


def _names_of(source: QuerySource) -> str:
    return ", ".join(c.name for c in source.columns.values() if c.name != INGESTED_AT)


def _made(alias: str, name: str, at: int) -> exp.Expr:
    column = exp.Column(
        this=exp.to_identifier(name, quoted=True), table=exp.to_identifier(alias, quoted=True)
    )
    column.meta["start"] = at
    return column
