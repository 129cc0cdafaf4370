"""What is to become of records in quarantine: written down here, carried out by the pipeline.

It loads nothing but what reads small tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from kernel.errors import NotFound
from lake.layout import Lake
from lake.rows import SmallTables
from pipeline.installs.install_book import InstallEntry, announce
from projections.serve.quarantined_records import (
    MOST_AT_ONCE,
    is_named,
    outcomes,
    places_of,
    waiting_records,
)

_POLL_S = 0.2


def decide(
    lake: Lake,
    kind: str,
    name: str,
    *,
    partition: int | None,
    offset: int | None,
    by: str,
    reason: str | None,
) -> tuple[tuple[int, ...], int]:
    """Write a decision down about the waiting records of a topic, or of a table.

    `kind` is one of the book of installs, `by` who decides. Returns the decisions' numbers, and of
    how many records they are. Raises `NotFound` where none waits.
    """
    of_topic: dict[str, list[dict[str, Any]]] = {}
    for row in waiting_records(lake):
        chosen = partition in (None, row["partition"]) and offset in (None, row["offset"])
        if chosen and is_named(row, name):
            of_topic.setdefault(row["topic"], []).append(row)
    entries = []
    for topic, rows in of_topic.items():
        for first in range(0, len(rows), MOST_AT_ONCE):
            places = places_of(rows[first : first + MOST_AT_ONCE])
            detail = {"places": places, "by": by, "reason": reason}
            source = rows[first]["source"] or ""
            entries.append(InstallEntry(kind=kind, id=topic, source=source, detail=detail))
    if not entries:
        raise NotFound(
            f"no record of {name} waits in quarantine", remedy="penstock quarantine list"
        )
    count = sum(map(len, of_topic.values()))
    return announce(lake, SmallTables(), entries), count


def awaited_outcomes(
    lake: Lake,
    numbers: tuple[int, ...],
    count: int,
    *,
    timeout_s: float,
    runs: Callable[[], bool],
) -> list[dict[str, Any]]:
    """Return what became of the records of decisions, as far as it is known after `timeout_s`.

    `runs` says whether a pipeline is there that carries them out; without one nobody waits.
    """
    deadline = time.monotonic() + timeout_s
    ends: list[dict[str, Any]] = []
    while runs():
        ends = [each for each in outcomes(lake) if each["decision"] in numbers]
        if len(ends) >= count or time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    return ends
