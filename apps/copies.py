"""Rows that were there before the stream: when a copy of them is asked for.

The pipeline takes the copies (`apps.pipeline.snapshots`); what is asked for here waits in the book
of installs. Of a source with `snapshot = "copy"`, and of any with another than its first slot, it
copies every captured table once per incarnation without being asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.state.installs import hold, request


def awaited(lake: Lake, source: str) -> None:
    """Hold the cut of a source that is about to start, until its tables are copied."""
    hold(lake, Tables(), source)


def again(lake: Lake, source: str, tables: Sequence[str], *, reason: str) -> None:
    """Copy tables while they are streamed; readers see the old rows until the new are whole."""
    request(lake, Tables(), source, tables, reason=reason)
