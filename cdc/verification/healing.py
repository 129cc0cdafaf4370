"""A range that differs is replaced: its rows at a new LSN are staged, ingest installs them.

    range -> COPY at L' -> Staging -> install (kind `heal`) -> ingest -> compared again

The rows enter the log and typed tables as reads, keys that vanish as deletes. Ingest installs them
in the first epoch whose cut has reached L'; until then `current` shows what it showed. Ingest holds
a range in memory, so a large one is refused: a copy of the table is swapped in instead of merged.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from cdc.database import connected
from cdc.snapshot.copying import copied_columns, prepare, read
from cdc.snapshot.slot import exported_snapshot
from cdc.verification import watermarks
from cdc.verification.comparison import Captured, Comparison
from cdc.verification.reports import TableReport
from cdc.verification.source_rows import count_up_to
from kernel.errors import InvalidRequest, NotFound, Unavailable
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import HEAL, Install, InstallBook
from pipeline.installs.installation import MOST_MENDED_ROWS, TOO_LARGE
from pipeline.installs.staging import Staging
from schemas.key_ranges import WHOLE, KeyColumn, KeyRange, ordered_key
from schemas.lake_columns import captured_columns
from schemas.pg_types import SourceColumn

MOST_INSTALLS = 16
"""Ranges of one table that are healed one by one; of more, as many at once as can be replaced."""
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
    """Heal every table that differs and can be healed; return the reports with what became of them.

    Raises `InvalidRequest` for a range that is too large to be healed, once the others are healed.
    """
    by_name = {each.table: each for each in wanted}
    healed: list[TableReport] = []
    refused: InvalidRequest | None = None
    for report in reports:
        if report.equal or report.held is not None or not report.differences.healable:
            healed.append(report)
            continue
        captured = by_name[report.table]
        try:
            healed.append(
                heal(lake, tables, comparison, dsn, captured, report, timeout_s=timeout_s)
            )
        except InvalidRequest as error:
            refused = refused or error
    if refused is not None:
        raise refused
    return healed


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
    deadline = time.monotonic() + timeout_s

    def install(area: KeyRange) -> str:
        return _install(lake, tables, comparison, dsn, captured, area, deadline=deadline)

    areas = report.differing_ranges or (WHOLE,)
    if len(areas) > MOST_INSTALLS:
        done = together(areas, install)
    else:
        done = [(area, install(area)) for area in areas]
    left_s = max(deadline - time.monotonic(), _LEAST_S)
    equal = all(is_equal(comparison, dsn, captured, area, timeout_s=left_s) for area, _ in done)
    return report.healed(", ".join(id for _, id in done), equal=equal)


def together(
    areas: Sequence[KeyRange], install: Callable[[KeyRange], str]
) -> list[tuple[KeyRange, str]]:
    """Install the one range around all areas, or around each half of them where it is too large.

    Each install costs the lake an epoch; what lies between two areas costs its rows. Returns what
    was installed. Raises `InvalidRequest` for an area that is too large by itself.
    """
    around = KeyRange(low=areas[0].low, high=areas[-1].high)
    try:
        return [(around, install(around))]
    except InvalidRequest:
        if len(areas) == 1:
            raise
    half = len(areas) // 2
    return [*together(areas[:half], install), *together(areas[half:], install)]


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
            # What was declined was taken in as well: its number is among both.
            if (declined := progress.declined.get(str(staged.number))) is not None:
                if declined.startswith(TOO_LARGE):
                    raise _too_large(captured, area)
                reason = declined
                break
            if staged.number in progress.installs:
                return staged.id
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"install {staged.id} of {captured.table} waits for ingest:"
                    f" {comparison.reader.waiting_for(captured.source)}",
                    remedy="It is installed as soon as the lake comes to its LSN; verify again.",
                )
            time.sleep(_LOOK_S)
    raise Unavailable(f"{captured.table} {area} could not be installed: {reason}")


def stage(
    lake: Lake,
    tables: Tables,
    dsn: str,
    captured: Captured,
    area: KeyRange,
    *,
    timeout_s: float,
    most_rows: int = MOST_MENDED_ROWS,
) -> Install:
    """Read a range at an LSN of its own and announce it for ingest to install.

    Raises `InvalidRequest` for one of more than `most_rows`; nothing of it is staged then.
    """
    name = uuid.uuid4().hex
    with exported_snapshot(dsn, timeout_s=timeout_s) as exported, connected(dsn) as connection:
        read_at = datetime.now(UTC)
        prepare(connection, exported.name)
        columns = copied_columns(connection, captured.table, captured.options)
        key = _key(captured, columns)
        if count_up_to(connection, captured.table, area, key, most_rows) > most_rows:
            raise _too_large(captured, area)
        staging = Staging(
            lake,
            id=name,
            source=captured.source,
            table=captured.table,
            columns=columns,
            soft_deletes=captured.catalog.soft_deletes,
            keys=captured_columns(captured.catalog.keys),
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
        staging.refuse_met_keys()
    install = Install(
        id=name,
        source=captured.source,
        table=captured.table,
        kind=HEAL,
        low=area.low,
        high=area.high,
        lsn=exported.lsn,
        columns=columns,
        keys=captured_columns(captured.catalog.keys),
        rows=rows,
        read_at=read_at,
        lsns=(exported.lsn,),
    )
    (number,) = InstallBook(lake, tables).put([install.entry()])
    with connected(dsn) as connection:
        watermarks.emit(connection)  # So that the cut of an idle source reaches L'.
    return replace(install, number=number)


def _key(captured: Captured, columns: Sequence[SourceColumn]) -> tuple[KeyColumn, ...]:
    """Return the key's columns with their orders; none where the key has no ranges."""
    by_name = {column.name: column for column in columns}
    missing = [key for key in captured.catalog.keys if key not in by_name]
    if missing:
        raise NotFound(f"{captured.table} has no key column {', '.join(missing)} any more")
    return ordered_key([by_name[column] for column in captured.catalog.keys]) or ()


def _too_large(captured: Captured, area: KeyRange) -> InvalidRequest:
    table = captured.table
    return InvalidRequest(
        f"{table} {area} has too many rows to be healed as a range",
        remedy="Copy the table, its rows are swapped in at once: "
        f"penstock source resnapshot {captured.source} --tables {table} --yes",
    )


def is_equal(
    comparison: Comparison, dsn: str, captured: Captured, area: KeyRange, *, timeout_s: float
) -> bool:
    """Compare a range once more."""
    (report,) = comparison.compare(dsn, [captured], timeout_s=timeout_s, within=area)
    return report.equal
