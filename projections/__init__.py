"""SQL projections over the log and the tables kept from it: what they mean, how they run.

Upstream: lake, pipeline (epochs and their tables).
Downstream: replay, apps, and any engine that opens Delta tables.
Entry points: `sql.plan.plan`, `run.projector.Projector.run`, `serve.query.ask`.
"""
