"""Replay: build a projection again from the lake, compare, swap, roll back.

Upstream: typed and history tables, the manifest, the catalog of what is deployed.
Downstream: the command line, upkeep. A build is the live runner's own query, slice by slice.
Entry points: `planning.plan_replay`, `build.Builder`, `cancel.pause`, `cancel.cancel`,
`verify.verify`, `report.write_report`, `swap.swap`, `swap.rollback`, `book.ReplayBook`,
`generation_files.remove_leftovers`.
"""
