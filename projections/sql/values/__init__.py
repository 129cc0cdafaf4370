"""Values of one row: which expressions there are, their types, what the small executor computes.

Upstream: parsed expressions. Downstream: the operators, and whoever writes their queries.
Entry points: `expressions.check`, `types.type_of`, `scalars`.
"""
