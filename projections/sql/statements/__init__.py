"""Statements: sources, tables, views and projections as a text declares them.

Upstream: a text. Downstream: declarations, whose queries are not planned yet.
Entry points: `parse.parse_script`, `declarations`, `lineage`.
"""
