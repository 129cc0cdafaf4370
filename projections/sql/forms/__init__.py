"""Forms in which people and other systems write a query, as those that the planner knows.

Upstream: a parsed query as it was written. Downstream: `statements` and `planning`.
Entry points: `arguments.read_query`, `other_forms`, `subquery_joins.without_subqueries`.
"""
