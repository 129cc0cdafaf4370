"""Composition roots: the HTTP service, the Spark pipeline and the command line.

The only code that reads settings and wires adapters to ports.
Upstream: every package. Downstream: people and processes.
Entry points: `apps.cli.main`, `python -m apps.service`, `python -m apps.pipeline`.
"""
