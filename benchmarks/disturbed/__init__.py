"""Penstock beside Pathway on a topic whose records are late, doubled and out of order, killed once.

Upstream: a topic of JSON records made from a seed (`disorder`). Downstream: `benchmarks/results`.
Entry points: `python -m benchmarks disturbed`, `benchmarks.disturbed.run`.
"""

from benchmarks.disturbed.table import CONDITIONS, NAME, add_options, run, summary

__all__ = ["CONDITIONS", "NAME", "add_options", "run", "summary"]
