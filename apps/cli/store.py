"""`penstock store …`: the event store as a whole, in files, and rebuilt from the lake."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.output import shower
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
Database = Annotated[
    str | None, typer.Option("--dsn", help="The database (default: postgres.dsn).")
]


def renew_id(
    call: CommandCall,
    yes: Annotated[bool, typer.Option("--yes", help="Really give it a new id.")] = False,
    dsn: Database = None,
) -> None:
    """Give the store a new id: after it was restored, or lost events in a fail-over.

    Positions that were lost will be used again. Under a new id nobody downstream takes what comes
    there for what was there. Restart the store's services afterwards.
    """
    if not yes:
        what = "the store would be another one to all who follow it"
        call.refuse_unconfirmed(what)
    # Only this call needs PostgreSQL's client.
    import asyncio

    from eventstore.postgres.identity import renew_id as renewed

    store_id = asyncio.run(renewed(dsn or call.settings.required("postgres.dsn")))
    text = f"the store's id is {store_id} now; restart its services"
    call.answer({"store_id": store_id}, text=text)


def restore_registry(call: CommandCall) -> None:
    """Fill an empty registry with the schemas of store and lake, under the ids that they had.

    For when it was lost, as with the PostgreSQL that the local stack's own is in: records name
    their schemas by id. Nothing else may use it meanwhile. Given again it goes on where it was.
    """
    import asyncio

    from eventstore.recovery.events import lake_schemas
    from eventstore.recovery.stored_events import StoredEvents
    from schemas.registry import ConfluentRegistry
    from schemas.registry_refill import agreed, refill

    found = call.settings
    dsn, url = found.required("postgres.dsn"), found.required("registry.url")

    async def kept() -> tuple[dict[int, str], dict[str, list[int]]]:
        async with StoredEvents.open(dsn, found.lake) as stored:
            return dict((await stored.contents()).schemas), await stored.type_schemas()

    lake = lake_schemas(call.made_lake)
    schemas, subjects = asyncio.run(kept())
    done = refill(ConfluentRegistry(url), agreed(lake, schemas), subjects)
    text = f"the registry at {url} has {done.schemas} schemas under their ids"
    if done.lost:
        text += f"; nobody knows {done.lost} more, whose ids stand for nothing"
    call.answer(asdict(done) | {"registry": url}, text=text)


def export_(call: CommandCall, folder: Folder) -> None:
    """Write all events to Parquet files, with their schemas and checksums. Appends go on.

    Events in the archive are among them. The folder must be new or empty; nobody else may read it.
    """
    import asyncio

    from eventstore.recovery.dump import export

    found = call.settings
    done = asyncio.run(
        export(found.required("postgres.dsn"), found.lake, folder, show=shower(_line))
    )
    size = f"{done.files} files, {done.bytes:,} bytes"
    text = f"{done.events:,} events of store {done.store_id} in {size}"
    call.answer(asdict(done) | {"folder": str(folder)}, text=text)


def import_(call: CommandCall, folder: Folder, into: Into = None) -> None:
    """Fill an empty database with an exported store, as it was: positions, ids, times, store id.

    Checksums are compared first. Given again after a crash it goes on where it was.
    """
    from eventstore.recovery.events import FolderEvents

    compare = f"penstock store verify {shlex.quote(str(folder))}"
    _fill(call, FolderEvents(folder), into, compare=compare)


def rebuild_(call: CommandCall, store: Store = None, into: Into = None) -> None:
    """Fill an empty database with a store's events from the lake's log alone.

    For when PostgreSQL is lost. Given again after a crash it goes on where it was. Compare it
    before you serve it: penstock store verify.
    """
    which = "".join(f" --store {each}" for each in store or ())
    _fill(call, _from_lake(call, store), into, compare=f"penstock store verify{which}")


def verify_(
    call: CommandCall,
    folder: Annotated[
        Path | None, typer.Argument(metavar="[FOLDER]", help="An export; without it the lake.")
    ] = None,
    store: Store = None,
    into: Database = None,
) -> None:
    """Compare the store with the lake's log, or with an export: every event, byte for byte.

    Streams, tags, categories, types and schemas too. Exit code 1 where anything differs; what the
    store has beyond the other's head is told and is no difference.
    """
    import asyncio

    from eventstore.recovery.comparison import compare
    from eventstore.recovery.events import FolderEvents
    from eventstore.recovery.stored_events import StoredEvents

    found = call.settings
    events = FolderEvents(folder) if folder is not None else _from_lake(call, store)
    dsn = into or found.required("postgres.dsn")

    async def compared() -> RecoveryReport:
        async with StoredEvents.open(dsn, found.lake) as stored:
            return await compare(events, stored)

    report = asyncio.run(compared())
    call.answer(asdict(report) | {"equal": report.equal}, text=_told(report))
    if not report.equal:
        raise typer.Exit(EXIT_FAILED)


def _from_lake(call: CommandCall, store: list[str] | None) -> StoreEvents:
    from eventstore.recovery.events import LakeEvents

    return LakeEvents(call.made_lake, store or ())


def _fill(call: CommandCall, events: StoreEvents, into: str | None, *, compare: str) -> None:
    """Fill a database; tell by which command it is compared with where its events came from."""
    import asyncio

    from eventstore.recovery.rebuild import rebuild

    dsn = into or call.settings.required("postgres.dsn")
    started = time.monotonic()
    done = asyncio.run(rebuild(events, dsn, show=shower(_line)))
    seconds = time.monotonic() - started
    text = (
        f"store {done.store_id} has {done.events:,} events of {done.streams:,} streams, in "
        f"{seconds:.1f} s; compare it: {compare}{'' if into is None else ' --dsn DSN'}"
    )
    call.answer(asdict(done) | {"seconds": round(seconds, 3)}, text=text)


def _line(progress: RebuildProgress) -> str:
    left = (progress.head - progress.events) / max(progress.rate, 1.0)
    return (
        f"{progress.events:,} of {progress.head:,} events, {progress.rate:,.0f}/s, "
        f"{left:,.0f} s left"
    )


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


register = commands(store=[renew_id, export_, import_, rebuild_, verify_, restore_registry])
