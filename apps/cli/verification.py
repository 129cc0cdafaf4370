"""`penstock source verify`: a source compared with its tables, row hash for row hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, table
from cdc import declarations
from kernel.errors import EXIT_FAILED

if TYPE_CHECKING:
    from cdc.verification.reports import TableReport
    from cdc.verification.verification_status import TableVerification

_SHOWN_RANGES = 10


def verify(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The source's name.")],
    only: Annotated[
        list[str] | None, typer.Option("--table", help="Only this table. Repeatable.")
    ] = None,
    ranges: Annotated[
        int | None,
        typer.Option(min=1, help="Ranges per table. Default: one for every 10,000 rows."),
    ] = None,
    heal: Annotated[
        bool, typer.Option("--heal", help="Replace ranges that differ by the source's rows.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds for the lake to come to the source's LSN.")
    ] = 60.0,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare tables with their current tables at one LSN, while writers go on.

    A range that differs is narrowed to keys and columns. Exit code 1 when a table differs or could
    not be compared; 0 when all are equal, or were healed and are equal now.
    """
    found = settings.load(workspace)
    declarations.refuse_unknown(found.workspace, name)
    # Comparing loads the drivers and the lake, which neither `--help` nor a wrong name pays for.
    from apps.capture import capture_site
    from apps.large_states import large_states
    from cdc import sources
    from cdc.database import split_table
    from cdc.verification.on_demand import verify as verify_source

    source = sources.load(found.workspace, name)
    wanted = [".".join(split_table(each)) for each in only or ()]
    reports = verify_source(
        capture_site(found),
        source,
        tables=wanted,
        ranges=ranges,
        heal=heal,
        timeout_s=timeout,
        large=large_states(found),
    )
    sound = all(report.sound for report in reports)
    emit(
        {
            "source": name,
            "equal": all(report.equal for report in reports),
            "sound": sound,
            "tables": [report.document() for report in reports],
        },
        as_json=as_json,
        text=_text(reports),
    )
    if not sound:
        raise typer.Exit(EXIT_FAILED)


def verification_lines(found: list[TableVerification]) -> list[str]:
    """Return what `source status` prints of them: a table, and why one is not verified now."""
    if not found:
        return []
    headings = ("table", "verified at", "this round", "last round", "rows", "differing", "healings")
    rows = [
        (
            each.table,
            each.verified_at,
            f"{each.coverage:.0%}",
            each.round_ended,
            each.round_rows,
            each.round_differing,
            each.healings,
        )
        for each in found
    ]
    healed = [
        f"{each.table}: last healing {each.healed_at}, after: {each.healed}"
        + (f"; cause: {each.cause}" if each.cause else "")
        for each in found
        if each.healings
    ]
    notes = [f"{each.table}: not verified now: {each.note}" for each in found if each.note]
    return [table(headings, rows), *healed, *notes]


def _text(reports: list[TableReport]) -> str:
    headings = ("table", "verdict", "rows", "rows current", "ranges", "differing", "lsn", "seconds")
    rows = [
        (
            report.table,
            _verdict(report),
            report.rows,
            report.rows_current,
            report.ranges,
            len(report.differing_ranges),
            report.lsn,
            f"{report.seconds:.1f}",
        )
        for report in reports
    ]
    lines = [table(headings, rows)]
    for report in reports:
        lines += _details(report)
    return "\n".join(lines)


def _verdict(report: TableReport) -> str:
    if report.held is not None:
        return "NOT COMPARED"
    if report.equal:
        return "equal"
    return "healed" if report.sound else "DIFFERS"


def _details(report: TableReport) -> list[str]:
    lines = []
    if report.held is not None:
        lines.append(f"{report.table}: not compared: {report.held}")
    for column, reason in report.not_compared:
        lines.append(f"{report.table}: column {column} is not compared: {reason}")
    found = report.differences
    if not found.any:
        return lines
    lines.append(
        f"{report.table}: {found.missing} missing, {found.extra} extra, {found.differing} differing"
    )
    ranges = [str(one) for one in report.differing_ranges]
    more = f", and {len(ranges) - _SHOWN_RANGES} more" if len(ranges) > _SHOWN_RANGES else ""
    lines.append(f"  ranges: {', '.join(ranges[:_SHOWN_RANGES])}{more}")
    for one in found.keys:
        key = ", ".join(f"{column} = {value}" for column, value in one.key.items())
        lines.append(f"  {one.what}: {key}" + (f" in {', '.join(one.columns)}" * bool(one.columns)))
    hidden = found.missing + found.extra + found.differing - len(found.keys)
    if hidden:
        lines.append(f"  and {hidden} more keys")
    if report.cause:
        lines.append(f"  cause: {report.cause}")
    if report.install:
        lines.append(f"  healed by install {report.install}; after: {report.after}")
    return lines
