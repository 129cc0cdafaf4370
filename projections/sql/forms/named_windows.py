"""`WINDOW w AS (…)`: what a SELECT names for OVER, written out where OVER says the name."""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from projections.sql.words.places import Script, nearest, offset_of

_PARTS = ("partition_by", "order", "spec")


def with_named_windows(script: Script, query: exp.Expr) -> exp.Expr:
    """Write named windows out, in all SELECTs of a query; it is changed.

    Raises `InvalidRequest` for a name that no WINDOW gives, and for one that is changed by OVER.
    """
    for select in [*query.find_all(exp.Select)]:
        named: dict[str, exp.Expr] = {}
        for each in select.args.get("windows") or []:
            _write_out(script, each, named)
            if each.name.lower() in named:
                raise script.refusal(
                    f"two windows are named {each.name}",
                    at=offset_of(each, offset_of(select, 0)),
                    fix="Give one of them another name.",
                )
            named[each.name.lower()] = each
        select.set("windows", None)
        for window in [*select.find_all(exp.Window)]:
            if window.find_ancestor(exp.Select) is select:
                _write_out(script, window, named)
    return query


def _write_out(script: Script, window: exp.Expr, named: Mapping[str, exp.Expr]) -> None:
    """Give a window the parts of the one that it names."""
    name = window.args.get("alias")
    if name is None:
        return
    at = offset_of(name, offset_of(window, 0))
    meant = named.get(name.name.lower())
    if meant is None:
        raise script.refusal(
            f"OVER {name.name}: no WINDOW has this name{nearest(name.name, named)}",
            at=at,
            fix=f"Name it behind all other clauses: WINDOW {name.name} AS (PARTITION BY … ORDER "
            "BY …); or write it out: OVER (PARTITION BY … ORDER BY …).",
        )
    own = [place for place, part in enumerate(_PARTS) if window.args.get(part)]
    given = [place for place, part in enumerate(_PARTS) if meant.args.get(part)]
    # A frame may stand behind the name, and an order where the window has none.
    if own and own[0] <= max(given, default=0):
        raise script.refusal(
            f"OVER ({name.name} …) changes the window that it names",
            at=at,
            fix="Write this one out: OVER (PARTITION BY … ORDER BY …).",
        )
    for place in given:
        content = meant.args[_PARTS[place]]
        copied = [e.copy() for e in content] if isinstance(content, list) else content.copy()
        window.set(_PARTS[place], copied)
    window.set("alias", None)
