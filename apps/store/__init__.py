"""The event store as a whole: written to files, read back, rebuilt from the lake, compared.

Upstream: eventstore.postgres.restoring (the database), projections.log (the lake). Downstream:
`penstock store`. Entry points: `dump.export`, `rebuild.rebuild`, `comparison.compare`.
"""
