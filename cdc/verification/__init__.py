"""The source's side of a comparison: its rows at one LSN, hashed by ranges of keys.

Upstream: a source database. Downstream: `apps.verification`, which compares with the lake.
Entry points: `source_rows.SourceRows`, `ranges.where`, `watermarks.emit`.
"""
