"""Composition roots: settings, wiring, the command line, and what runs as a process.

The only code that reads settings and wires adapters to ports.
Upstream: every package. Downstream: people and processes.
Entry points: `apps.cli.main`, `python -m apps.service`, `python -m apps.pipeline`.
"""
