"""What keeps a lake small: many small files put together, old versions removed.

Upstream: lake. Downstream: apps.pipeline, which runs it beside the epochs.
Entry points: `compaction.compact`, `spark_compaction` (the same on executors), `old_versions`.
"""
