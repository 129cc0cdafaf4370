"""Tables copied in bulk: what the stream does not bring.

Upstream: a source database's exported snapshot (`cdc.snapshot`), the book of installs, where copies
are asked for. Downstream: staged rows in the lake, which `pipeline.installs` brings in.
Entry points: `table_copier.TableCopier` (the pipeline's thread), `copy_requests`, `copy_progress`.
"""
