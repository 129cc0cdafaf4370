"""`deleted = '…'` of a source on a topic: which of its records end their key."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.forms.arguments import read_query
from projections.sql.operators.tree import column
from projections.sql.rendering.certified import uncertified_in
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.values.expressions import check
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column
from projections.sql.words.places import Script, nearest
from projections.sql.words.tokens import tokenized
from projections.sql.words.type_names import normal


def ending_text(condition: str, columns: Sequence[tuple[str, str]]) -> str:
    """Return a condition over declared columns, (name, Spark type), as DuckDB writes it.

    It is computed in this process for every record, so that only what is certified may stand in
    it. Raises `InvalidRequest`.
    """
    script = Script(origin="deleted", text=f"SELECT {condition}")
    query = read_query(script, tokenized(script))
    items = query.expressions if isinstance(query, exp.Select) else []
    rest = [name for name, part in query.args.items() if part and name != "expressions"]
    if len(items) != 1 or rest or isinstance(items[0], exp.Alias):
        raise InvalidRequest("it is no condition")
    check(script, items[0], at=0, aggregates=False)
    known = {name.lower(): Column(name=name, type=normal(kind)) for name, kind in columns}

    def resolved(found: exp.Expr) -> exp.Expr:
        if not isinstance(found, exp.Column):
            return found
        if len(found.parts) > 1 or found.name.lower() not in known:
            hint = nearest(found.name, known)
            raise InvalidRequest(f"the source declares no column {found.name}{hint}")
        return column(known[found.name.lower()].name)

    flat = items[0].transform(resolved)
    kind = type_of(flat, lambda found: known[found.name.lower()].type)
    if kind != "BOOLEAN":
        raise InvalidRequest(f"it is {kind or 'of no known type'}, neither true nor false")
    refused = uncertified_in(flat, tuple(known.values()))
    if refused is not None:
        raise InvalidRequest(f"it cannot be computed record by record: {refused}")
    return DuckText().expression(flat, tuple(known.values()))
