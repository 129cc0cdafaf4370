"""Replay: build a projection again from the lake, compare, swap, roll back.

Upstream: typed and history tables, the manifest, the catalog of what is deployed.
Downstream: the command line. The build is the live runner's own code on the whole range.
Entry points: `planning.plan_replay`, `build.Builder`, `verify.verify`, `swap.swap`,
`swap.rollback`, `cancel.cancel`, `book.ReplayBook`.
"""
