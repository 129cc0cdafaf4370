"""A source compared with its tables in the lake, at one LSN; what differs is healed.

Upstream: `cdc.verification` (the source's side), `pipeline.verification` (the lake's).
Downstream: `penstock source verify`, the pipeline's continuous verifier.
Entry points: `commands.verify`, `comparing.Comparison`, `healing.heal`.
"""
