"""Lambdas: `x -> x + 1`, which functions of arrays and maps ask for each element."""

from __future__ import annotations

from sqlglot import exp

from projections.sql.words.functions import function_of
from projections.sql.words.places import Script, offset_of


def check_lambda(script: Script, found: exp.Lambda, at: int) -> None:
    """Refuse a lambda that Spark does not compute, or that would read another name than it says."""
    if not isinstance(found.parent, exp.Anonymous):
        raise script.refusal(
            "a lambda belongs to a function of arrays or maps",
            at=at,
            fix="Write it in one: transform(lines, x -> x.price * x.pieces).",
        )
    names = {each.name.lower() for each in found.expressions}
    for part in found.this.walk():
        if isinstance(part, exp.Column) and str(part.parts[0].name).lower() in names:
            # To Spark it is the lambda's own, to us a column.
            raise script.refusal(
                f"{part.parts[0].name} is spelled otherwise where the lambda names it",
                at=offset_of(part, at),
                fix="Use the same letter case in both places.",
            )
        function = function_of(part)
        if function is not None:
            raise script.refusal(
                f"{function.name} is a function in Python: Spark calls none of them in a lambda",
                at=offset_of(part, at),
                fix="Read the elements as rows, FROM x LATERAL VIEW explode(x.lines) t AS line, "
                f"and call {function.name} there.",
            )
        if isinstance(part, exp.AggFunc | exp.Window):
            raise script.refusal(
                "an aggregate inside of a lambda",
                at=offset_of(part, at),
                fix="Read the elements as rows, FROM x LATERAL VIEW explode(x.lines) t AS line, "
                "and group them.",
            )
