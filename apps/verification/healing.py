"""A range that differs is replaced: its rows at a new LSN are staged, ingest installs them.

    range -> COPY at L' -> Staging -> install (kind `heal`) -> ingest -> compared again

The rows enter the log and typed tables as reads, keys that vanish as deletes. Ingest installs them
in the first epoch whose cut has reached L'; until then `current` shows what it showed.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from apps.verification.comparing import Captured, Comparison
from apps.verification.reports import TableReport
from cdc.database import connected
from cdc.snapshot.copying import copied_columns, prepare, read
from cdc.snapshot.slot import exported_snapshot
from cdc.verification import watermarks
from kernel.errors import NotFound, Unavailable
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.state.installs import HEAL, Install, InstallBook
from projections.state.staging import Staging
from schemas.key_ranges import WHOLE, KeyRange, ordered_key

MOST_INSTALLS = 16
"""Ranges of one table that are healed one by one; more are healed as the one range around them."""
_LOOK_S = 0.2


def heal_reports(
    lake: Lake,
    tables: Tables,
    comparison: Comparison,
    dsn: str,
    wanted: Sequence[Captured],
    reports: Sequence[TableReport],
    *,
    timeout_s: float,
) -> list[TableReport]:
    """Heal every table that differs; return the reports with what became of them."""
    by_name = {each.table: each for each in wanted}
    return [
        report
        if report.equal or report.held is not None
        else heal(lake, tables, comparison, dsn, by_name[report.table], report, timeout_s=timeout_s)
        for report in reports
    ]


def heal(
    lake: Lake,
    tables: Tables,
    comparison: Comparison,
    dsn: str,
    captured: Captured,
    report: TableReport,
    *,
    timeout_s: float,
) -> TableReport:
    """Replace the differing ranges of a table and compare them again."""
    areas = report.differing_ranges or (WHOLE,)
    if len(areas) > MOST_INSTALLS:
        areas = (KeyRange(low=areas[0].low, high=areas[-1].high),)
    ids: list[str] = []
    deadline = time.monotonic() + timeout_s
    equal = True
    for area in areas:
        ids.append(stage(lake, tables, dsn, captured, area, timeout_s=timeout_s).id)
    for area in areas:
        left_s = max(deadline - time.monotonic(), 1.0)
        equal &= await_equal(comparison, dsn, captured, area, timeout_s=left_s)
    return report.healed(", ".join(ids), equal=equal)


def stage(
    lake: Lake, tables: Tables, dsn: str, captured: Captured, area: KeyRange, *, timeout_s: float
) -> Install:
    """Read a range at an LSN of its own and announce it for ingest to install."""
    name = uuid.uuid4().hex
    with exported_snapshot(dsn, timeout_s=timeout_s) as exported, connected(dsn) as connection:
        read_at = datetime.now(UTC)
        prepare(connection, exported.name)
        columns = copied_columns(connection, captured.table, captured.options)
        by_name = {column.name: column for column in columns}
        missing = [key for key in captured.catalog.keys if key not in by_name]
        if missing:
            raise NotFound(f"{captured.table} has no key column {', '.join(missing)} any more")
        key = ordered_key([by_name[column] for column in captured.catalog.keys]) or ()
        staging = Staging(
            lake,
            id=name,
            source=captured.source,
            table=captured.table,
            columns=columns,
            soft_deletes=captured.catalog.soft_deletes,
        )
        blocks = read(
            connection,
            captured.table,
            columns,
            area,
            key=key,
            options=captured.options,
            salt=captured.salt,
        )
        rows = staging.stage(0, exported.lsn, blocks)
    install = Install(
        id=name,
        source=captured.source,
        table=captured.table,
        kind=HEAL,
        low=area.low,
        high=area.high,
        lsn=exported.lsn,
        columns=columns,
        keys=captured.catalog.keys,
        rows=rows,
        read_at=read_at,
        lsns=(exported.lsn,),
    )
    (number,) = InstallBook(lake, tables).put([install.entry()])
    with connected(dsn) as connection:
        # So that the cut of an idle source reaches L'.
        watermarks.emit(connection)
    return replace(install, number=number)


def await_equal(
    comparison: Comparison, dsn: str, captured: Captured, area: KeyRange, *, timeout_s: float
) -> bool:
    """Compare a range until it is equal; return whether it became so in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        left_s = max(deadline - time.monotonic(), 1.0)
        try:
            _, (report,) = comparison.compare(dsn, [captured], timeout_s=left_s, within=area)
        except Unavailable:
            return False
        if report.equal or time.monotonic() > deadline:
            return report.equal
        time.sleep(_LOOK_S)
