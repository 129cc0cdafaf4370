"""`penstock source …`: databases whose tables are captured."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from apps import capture, settings
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, table
from cdc import sources
from cdc.admission import Check
from cdc.capture import CaptureStatus
from cdc.connect import ConnectClient
from cdc.database import with_password
from kernel.errors import EXIT_FAILED, EXIT_NEEDS_CONFIRMATION, EXIT_UNHEALTHY, InvalidRequest

Name = Annotated[str, typer.Argument(metavar="NAME", help="The source's name.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Databases whose tables are captured.", no_args_is_help=True)
    group.command("add")(add)
    group.command("list")(list_)
    group.command("status")(status)
    group.command("verify")(verify)
    group.command("pause")(pause)
    group.command("resume")(resume)
    group.command("remove")(remove)
    app.add_typer(group, name="source")


def add(
    name: Name,
    dsn: Annotated[
        str, typer.Option(help="The database, as postgresql://USER:PASSWORD@HOST:PORT/DATABASE.")
    ],
    tables: Annotated[str, typer.Option(help="Tables with commas: public.orders,public.items.")],
    key: Annotated[
        list[str] | None,
        typer.Option(help="Key of a table without one: public.visits:visitor,at. Repeatable."),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Only show what must be true.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it runs.")] = 90.0,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Capture tables: check, publish, start, and wait until the connector runs.

    The password goes to a file that only you can read, the rest to sources/NAME.toml. Existing
    rows come first, then every change. The same command again changes nothing.
    """
    found = settings.load(workspace)
    source, password = sources.declare(
        name,
        dsn=dsn,
        tables=tuple(part for part in tables.split(",") if part.strip()),
        keys=dict(_key(text) for text in key or ()),
    )
    rows = capture.checks(found, source, with_password(source.dsn, password))
    if check:
        held = all(row.ok or row.advice for row in rows)
        document = {"admitted": held, "checks": [asdict(row) for row in rows]}
        emit(document, as_json=as_json, text=_checks(rows))
        raise typer.Exit(0 if held else EXIT_FAILED)
    if not as_json:
        print(_checks(rows), file=sys.stderr)
    started = capture.add(found, source, password, timeout_s=timeout)
    file = found.workspace / sources.FOLDER / f"{name}.toml"
    emit(
        {
            "source": name,
            "connector": asdict(started),
            "tables": source.tables,
            "file": str(file),
            "checks": [asdict(row) for row in rows],
        },
        as_json=as_json,
        text=f"{name} runs: {len(source.tables)} tables, declared in {file}",
    )


def list_(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """List the declared sources and what each does."""
    found = settings.load(workspace)
    declared = sources.load_all(found.workspace)
    with ConnectClient(found.required("connect.url")) as connect:
        states = [capture.status(found, source, connect) for source in declared]
    documents = [
        {**_status_document(state), "tables": source.tables}
        for source, state in zip(declared, states, strict=True)
    ]
    emit(
        {"sources": documents},
        as_json=as_json,
        text=table(_HEADINGS, [_status_row(state) for state in states]),
    )


def status(name: Name, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Show connector, task, slot and snapshot. Exit code 5 when the source does not run."""
    found = settings.load(workspace)
    source = sources.load(found.workspace, name)
    with ConnectClient(found.required("connect.url")) as connect:
        state = capture.status(found, source, connect)
    snapshot = capture.progress(found, source)
    rows = [(each, snapshot.tables.get(each, "not yet")) for each in source.tables]
    document = {**_status_document(state), "snapshot": asdict(snapshot), "tables": source.tables}
    lines = [
        table(_HEADINGS, [_status_row(state)]),
        f"snapshot {snapshot.state}, attempts {snapshot.attempts}"
        + (f", reading {snapshot.current}" if snapshot.current else ""),
        table(("table", "rows"), rows),
    ]
    if state.connector is not None and state.connector.cause:
        lines.append(f"cause: {state.connector.cause}")
    emit(document, as_json=as_json, text="\n".join(lines))
    if not _healthy(state):
        raise typer.Exit(EXIT_UNHEALTHY)


def verify(
    name: Name,
    timeout: Annotated[
        float, typer.Option(help="Seconds in which the lake may catch up before it differs.")
    ] = 30.0,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare every table with its current table, row hash for row hash.

    Exit code 1 when one differs. A table that is written to all the time may differ at any look:
    compare at rest.
    """
    found = settings.load(workspace)
    source = sources.load(found.workspace, name)
    verdicts = capture.verify(found, source, timeout_s=timeout)
    equal = all(verdict.equal for verdict in verdicts)
    rows = [
        (v.table, "equal" if v.equal else "DIFFERS", v.rows, v.rows_current, v.hash, v.hash_current)
        for v in verdicts
    ]
    emit(
        {"source": name, "equal": equal, "tables": [asdict(verdict) for verdict in verdicts]},
        as_json=as_json,
        text=table(("table", "verdict", "rows", "rows current", "hash", "hash current"), rows),
    )
    if not equal:
        raise typer.Exit(EXIT_FAILED)


def pause(name: Name, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Stop reading. The slot stays, and the database keeps its WAL until you resume."""
    found = settings.load(workspace)
    connector = _connector(found, name)
    with ConnectClient(found.required("connect.url")) as connect:
        connect.pause(connector)
        state = connect.await_status(
            connector, lambda s: s.connector == s.task == "PAUSED", timeout_s=30.0
        )
    emit(asdict(state), as_json=as_json, text=f"{name} is paused")


def resume(name: Name, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Go on after a pause, or restart what failed."""
    found = settings.load(workspace)
    connector = _connector(found, name)
    with ConnectClient(found.required("connect.url")) as connect:
        connect.resume(connector)
        if connect.status(connector).failed:
            connect.restart(connector)
        state = connect.await_running(connector)
    emit(asdict(state), as_json=as_json, text=f"{name} runs")


def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do it.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop capturing: drop connector, slot and publication. Topics and tables stay."""
    found = settings.load(workspace)
    source = sources.load(found.workspace, name)
    if not yes:
        what = f"This drops connector, slot and publication of {name}: later changes are lost."
        emit({"needs": "--yes", "removes": name}, as_json=as_json, text=what)
        if not as_json:
            print(f"  fix: penstock source remove {name} --yes", file=sys.stderr)
        raise typer.Exit(EXIT_NEEDS_CONFIRMATION)
    dropped = capture.remove(found, source)
    emit(
        {"removed": name, "slot_dropped": dropped},
        as_json=as_json,
        text=f"{name} is removed" + ("" if dropped else " (there was no slot)"),
    )


_HEADINGS = ("source", "connector", "task", "snapshot", "slot", "lag bytes", "retained bytes")


def _status_row(state: CaptureStatus) -> tuple[object, ...]:
    connector, slot = state.connector, state.slot
    return (
        state.source,
        connector.connector if connector else "none",
        connector.task if connector else None,
        state.snapshot,
        slot.wal_status if slot else "none",
        slot.lag_bytes if slot else None,
        slot.retained_bytes if slot else None,
    )


def _status_document(state: CaptureStatus) -> dict[str, object]:
    return {**asdict(state), "healthy": _healthy(state)}


def _healthy(state: CaptureStatus) -> bool:
    return (
        state.connector is not None
        and state.connector.running
        and state.slot is not None
        and state.slot.wal_status != "lost"
    )


def _connector(found: settings.Settings, name: str) -> str:
    sources.load(found.workspace, name)
    return f"{found.name}-{name}"


def _key(text: str) -> tuple[str, tuple[str, ...]]:
    name, colon, columns = text.rpartition(":")
    if not colon or not name or not columns:
        raise InvalidRequest(f"{text!r} is not TABLE:COLUMN,…", remedy="As public.visits:at,who")
    return name, tuple(column.strip() for column in columns.split(","))


def _checks(rows: tuple[Check, ...]) -> str:
    cells = [
        ("ok" if row.ok else "note" if row.advice else "NO", row.subject, row.required, row.found)
        for row in rows
    ]
    fixes = [f"  fix: {row.fix}" for row in rows if row.fix]
    return "\n".join([table(("", "subject", "required", "found"), cells), *fixes])
