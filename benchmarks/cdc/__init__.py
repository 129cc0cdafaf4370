"""Capture measured: every line of the speed table in one run, with raw results.

Upstream: a stack of its own, `python -m apps.pipeline`. Downstream: `benchmarks/results`.
Entry points: `python -m benchmarks cdc`, `benchmarks.cdc.run`.
"""

from benchmarks.cdc.table import CONDITIONS, NAME, add_options, run, summary

__all__ = ["CONDITIONS", "NAME", "add_options", "run", "summary"]
