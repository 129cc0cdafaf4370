"""How far the bulk copies of a source are, read off the lake: it needs no running pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.installs.install_book import ALL, DONE, INSTALL, RUN, InstallBook, install_of
from pipeline.installs.staging import generation_lake
from pipeline.position.progress import Progress

_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopy:
    """The newest copy of a table.

    `state`: copying, waiting (announced, the cut is not there yet), installed, declined, ended.
    `rows` are staged so far, `estimate` what the table is thought to have. `rate` is in rows per
    second over the last minute of work, `eta_s` the seconds left at that rate; None when unknown.
    """

    table: str
    state: str
    rows: int
    estimate: int
    chunks: int
    rate: float | None
    eta_s: float | None
    reason: str | None = None


def copies_of(lake: Lake, source: str) -> list[TableCopy]:
    """Return the newest copy of each table of a source, in the order of their plans."""
    tables = Tables()
    entries = [e for e in InstallBook(lake, tables).entries() if e.source == source]
    last = Manifest(lake, tables).last()
    taken = None if last is None else Progress.from_json(last.progress)
    announced = {
        install.id: install
        for install in (install_of(e) for e in entries if e.kind == INSTALL)
        if install.kind == ALL
    }
    ended = {e.id for e in entries if e.kind == DONE}
    found: dict[str, TableCopy] = {}
    for entry in entries:
        for planned in entry.detail["tables"] if entry.kind == RUN else ():
            name = planned["table"]
            install = announced.get(planned["install"])
            state, reason = "copying", None
            if install is not None:
                number = str(install.number)
                reason = taken.declined.get(number) if taken is not None else None
                installed = taken is not None and install.number in taken.installs
                state = "declined" if reason else "installed" if installed else "waiting"
            elif entry.id in ended:
                state = "ended"
            found[name] = _table(lake, tables, source, planned, state, reason)
    return list(found.values())


def _table(
    lake: Lake,
    tables: Tables,
    source: str,
    planned: dict[str, Any],
    state: str,
    reason: str | None,
) -> TableCopy:
    root = generation_lake(lake, source, planned["table"], planned["install"]).root
    handle = tables.open(root)
    rows, rate = (0, None) if handle is None else _pace(pa.table(handle.get_add_actions()))
    left = planned["rows"] - rows
    moving = state == "copying" and rate
    return TableCopy(
        table=planned["table"],
        state=state,
        rows=rows,
        estimate=planned["rows"],
        chunks=len(planned["ranges"]),
        rate=rate,
        eta_s=max(left, 0) / rate if moving and rate else None,
        reason=reason,
    )


def _pace(files: pa.Table) -> tuple[int, float | None]:
    """Return rows, and rows per second over the last minute in which files were written."""
    if files.num_rows == 0:
        return 0, None
    times = pc.divide(files["modification_time"].cast(pa.int64()), 1000.0)
    newest = pc.max(times).as_py()
    recent = pc.greater(times, newest - _WINDOW_S)
    rows = int(pc.sum(files["num_records"]).as_py())
    counted = pc.sum(files.filter(recent)["num_records"]).as_py()
    span = newest - pc.min(times.filter(recent)).as_py()
    return rows, counted / span if span > 0 else None
