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
_LEAST_S = 5.0
_ATTEMPTS = 3


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
    for area in areas:
        ids.append(_install(lake, tables, comparison, dsn, captured, area, deadline=deadline))
    left_s = max(deadline - time.monotonic(), _LEAST_S)
    equal = all(is_equal(comparison, dsn, captured, area, timeout_s=left_s) for area in areas)
    return report.healed(", ".join(ids), equal=equal)


def _install(
    lake: Lake,
    tables: Tables,
    comparison: Comparison,
    dsn: str,
    captured: Captured,
    area: KeyRange,
    *,
    deadline: float,
) -> str:
    """Stage a range and wait until ingest has it; one that ingest declines is read again."""
    reason = ""
    for _ in range(_ATTEMPTS):
        left_s = max(deadline - time.monotonic(), _LEAST_S)
        staged = stage(lake, tables, dsn, captured, area, timeout_s=left_s)
        while True:
            progress = comparison.reader.progress()
            if staged.number in progress.installs:
                return staged.id
            if (declined := progress.declined.get(str(staged.number))) is not None:
                reason = declined
                break
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"install {staged.id} of {captured.table} waits for ingest:"
                    f" {comparison.reader.waiting_for(captured.source)}",
                    remedy="It is installed as soon as the lake comes to its LSN; verify again.",
                )
            time.sleep(_LOOK_S)
    raise Unavailable(f"{captured.table} {area} could not be installed: {reason}")


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


def is_equal(
    comparison: Comparison, dsn: str, captured: Captured, area: KeyRange, *, timeout_s: float
) -> bool:
    """Compare a range once more."""
    _, (report,) = comparison.compare(dsn, [captured], timeout_s=timeout_s, within=area)
    return report.equal
