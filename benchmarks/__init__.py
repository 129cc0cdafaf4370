"""Measurements of the real parts, each repeated in pairs and written down with machine facts.

Upstream: every package. Downstream: `benchmarks/results`, and whoever doubts a figure.
Entry points: `python -m benchmarks`, `benchmarks.harness.measure`.
"""
