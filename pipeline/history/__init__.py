"""`history/NAME`: every version of every key, with the time in which it held.

Upstream: lake. Downstream: projections and readers.
Entry point: `tables.HistoryTables`.
"""
