"""Key columns that the SELECT of a projection does not give."""

from __future__ import annotations

from collections.abc import Mapping

from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.words.collected_refusals import MISSPELT, collected, refuse
from projections.sql.words.places import near_of


def key_meant(decl: ProjectionDecl, name: str, given: Mapping[str, str]) -> str:
    """Refuse a key column that is not among those `given`, by their names in lower case.

    Where errors are collected, returns the column that it is read as: the nearest, else the first.
    """
    near = near_of(name, given)
    found = collected()
    if near is not None and found is not None:
        wrong = {each.fields.get(MISSPELT) for each in found.errors}
        if given[near] in wrong:
            # It is in SELECT, under a wrong name that is refused there.
            return near
    hint = "" if near is None else f"; did you mean {given[near]}?"
    refuse(
        decl.script.refusal(
            f"key = '{', '.join(decl.key)}': the SELECT gives no column {name}{hint}",
            at=decl.key_at,
            fix=f"Add {name} to SELECT, or name columns that it gives: "
            f"{', '.join(given.values())}.",
        ),
        guessed=near is None,
    )
    return near or next(iter(given))
