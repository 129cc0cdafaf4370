"""How a batch commits: epochs, their manifest, ingest, and projections beside it.

Upstream: log, state, sql. Downstream: apps.pipeline, replay.
Entry points: `ingest.Ingest.run_epoch` (the numbered protocol), `manifest.Manifest`,
`projector.Projector.run_due`.
"""
