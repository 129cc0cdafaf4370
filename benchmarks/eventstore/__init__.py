"""The event store beside its peers: every line of the table, in one run, with raw results.

Upstream: `python -m apps.service`, the store's Python API, `benchmarks.peers`. Downstream:
`benchmarks/results`, read by `python -m benchmarks.eventstore.report`.
Entry points: `python -m benchmarks eventstore`, `benchmarks.eventstore.run`.
"""

from benchmarks.eventstore.table import CONDITIONS, NAME, add_options, run, summary

__all__ = ["CONDITIONS", "NAME", "add_options", "run", "summary"]
