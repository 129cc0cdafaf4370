"""How projections follow their inputs, beside ingest: what is deployed, what is due, what changed.

Upstream: plan trees of `projections.sql`, and new rows of the lake's typed tables and histories,
which are brought forward here first. Downstream: the projections' tables, and whoever reads them.
Entry points: `catalog.DeployedCatalog` (what is deployed), `derived_tables.DerivedTables.bring`,
`projector.Projector.run`, `dataflow.Dataflow` (regions of change, computed again).
"""
