"""The process that runs ingest: it has one lake by a lease, and its loops must not stand still.

Upstream: pipeline (what its loops do), lake (the lease). Downstream: `python -m apps.pipeline`,
which makes the loops and hands them in; `service.pipeline_endpoint` shows metrics and health.
Entry points: `watchdog.Watchdog`, `lease_keeper.LeaseKeeper`, `lag_watch.LagWatch`,
`metrics.ProcessMetrics`.
"""
