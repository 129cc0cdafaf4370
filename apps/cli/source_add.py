"""`penstock source add` and `check`: what must be true, what can be mended, and the start.

Commands import the drivers and the lake when they run: it takes seconds, which `--help` should not
pay.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.capture import capture_site
from apps.cli.commands import CommandCall
from apps.cli.options import SourceName
from apps.cli.output import table
from cdc.options import DEFAULT_SNAPSHOT
from kernel.errors import EXIT_FAILED

if TYPE_CHECKING:
    from cdc.admission import Check
    from cdc.repairs import Repair
    from cdc.sources import Source

Fix = Annotated[
    bool, typer.Option("--fix", help="Mend what the role may mend, and say what remains.")
]
FixAs = Annotated[
    str | None,
    typer.Option("--fix-as", metavar="DSN", help="Mend as this role instead; it is not kept."),
]
Snapshot = Annotated[
    str, typer.Option(help="Who reads the rows that are there: copy or connector.")
]
_COLUMNS = "TABLE:COLUMN,… (repeatable)"


def add(
    call: CommandCall,
    name: SourceName,
    dsn: Annotated[
        str, typer.Option(help="The database, as postgresql://USER:PASSWORD@HOST:PORT/DATABASE.")
    ],
    tables: Annotated[
        str, typer.Option(help="Tables and patterns with commas: public.orders,public.item_*.")
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(help="Key of a table without one: public.visits:visitor,at. Repeatable."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(metavar=_COLUMNS, help="Columns to leave out: public.people:card,phone."),
    ] = None,
    mask: Annotated[
        list[str] | None,
        typer.Option(metavar=_COLUMNS, help="Columns to replace by asterisks, as --exclude."),
    ] = None,
    hash_: Annotated[
        list[str] | None,
        typer.Option("--hash", metavar=_COLUMNS, help="Columns to hash with a salt, as --exclude."),
    ] = None,
    snapshot: Snapshot = DEFAULT_SNAPSHOT,
    check: Annotated[bool, typer.Option("--check", help="Only show what must be true.")] = False,
    fix: Fix = False,
    fix_as: FixAs = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it runs.")] = 90.0,
) -> None:
    """Capture tables: check, publish, start, and wait until the connector runs.

    The password goes to a file that only you can read, the rest to sources/NAME.toml. Existing
    rows come first, then every change. The same command again changes nothing; what the file says
    otherwise is refused. `--fix` first mends what is missing; what it cannot mend stops it.
    """
    from cdc import sources
    from cdc.database import with_password
    from cdc.option_texts import keys_of, options_of

    found = call.settings
    source, password = sources.declare(
        name,
        dsn=dsn,
        tables=tuple(part for part in tables.split(",") if part.strip()),
        keys=keys_of(key or ()),
        options=options_of(exclude or (), mask or (), hash_ or ()),
        snapshot=snapshot,
    )
    dsn = with_password(source.dsn, password)
    rows, repairs = _checked(found, source, dsn, fix=fix, fix_as=fix_as)
    if check:
        _show_checks(call, rows, repairs)
        return
    if not call.as_json:
        print(_text(rows, repairs), file=sys.stderr)
    _start(call, source, password, timeout, _check_document(rows, repairs))


def check(call: CommandCall, name: SourceName, fix: Fix = False, fix_as: FixAs = None) -> None:
    """Show what must be true for a declared source: required, found, fix. Exit code 1 if it is not.

    A table that only matches a pattern is held back until its own rows are true; the source runs.
    """
    from cdc import sources

    found = call.settings
    source = sources.load(found.workspace, name)
    dsn = source.full_dsn(found.workspace)
    rows, repairs = _checked(found, source, dsn, fix=fix, fix_as=fix_as)
    _show_checks(call, rows, repairs)


def _checked(
    found: settings.Settings, source: Source, dsn: str, *, fix: bool, fix_as: str | None
) -> tuple[tuple[Check, ...], tuple[Repair, ...]]:
    from cdc.upkeep import source_checks

    site = capture_site(found)
    rows = source_checks.checks(site, source, dsn)
    if not fix and fix_as is None:
        return rows, ()
    repairs = source_checks.repairs(site, source, dsn, rows, as_=fix_as)
    return source_checks.checks(site, source, dsn), repairs


def _start(
    call: CommandCall,
    source: Source,
    password: str | None,
    timeout_s: float,
    more: Mapping[str, object],
) -> None:
    from cdc.declarations import FOLDER
    from cdc.upkeep import lifecycle

    site = capture_site(call.settings)
    started = lifecycle.add(site, source, password, timeout_s=timeout_s)
    file = site.folder / FOLDER / f"{source.name}.toml"
    tables, held = tuple(started.scope.tables), dict(started.scope.held)
    lines = [f"{file.stem} runs: {len(tables)} tables, declared in {file}"]
    lines += [f"held back: {each}: {reason}" for each, reason in held.items()]
    document = {
        "source": file.stem,
        "connector": asdict(started.connector),
        "tables": tables,
        "held": held,
        "file": str(file),
        **more,
    }
    call.answer(document, text="\n".join(lines))


def _show_checks(call: CommandCall, rows: Sequence[Check], repairs: Sequence[Repair]) -> None:
    held = all(row.ok or row.advice for row in rows)
    document = {
        "admitted": held,
        **_check_document(rows, repairs),
    }
    call.answer(document, text=_text(rows, repairs))
    if not held:
        raise typer.Exit(EXIT_FAILED)


def _check_document(rows: Sequence[Check], repairs: Sequence[Repair]) -> dict[str, object]:
    return {
        "checks": [asdict(row) for row in rows],
        "repairs": [asdict(each) for each in repairs],
    }


def _text(rows: Sequence[Check], repairs: Sequence[Repair]) -> str:
    cells = [
        (
            "ok" if row.ok else "note" if row.advice else "NO",
            # A name may hold anything, a line feed too.
            *(" ".join(text.split()) for text in (row.subject, row.required, row.found)),
        )
        for row in rows
    ]
    fixes = [f"    fix: {row.fix}" if row.fix else "" for row in rows]
    lines = [table(("state", "subject", "required", "found"), cells, notes=fixes)]
    lines += [f"  done: {each.statement}" for each in repairs if each.done]
    lines += [f"  remains: {each.subject}: {each.remains}" for each in repairs if each.remains]
    return "\n".join(lines)
