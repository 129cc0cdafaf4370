"""Reading the lake as of one epoch, with the stack up or down.

Upstream: the lake (tables and manifest). Downstream: the command line and the HTTP service.
Entry points: `query.ask`, `query.LakeQueries`, `lake_tables.list_tables`, `versions.EpochVersions`.
"""
