"""`penstock store …`: the event store as a whole, in files, and rebuilt from the lake."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, refuse_unconfirmed
from kernel.errors import EXIT_FAILED

if TYPE_CHECKING:
    from eventstore.recovery.comparison import RecoveryReport
    from eventstore.recovery.events import StoreEvents
    from eventstore.recovery.rebuild import RebuildProgress

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder for the export's files.")]
Into = Annotated[
    str | None,
    typer.Option(metavar="DSN", help="The empty database (default: postgres.dsn)."),
]
Store = Annotated[
    list[str] | None,
    typer.Option(metavar="ID", help="Which store's log; its ids, oldest first (repeatable)."),
]
_SHOW_EVERY_S = 1.0


def register(app: typer.Typer) -> None:
    """Add the commands."""
    store = typer.Typer(cls=Group, help="The event store itself.")
    store.command("renew-id")(renew_id)
    store.command("export")(export_)
    store.command("import")(import_)
    store.command("rebuild")(rebuild_)
    store.command("verify")(verify_)
    app.add_typer(store, name="store")


def renew_id(
    yes: Annotated[bool, typer.Option("--yes", help="Really give it a new id.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the store a new id: after it was restored, or lost events in a fail-over.

    Positions that were lost will be used again. Under a new id nobody downstream takes what comes
    there for what was there. Restart the store's services afterwards.
    """
    if not yes:
        what = "the store would be another one to all who follow it"
        refuse_unconfirmed(what, as_json=as_json)
    # Only this call needs PostgreSQL's client.
    import asyncio

    from eventstore.postgres.identity import renew_id as renewed

    store_id = asyncio.run(renewed(settings.load(workspace).required("postgres.dsn")))
    text = f"the store's id is {store_id} now; restart its services"
    emit({"store_id": store_id}, as_json=as_json, text=text)


def export_(folder: Folder, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Write all events to Parquet files, with their schemas and checksums. Appends go on.

    Events in the archive are among them. The folder must be new or empty; nobody else may read it.
    """
    import asyncio

    from eventstore.recovery.dump import export

    found = settings.load(workspace)
    done = asyncio.run(export(found.required("postgres.dsn"), found.lake, folder, show=_shower()))
    size = f"{done.files} files, {done.bytes:,} bytes"
    text = f"{done.events:,} events of store {done.store_id} in {size}"
    emit(asdict(done) | {"folder": str(folder)}, as_json=as_json, text=text)


def import_(
    folder: Folder,
    into: Into = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill an empty database with an exported store, as it was: positions, ids, times, store id.

    Checksums are compared first. Given again after a crash it goes on where it was.
    """
    from eventstore.recovery.events import FolderEvents

    _fill(FolderEvents(folder), into, workspace, as_json=as_json)


def rebuild_(
    store: Store = None,
    into: Into = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill an empty database with a store's events from the lake's log alone.

    For when PostgreSQL is lost. Given again after a crash it goes on where it was. Compare it
    before you serve it: penstock store verify.
    """
    _fill(_from_lake(workspace, store), into, workspace, as_json=as_json)


def verify_(
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="An export; without it the lake.")
    ] = None,
    store: Store = None,
    into: Annotated[
        str | None, typer.Option("--dsn", help="The database (default: postgres.dsn).")
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the store with the lake's log, or with an export: every event, byte for byte.

    Streams, tags, categories, types and schemas too. Exit code 1 where anything differs; what the
    store has beyond the other's head is told and is no difference.
    """
    import asyncio

    from eventstore.recovery.comparison import compare
    from eventstore.recovery.events import FolderEvents
    from eventstore.recovery.stored_events import StoredEvents

    found = settings.load(workspace)
    events = FolderEvents(folder) if folder is not None else _from_lake(workspace, store)
    dsn = into or found.required("postgres.dsn")

    async def compared() -> RecoveryReport:
        async with StoredEvents.open(dsn, found.lake) as stored:
            return await compare(events, stored)

    report = asyncio.run(compared())
    emit(asdict(report) | {"equal": report.equal}, as_json=as_json, text=_told(report))
    if not report.equal:
        raise typer.Exit(EXIT_FAILED)


def _from_lake(workspace: Path | None, store: list[str] | None) -> StoreEvents:
    from apps.cli.query import lake_of
    from eventstore.recovery.events import LakeEvents

    return LakeEvents(lake_of(settings.load(workspace)), store or ())


def _fill(events: StoreEvents, into: str | None, workspace: Path | None, *, as_json: bool) -> None:
    import asyncio

    from eventstore.recovery.rebuild import rebuild

    dsn = into or settings.load(workspace).required("postgres.dsn")
    started = time.monotonic()
    done = asyncio.run(rebuild(events, dsn, show=_shower()))
    seconds = time.monotonic() - started
    text = (
        f"store {done.store_id} has {done.events:,} events of {done.streams:,} streams, in "
        f"{seconds:.1f} s; compare it: penstock store verify"
    )
    emit(asdict(done) | {"seconds": round(seconds, 3)}, as_json=as_json, text=text)


def _shower() -> Callable[[RebuildProgress], None]:
    """Show progress on standard error, once a second."""
    shown_at = time.monotonic()

    def show(progress: RebuildProgress) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at < _SHOW_EVERY_S:
            return
        shown_at = time.monotonic()
        left = (progress.head - progress.events) / max(progress.rate, 1.0)
        print(
            f"{progress.events:,} of {progress.head:,} events, {progress.rate:,.0f}/s, "
            f"{left:,.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return show


def _told(report: RecoveryReport) -> str:
    what = (
        f"{report.events:,} events, {report.streams:,} streams and {report.schemas} schemas of "
        f"store {report.store_id} compared"
    )
    beyond = f"; the store has {report.beyond:,} more behind them" if report.beyond else ""
    if report.equal:
        return f"{what}: equal{beyond}"
    counts = (
        f"{report.differing_events:,} events, {report.differing_streams:,} streams, "
        f"{report.differing_tags:,} tags, {report.differing_schemas} schemas, "
        f"{report.differing_categories} categories and {report.differing_types} types differ"
    )
    return "\n".join([f"{what}{beyond}", counts, *(f"  {each}" for each in report.first)])
