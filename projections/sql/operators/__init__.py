"""The plan tree: what its operators are, what names in a query mean, what nobody reads of it.

Upstream: resolved expressions. Downstream: `rendering` writes them, `planning` makes them.
Entry points: `tree`, `scope.QueryScope`, `pruning.pruned`, `shape.Plan`.
"""
