"""What `*` means in a query over the lake: of a projection, the columns that its readers see.

What a table is kept by (its order, totals that facts are added to) may be read by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlglot import exp

from projections.serve.keyed_rows import is_hidden


def without_hidden(
    tables: Iterable[tuple[exp.Table, str]], columns: Mapping[str, Sequence[str]]
) -> None:
    """Leave the hidden columns of projections out of every `*` that stands before them.

    `tables` are those of the query under their places in the lake, each with the alias by which
    its columns are known; `columns` are those that a place has. The query is changed.
    """
    for table, place in tables:
        select = table.find_ancestor(exp.Select)
        hidden = [name for name in columns[place] if _is_hidden_of(place, name)]
        if select is None or not hidden or _is_only_met(table):
            continue
        for item in select.expressions:
            star = item.this if isinstance(item, exp.Column) else item
            if isinstance(star, exp.Star) and (star is item or _is_of(item, table)):
                _exclude(star, table.alias, hidden)


def shown_columns(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns of all places, each once, without the hidden ones of projections."""
    named = (n for place, names in columns.items() for n in names if not _is_hidden_of(place, n))
    return [*dict.fromkeys(named)]


def _is_hidden_of(place: str, name: str) -> bool:
    return place.startswith("projection/") and is_hidden(name)


def _is_only_met(table: exp.Table) -> bool:
    """Say whether a SEMI or ANTI JOIN asks for rows of a table, and gives none of its columns."""
    join = table.parent
    return isinstance(join, exp.Join) and join.text("kind").upper() in ("SEMI", "ANTI")


def _is_of(item: exp.Expr, table: exp.Table) -> bool:
    """Say whether `alias.*` is of a table."""
    return bool(item.text("table").lower() == table.alias.lower())


def _exclude(star: exp.Star, alias: str, hidden: Sequence[str]) -> None:
    """Write hidden columns into EXCLUDE, but for those that the author named in this `*`."""
    left_out = star.args.get("except_") or []
    changed = [*(star.args.get("replace") or []), *(star.args.get("rename") or [])]
    named = {
        each.name.lower() for each in left_out if each.text("table").lower() in {"", alias.lower()}
    }
    for each in changed:
        named |= {each.alias.lower(), each.this.name.lower()}
    made = [exp.column(n, table=alias, quoted=True) for n in hidden if n.lower() not in named]
    star.set("except_", [*left_out, *made])
