"""What `*` means in a query over the lake: of a projection, the columns that its readers see.

What a table is kept by (its order, totals that facts are added to) may be read by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.serve.keyed_rows import is_hidden
from projections.sql.forms.natural_joins import is_natural, shared_by


def without_hidden(
    tables: Iterable[tuple[exp.Table, str]], columns: Mapping[str, Sequence[str]]
) -> None:
    """Leave the hidden columns of projections out of every `*` that stands before them.

    `tables` are those of the query under their places in the lake, each with the alias by which
    its columns are known; `columns` are those that a place has. The query is changed.
    """
    tables = [*tables]
    _name_what_is_shared(tables, columns)
    for table, place in tables:
        select = table.find_ancestor(exp.Select)
        hidden = [name for name in columns[place] if _is_hidden_of(place, name)]
        if select is None or not hidden or _is_only_met(table):
            continue
        for item in select.expressions:
            star = item.this if isinstance(item, exp.Column) else item
            if isinstance(star, exp.Star) and (star is item or _is_of(item, table)):
                _exclude(star, table.alias, hidden)


def _name_what_is_shared(
    tables: Sequence[tuple[exp.Table, str]], columns: Mapping[str, Sequence[str]]
) -> None:
    """Write a NATURAL JOIN of projections as one by the columns that both show.

    Raises `InvalidRequest` where it joins more than two tables by their names.
    """
    places = {id(table): place for table, place in tables}

    def hides(place: str) -> bool:
        return any(_is_hidden_of(place, name) for name in columns[place])

    for join in {id(j): j for table, _ in tables for j in _natural_joins(table)}.values():
        select = join.find_ancestor(exp.Select)
        source = select.args.get("from_") if select is not None else None
        left, right = getattr(source, "this", None), join.this
        here = [places[id(side)] for side in (left, right) if id(side) in places]
        if id(right) not in places or not any(map(hides, here)):
            continue
        if select is None or select.args["joins"][0] is not join:
            raise InvalidRequest(
                "a NATURAL JOIN with a projection would join by what the projection is kept by",
                remedy="Name the columns: JOIN … USING (column).",
            )
        if len(here) < 2:
            continue
        left_shown, right_shown = (
            [n for n in columns[place] if not _is_hidden_of(place, n)] for place in here
        )
        shared = shared_by(left_shown, right_shown)
        if not shared:
            raise InvalidRequest(
                "NATURAL JOIN: the two have no column in common",
                remedy="Write CROSS JOIN, or JOIN … ON a condition.",
            )
        join.set("method", None)
        join.set("using", [exp.to_identifier(name, quoted=True) for name in shared])


def _natural_joins(table: exp.Table) -> list[exp.Join]:
    """Return the NATURAL joins beside a table in its SELECT."""
    select = table.find_ancestor(exp.Select)
    joins = [] if select is None else select.args.get("joins") or []
    return [join for join in joins if is_natural(join)]


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
