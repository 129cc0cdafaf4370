"""`typed/…`: the visible part of the log, with what it carries as columns.

Upstream: log, ddl, installs. Downstream: projections and readers.
Entry point: `tables.TypedTables`.
"""
