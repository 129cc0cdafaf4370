"""A source compared with its tables in the lake, at one LSN; what differs is healed.

Upstream: a source database, its rows hashed by ranges of keys; `pipeline.verification`, the lake's
side. Downstream: `penstock source verify`, the pipeline's continuous verifier.
Entry points: `on_demand.verify`, `verifier.Verifying`, `comparison.Comparison`, `healing.heal`;
of the source's side `source_rows.SourceRows`, `watermarks.emit`.
"""
