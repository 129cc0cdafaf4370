"""Rows that were there before the stream: when a copy of them is asked for.

The pipeline takes the copies; what is asked for here waits for it in the lake.
"""

from __future__ import annotations

from collections.abc import Sequence

from projections.log.layout import Lake


def awaited(lake: Lake, source: str) -> None:
    """Hold the cut of a source that is about to start until its tables are copied."""


def renewed(lake: Lake, source: str, tables: Sequence[str]) -> None:
    """Hold the cut, and copy every table anew: the stream begins at another place."""


def joined(lake: Lake, source: str, tables: Sequence[str]) -> None:
    """Copy tables that came into a running stream; what happened to them before is not in it."""
