"""Names given by AS that later results of the same SELECT use: `price * 2 AS x, x + 1 AS y`.

As in Spark a column of an input comes first, and the name stands for its expression.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp


def with_earlier_names(select: exp.Select, knows: Callable[[str], bool]) -> exp.Select:
    """Return a SELECT with the expressions in the place of such names.

    `knows` says whether a name is that of a column of an input.
    """
    given: dict[str, exp.Expr] = {}
    items: list[exp.Expr] = []

    def meant(found: exp.Expr) -> exp.Expr:
        alone = isinstance(found, exp.Column) and len(found.parts) == 1
        value = given.get(found.name.lower()) if alone and not knows(found.name) else None
        return found if value is None else exp.Paren(this=value.copy())

    for item in select.expressions:
        value = item.unalias()
        # What a subquery or the arguments of an aggregate read are columns of their inputs.
        plain = value.find(exp.Query) is None
        made = value.copy().transform(meant) if given and plain else value
        changed = made != value
        if changed and isinstance(made, exp.Paren) and isinstance(value, exp.Column):
            made = made.this
        items.append(exp.alias_(made, item.alias_or_name, quoted=True) if changed else item)
        if isinstance(item, exp.Alias):
            given.setdefault(item.alias.lower(), made)
    if all(one is other for one, other in zip(items, select.expressions, strict=True)):
        return select
    changed_select = select.copy()
    changed_select.set("expressions", [each.copy() for each in items])
    return changed_select
