"""How far ingest has come: what was seen, and the cut up to which transactions are whole.

Upstream: ddl. Downstream: arrive, commit.
Entry points: `progress.Progress`, `cut.Cut`.
"""
