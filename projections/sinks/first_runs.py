"""Whether a projection's table has rows of what is deployed now.

Who drops a projection and deploys another one under its name has a table with the rows of the one
before, until the first run of the new one. Those are no business of the new one's sink.
"""

from __future__ import annotations

from deltalake import DeltaTable


def has_run(table: DeltaTable, projection: str, generation: int) -> bool:
    """Say whether a generation is or was a projection's table: its first run, or a swap, did it."""
    return table.transaction_version(f"projection/{projection}/g{generation}") is not None
