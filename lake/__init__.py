"""Delta tables below one URI, on a folder or an object store: where they lie, who writes them.

Upstream: schemas. Downstream: pipeline, projections, replay, apps.
Entry points: `layout.Lake` (names and paths), `tables.Tables` (one fresh handle per table),
`writer.ArrowWriter` and `spark_writer.SparkWriter` (guarded commits: the same write twice has the
effect of one), `savepoints.SavepointBook`.
"""
