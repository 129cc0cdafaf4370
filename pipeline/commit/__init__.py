"""How a batch becomes an epoch: the numbered protocol, its manifest, what is decided of records.

Upstream: every other folder of the pipeline. Downstream: projections, replay, apps.pipeline.
Entry points: `ingest.Ingest.run_epoch`, `manifest.Manifest`.
"""
