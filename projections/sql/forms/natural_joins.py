"""NATURAL JOIN as the USING that it is: of all columns that both sides have.

It is known where the inputs are queries that name their columns. A table gets new columns, and by
each that the other side has, too, a NATURAL JOIN would join as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from projections.sql.words.places import Script, offset_of

Visible = Callable[[exp.Expr, bool], Sequence[str] | None]
"""Returns the columns of an input in their order, or with True those alone that a query names."""


def is_natural(join: exp.Expr) -> bool:
    """Say whether a join is by all columns that both sides have."""
    return join.text("method").upper() == "NATURAL"


def shared_by(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Return the columns of the left side that the right side has, too, each once."""
    theirs = {name.lower() for name in right}
    found = {name.lower(): name for name in reversed(left) if name.lower() in theirs}
    return [*reversed(found.values())]


def without_natural_joins(
    script: Script, select: exp.Select, visible: Visible, at: int
) -> exp.Select:
    """Write the NATURAL JOINs of a SELECT with USING.

    Raises `InvalidRequest` for one of a table, or of inputs without a column in common.
    """
    if not any(map(is_natural, select.args.get("joins") or [])):
        return select
    changed = select.copy()
    items = [changed.args["from_"].this]
    for join in changed.args["joins"]:
        if is_natural(join):
            names = shared_by(_named(items, visible, True) or (), visible(join.this, True) or ())
            place = offset_of(join.this, at)
            if any(visible(each, True) is None for each in (*items, join.this)):
                raise _of_table(script, items, join, visible, place)
            if not names:
                raise script.refusal(
                    "NATURAL JOIN of inputs that have no column in common",
                    at=place,
                    fix="Say what is joined: JOIN x ON x.key = …; each row with each other is "
                    "CROSS JOIN x.",
                )
            join.set("method", None)
            join.set("using", [exp.to_identifier(name, quoted=True) for name in names])
        if join.text("kind").upper() not in ("SEMI", "ANTI"):
            items.append(join.this)
    return changed


def _named(items: Sequence[exp.Expr], visible: Visible, fixed: bool) -> list[str] | None:
    found = [visible(each, fixed) for each in items]
    return None if None in found else [name for names in found for name in names or ()]


def _of_table(
    script: Script, items: Sequence[exp.Expr], join: exp.Expr, visible: Visible, at: int
) -> Exception:
    names = shared_by(_named(items, visible, False) or (), visible(join.this, False) or ())
    using = f"{join.this.alias_or_name} USING ({', '.join(names or ['key'])})"
    return script.refusal(
        "NATURAL JOIN of a table or a stream: by a new column of both sides it would join, too",
        at=at,
        fix=f"Say by which: JOIN … {using}; or name the columns of "
        "both sides, NATURAL JOIN (SELECT a, b FROM …) x.",
    )
