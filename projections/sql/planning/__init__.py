"""From a query to a plan tree: inputs, joins, groups, functions over rows, patterns.

Upstream: a declaration and a catalog. Downstream: `plans`.
Entry points: `reading.read_tree`.
"""
