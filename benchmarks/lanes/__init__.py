"""How fresh a quiet lane stays while another one is in trouble: its lag then, over that of before.

Upstream: a stack of its own, `python -m apps.pipeline`. Downstream: `benchmarks/results`.
Entry points: `python -m benchmarks lanes`, `benchmarks.lanes.run`.
"""

from benchmarks.lanes.table import CONDITIONS, NAME, add_options, run, summary

__all__ = ["CONDITIONS", "NAME", "add_options", "run", "summary"]
