"""`current/<source>.<table>`: one row per key, equal to the source's own SELECT at the cut.

Upstream: log, ddl. Downstream: installs, commit, readers.
Entry points: `tables.CurrentTables`, `tail` (base and tail, where a merge in every epoch would cost
too much).
"""
