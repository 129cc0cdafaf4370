"""`penstock query`, `table`, `epoch`: reading the lake, with the stack up or down.

Commands import what reads the lake when they run: it takes seconds, which `--help` should not pay.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, table
from kernel.errors import InvalidRequest, NotFound
from kernel.positions import LARGEST, Epoch
from lake.layout import Lake
from service import lake_documents

if TYPE_CHECKING:
    from projections.serve.epochs import EpochPage

TableName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="As shop.public.orders, with its kind before: current/…"),
]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, help="At most so many, newest first.")]
_SHOWN_BYTES = 2_000
_MOST_DIGITS = len(str(LARGEST))


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("query")(query)
    tables = typer.Typer(cls=Group, help="The lake's tables.")
    tables.command("list")(table_list)
    tables.command("path")(table_path)
    tables.command("history")(table_history)
    tables.command("retry")(table_retry)
    app.add_typer(tables, name="table")
    epochs = typer.Typer(cls=Group, help="Committed batches: offsets in, table versions out.")
    epochs.command("list")(epoch_list)
    epochs.command("show")(epoch_show)
    app.add_typer(epochs, name="epoch")


def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT, in DuckDB's SQL.")],
    epoch: Annotated[int | None, typer.Option(help="Read all tables at this epoch.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Read what was committed by this time, ISO 8601 (UTC).")
    ] = None,
    savepoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read what this savepoint kept.")
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the tables, all at one epoch: by default the greatest that all of them have.

    A bare name is a projection; other tables have their kind before them, as
    current.shop.public.orders, typed.events.order.placed, "log/events/STORE". The lake is only
    read. It works with the stack stopped.
    """
    from projections.serve.query import ask

    answer = ask(
        lake_of(settings.load(workspace)),
        sql,
        epoch=Epoch(epoch) if epoch is not None else None,
        at=moment_of(at),
        savepoint=savepoint,
    )
    rows = answer.values()
    document = {
        "epoch": answer.epoch,
        "tables": answer.tables,
        "columns": answer.rows.schema.names,
        "rows": [plain(row) for row in rows],
    }
    shown = [[_cell(value) for value in row.values()] for row in rows]
    text = table(answer.rows.schema.names, shown, nothing="no row fits")
    emit(document, as_json=as_json, text=text)
    if not as_json:
        as_of = "" if answer.epoch is None else f", epoch {answer.epoch}"
        print(f"({len(rows)} row{'s' * (len(rows) != 1)}{as_of})", file=sys.stderr)


def table_list(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """List the lake's tables with version, rows and size, and why one is held."""
    documents = lake_documents.table_list(lake_of(settings.load(workspace)))
    columns = ("name", "version", "rows", "bytes", "files", "committed_at", "held")
    rows = [[document.get(column, "-") for column in columns] for document in documents]
    headings = ["table", "version", "rows", "bytes", "files", "last commit", "held"]
    nothing = "the lake has no tables yet; they come with the first event: penstock append"
    emit(documents, as_json=as_json, text=table(headings, rows, nothing=nothing))


def table_retry(
    name: TableName, workspace: WorkspaceOption = None, as_json: JsonOption = False
) -> None:
    """Try a held typed or history table again now, when its cause was mended.

    The pipeline tries by itself, too, after pauses that grow to five minutes.
    """
    from pipeline.ddl.held_tables import NO_ORDER
    from projections.serve.standings import held_tables

    lake = lake_of(settings.load(workspace))
    held = {
        each: hold
        for each, hold in held_tables(lake).items()
        if hold.order == NO_ORDER and not hold.resumes
    }
    if name not in held:
        raise NotFound(f"{name} is not held by an error", remedy="penstock table list")
    from projections.serve.statuses import try_again

    try_again(lake, name)
    emit({"name": name, "retry": True}, as_json=as_json, text=f"{name} is tried again")


def table_path(
    name: TableName, workspace: WorkspaceOption = None, as_json: JsonOption = False
) -> None:
    """Print the folder of a table: any engine may open it as a Delta table."""
    from projections.serve import lake_tables

    found = lake_tables.describe(lake_of(settings.load(workspace)), lake_tables.table_name([name]))
    document = {"name": found.name, "path": found.path}
    emit(document, as_json=as_json, text=found.path, verbatim=True)


def table_history(
    name: TableName,
    limit: Limit = 20,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a table's commits: version, time, what was done, rows, by which engine."""
    from projections.serve import lake_tables

    found = lake_tables.commits(
        lake_of(settings.load(workspace)), lake_tables.table_name([name]), limit=limit
    )
    rows = [[c.version, c.at, c.operation, c.rows, c.engine] for c in found]
    headings = ["version", "at", "operation", "rows", "engine"]
    emit(lake_documents.commit_list(found), as_json=as_json, text=table(headings, rows))


def epoch_list(
    limit: Limit = 20, workspace: WorkspaceOption = None, as_json: JsonOption = False
) -> None:
    """List committed epochs: when, how many rows of which kind, how long it took."""
    from projections.serve.epochs import newest_epochs

    found = newest_epochs(lake_of(settings.load(workspace)), limit=limit)
    rows = [[e.epoch, e.at, _counts(e), f"{sum(e.timings_ms.values()):.0f} ms"] for e in found]
    documents = [lake_documents.epoch_document(e) for e in found]
    nothing = "no epoch was committed yet; the pipeline commits what comes: penstock status"
    text = table(["epoch", "committed", "rows", "took"], rows, nothing=nothing)
    emit(documents, as_json=as_json, text=text)


def epoch_show(
    epoch: Annotated[int, typer.Argument(help="Its number.")],
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one epoch: offsets, heads, cuts, and the version of every table that belongs to it."""
    from projections.serve.epochs import epoch_at

    found = epoch_at(lake_of(settings.load(workspace)), epoch)
    rows = [[name, at.version, at.as_of_epoch] for name, at in sorted(found.tables.items())]
    lines = [
        f"epoch {found.epoch}, committed {found.at.isoformat(timespec='milliseconds')}",
        f"rows      {_counts(found)}",
        f"heads     {json.dumps(dict(found.heads))}",
        f"cuts      {json.dumps(dict(found.cuts))}",
        f"offsets   {json.dumps(found.end)}",
        table(["table", "version", "as of epoch"], rows),
    ]
    emit(lake_documents.epoch_document(found), as_json=as_json, text="\n".join(lines))


def lake_of(found: settings.Settings) -> Lake:
    """Return a workspace's lake. Raises `NotFound` where there is none yet."""
    from lake import storage

    if not storage.exists(found.lake):
        raise NotFound(f"there is no lake at {found.lake}", remedy="penstock up")
    return Lake.at(found.lake)


def moment_of(text: str | None) -> datetime | None:
    """Read a time as users write it; without a zone it is UTC. Raises `InvalidRequest`."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{text!r} is not a time", remedy="Write it as 2013-01-31T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    try:
        moment.astimezone(UTC)
    except OverflowError:
        raise InvalidRequest(
            f"{text!r} is not within the years 1 to 9999 in UTC", remedy="Write a nearer time."
        ) from None
    return moment


def position_of(text: str, option: str) -> int | None:
    """Read a position; None for what is no whole number. Raises `InvalidRequest` beyond 64 bits."""
    if not text.isdecimal():
        return None
    # Python reads no number of thousands of digits.
    if len(text) > _MOST_DIGITS or int(text) > LARGEST:
        raise InvalidRequest(
            f"{option} {text[:_MOST_DIGITS]} is no position: these have at most 64 bits",
            remedy=f"As {option} 1",
        )
    return int(text)


def _counts(found: EpochPage) -> str:
    return ", ".join(f"{what} {count}" for what, count in found.counts.items() if count) or "-"


def _cell(value: object) -> object:
    match value:
        case None:
            return "NULL"
        case bytes():
            return readable(value)
        case float():
            return str(value)
        case dict() | list():
            return json.dumps(value, default=str)
        case _:
            return value


def plain(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row with its bytes as text."""
    return {k: readable(v) if isinstance(v, bytes) else v for k, v in row.items()}


def readable(value: bytes) -> str:
    """Show bytes as text where they are text, else in hexadecimal; cut when long."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.hex()
    else:
        text = text if text.isprintable() else value.hex()
    return text if len(text) <= _SHOWN_BYTES else f"{text[:_SHOWN_BYTES]}… ({len(value)} bytes)"
