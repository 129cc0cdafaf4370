"""Bulk reading of tables at an exact place in the stream.

Upstream: a source database. Downstream: `cdc.copies`, which hands the rows to
`pipeline.installs.install_book`, and the healing of `cdc.verification`.
Entry points: `slot.exported_snapshot`, `chunks.plan_chunks`, `copying.read`.
"""
