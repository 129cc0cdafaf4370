"""From log to tables: the append-only log, state kept from it, SQL projections over both.

Upstream: schemas (records decoded by cdc and eventstore, handed in by apps).
Downstream: replay, apps, and any engine that opens Delta tables.
Entry points: `pipeline.commit.ingest.Ingest`, `projections.run.projector.Projector`,
`projections.sql.plan.plan`, `projections.serve.query`.
"""
