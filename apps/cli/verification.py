"""`penstock source verify`: a source compared with its tables, row hash for row hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from apps.capture import capture_site
from apps.cli.commands import CommandCall
from apps.cli.options import SourceName
from apps.cli.output import Columns, listing
from cdc import declarations
from kernel.errors import EXIT_FAILED

if TYPE_CHECKING:
    from cdc.verification.reports import TableReport
    from cdc.verification.verification_status import TableVerification

_VERIFIED: Columns = {
    "table": "table",
    "verified at": "verified_at",
    "this round": lambda each: f"{each.coverage:.0%}",
    "last round": "round_ended",
    "rows": "round_rows",
    "differing": "round_differing",
    "healings": "healings",
}


def verify(
    call: CommandCall,
    name: SourceName,
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
) -> None:
    """Compare tables with their current tables at one LSN, while writers go on.

    A range that differs is narrowed to keys and columns. Exit code 1 when a table differs or could
    not be compared; 0 when all are equal, or were healed and are equal now.
    """
    found = call.settings
    declarations.refuse_unknown(found.workspace, name)
    # Comparing loads the drivers and the lake, which neither `--help` nor a wrong name pays for.
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
    call.answer(
        {
            "source": name,
            "equal": all(report.equal for report in reports),
            "sound": sound,
            "tables": [report.document() for report in reports],
        },
        text=_text(reports),
    )
    if not sound:
        raise typer.Exit(EXIT_FAILED)


def verification_lines(found: list[TableVerification]) -> list[str]:
    """Return what `source status` prints of them: a table, and why one is not verified now."""
    if not found:
        return []
    healed = [
        f"{each.table}: last healing {each.healed_at}, after: {each.healed}"
        + (f"; cause: {each.cause}" if each.cause else "")
        for each in found
        if each.healings
    ]
    notes = [f"{each.table}: not verified now: {each.note}" for each in found if each.note]
    return [listing(found, _VERIFIED), *healed, *notes]


def _text(reports: list[TableReport]) -> str:
    lines = [
        listing(
            reports,
            {
                "table": "table",
                "verdict": "verdict",
                "rows": "rows",
                "rows current": "rows_current",
                "ranges": "ranges",
                "differing": lambda report: len(report.differing_ranges),
                "lsn": "lsn",
                "seconds": lambda report: f"{report.seconds:.1f}",
            },
        )
    ]
    for report in reports:
        lines += report.lines()
    return "\n".join(lines)
