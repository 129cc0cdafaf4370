"""What stands in FROM or JOIN by a name of its own: a log, a table, or another projection."""

from __future__ import annotations

import difflib
from contextlib import suppress

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.operators.scope import QuerySource, source_of
from projections.sql.operators.shape import InputKind
from projections.sql.operators.windows import window_kind
from projections.sql.words.catalog import Catalog, Relation
from projections.sql.words.collected_refusals import apart, raising, refuse
from projections.sql.words.places import Script, offset_of

UNKNOWN = "unknown"
"""The field of an error with the name of a relation that there is not."""


def source_at(
    script: Script, node: exp.Expr, catalog: Catalog, *, index: int, at: int
) -> QuerySource:
    """Read one stream or table of FROM or JOIN, and look it up."""
    at = offset_of(node, at)
    streaming = isinstance(node, exp.Stream)
    table = node.this if streaming else node
    _refuse_without_facts(script, table, at)
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        called = isinstance(table, exp.Table) and window_kind(table.this) is not None
        raise script.refusal(
            "only tables and streams can be read here",
            at=at,
            fix="Group by the window: FROM t GROUP BY key, TUMBLE(ts, size)."
            if called
            else "Make the inner query a projection of its own, or join the table itself.",
        )
    if table.args.get("pivots"):
        raise script.refusal(
            "PIVOT groups by all columns that it does not name: a new field would change them",
            at=at,
            fix="Name them in a subquery, FROM (SELECT key, region, amount FROM …) PIVOT (…), or "
            "write a column for each value: SUM(x) FILTER (WHERE region = 'north') AS north.",
        )
    for clause, content in table.args.items():
        if content and clause not in ("this", "db", "catalog", "alias", "version"):
            raise script.refusal(
                f"{clause.upper()} after a table is not in the dialect", at=at, fix="Leave it out."
            )
    alias = table.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        raise script.refusal("an alias with columns", at=at, fix="Write the alias alone.")
    name = ".".join(str(part.name) for part in table.parts)
    version = table.args.get("version")
    if version is not None and (version.name.upper(), version.text("kind").upper()) != (
        "TIMESTAMP",
        "AS OF",
    ):
        raise script.refusal(
            "only FOR SYSTEM_TIME AS OF is known here",
            at=at,
            fix="Write table FOR SYSTEM_TIME AS OF t alias.",
        )
    kind, relation = _relation(
        script, catalog, name, streaming=streaming, versioned=version is not None, at=at
    )
    return source_of(
        script, relation, kind, alias=str(table.alias or table.name), index=index, at=at
    )


def _refuse_without_facts(script: Script, table: exp.Expr, at: int) -> None:
    """Refuse rows that no event and no change of a table tells of."""
    if isinstance(table, exp.Values):
        raise script.refusal(
            "VALUES behind FROM is not compiled alone: its rows come with no event and no change "
            "of a table",
            at=at,
            fix="Join it to rows that do: FROM x [LEFT] JOIN (VALUES (1, 'a'), (2, 'b')) AS "
            "v(k, name) ON v.k = x.k; or keep the rows in a table that is captured.",
        )
    if table.args.get("sample"):
        raise script.refusal(
            "TABLESAMPLE takes other rows at every run: a rebuild would differ",
            at=at,
            fix="Choose by a column: WHERE pmod(xxhash64(id), 100) < 10, or the first rows of an "
            "order: ORDER BY x LIMIT 10.",
        )


def _relation(
    script: Script, catalog: Catalog, name: str, *, streaming: bool, versioned: bool, at: int
) -> tuple[InputKind, Relation]:
    """Look an input up; say how it is read. Raises `InvalidRequest` with a form that works."""
    if versioned:
        kind, found = InputKind.HISTORY, catalog.history(name)
    elif streaming:
        kind, found = InputKind.STREAM, catalog.stream(name)
    else:
        kind, found = InputKind.LATEST, catalog.latest(name)
    if found is None:
        projection = catalog.projection(name)
        if projection is None:
            return _meant(script, catalog, name, kind, at)
        if kind is not InputKind.LATEST:
            raise script.refusal(
                f"{name} is a projection, which has neither a log nor versions",
                at=at,
                fix=f"Read its rows as they are: FROM {name}, JOIN {name} ON ….",
            )
        return InputKind.PROJECTION, projection
    if kind is InputKind.LATEST and not found.key:
        raise script.refusal(
            f"{name} has no primary key: nothing says which of its rows a change replaces",
            at=at,
            fix=f"Declare a key: CREATE SOURCE name ON {name} WITH (key = '…'), and read name.",
        )
    return kind, found


def look_at_inputs(script: Script, query: exp.Expr, catalog: Catalog, *, at: int) -> None:
    """Where errors are collected, look all inputs of a query up that are named as such."""
    own = {each.alias_or_name.lower() for each in query.find_all(exp.CTE, exp.Table, exp.Subquery)}
    for table in query.find_all(exp.Table):
        named = isinstance(table.this, exp.Identifier)
        first = str(table.parts[0].name).lower()
        # An alias is no name of a relation: what has one is looked up by the name before it.
        if named and (first not in own or (len(table.parts) == 1 and not table.alias)):
            item = table.parent if isinstance(table.parent, exp.Stream) else table
            if not any(first == each.alias.lower() for each in query.find_all(exp.CTE)):
                with apart():
                    source_at(script, item, catalog, index=0, at=at)


def _meant(
    script: Script, catalog: Catalog, name: str, kind: InputKind, at: int
) -> tuple[InputKind, Relation]:
    """Refuse a name of nothing; where errors are collected, return what is read in its place.

    That is the nearest name, or the same one read the other way.
    """
    stream, latest = catalog.stream(name), catalog.latest(name)
    if kind is InputKind.LATEST and stream is not None:
        fix = f"Write FROM STREAM {name}."
        refuse(script.refusal(f"{name} is a log, not a table", at=at, fix=fix), guessed=False)
        return InputKind.STREAM, stream
    if kind is InputKind.STREAM and latest is not None:
        fix = f"Leave out STREAM: {name}."
        refuse(script.refusal(f"{name} is a table, not a log", at=at, fix=fix), guessed=False)
        return InputKind.LATEST, latest
    near = None if latest is not None else _nearest(catalog, name, kind)
    error = _unknown(script, catalog, name, kind, at, near)
    refuse(error, guessed=near is None)
    if near is None:
        raise error
    return near


def _nearest(catalog: Catalog, name: str, kind: InputKind) -> tuple[InputKind, Relation] | None:
    """Return what is read the same way under the name that is nearest."""
    ask = {InputKind.STREAM: catalog.stream, InputKind.HISTORY: catalog.history}
    lookup = ask.get(kind, catalog.latest)
    known: dict[str, tuple[InputKind, Relation]] = {}
    with raising():
        for each in difflib.get_close_matches(name, catalog.names(), n=5, cutoff=0.6):
            with suppress(InvalidRequest):
                found = lookup(each)
                other = catalog.projection(each) if kind is InputKind.LATEST else None
                if found is not None:
                    known[each] = kind, found
                elif other is not None:
                    known[each] = InputKind.PROJECTION, other
    return next(iter(known.values()), None)


def _unknown(
    script: Script,
    catalog: Catalog,
    name: str,
    kind: InputKind,
    at: int,
    near: tuple[InputKind, Relation] | None,
) -> InvalidRequest:
    if kind is InputKind.HISTORY and catalog.latest(name) is not None:
        return script.refusal(
            f"{name} keeps no versions",
            at=at,
            fix=f"Declare it: CREATE SOURCE name ON {name} WITH (key = '…'), and join name.",
        )
    what = {InputKind.STREAM: "log", InputKind.HISTORY: "table with versions"}.get(kind, "table")
    hint = "" if near is None else f"; did you mean {near[1].name}?"
    error = script.refusal(
        f"there is no {what} named {name}{hint}",
        at=at,
        fix="Logs are events.<category>, events.<category>.<type> and <source>.<schema>.<table>; "
        "tables are <source>.<schema>.<table>, what CREATE SOURCE … ON declares, and projections.",
    )
    error.fields[UNKNOWN] = name
    return error
