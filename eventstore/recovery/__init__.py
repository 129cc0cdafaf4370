"""The event store as a whole: written to files, read back, rebuilt from the lake, compared.

Upstream: eventstore.postgres.restoring (the database), pipeline.log and lake (the log). Downstream:
`penstock store`. Entry points: `dump.export`, `rebuild.rebuild`, `comparison.compare`.
"""
