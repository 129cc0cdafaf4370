"""`penstock query`, `table`, `epoch`: reading the lake, with the stack up or down.

Commands import what reads the lake when they run: it takes seconds, which `--help` should not pay.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.output import Columns, listing, table
from kernel.clock import moment_of
from kernel.errors import NotFound
from kernel.positions import Epoch
from service import lake_documents

if TYPE_CHECKING:
    from pipeline.commit.manifest_rows import Committed

TableName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="As shop.public.orders, with its kind before: current/…"),
]
Limit = Annotated[int, typer.Option("-n", "--limit", min=1, help="At most so many, newest first.")]
_SHOWN_BYTES = 2_000


def query(
    call: CommandCall,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT, in DuckDB's SQL.")],
    epoch: Annotated[int | None, typer.Option(help="Read all tables at this epoch.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Read what was committed by this time, ISO 8601 (UTC).")
    ] = None,
    savepoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="Read what this savepoint kept.")
    ] = None,
) -> None:
    """Ask the tables, all at one epoch: by default the greatest that all of them have.

    A bare name is a projection; other tables have their kind before them, as
    current.shop.public.orders, typed.events.order.placed, "log/events/STORE". The lake is only
    read. It works with the stack stopped.
    """
    from projections.serve.query import ask

    answer = ask(
        call.made_lake,
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
    call.answer(document, text=text)
    if not call.as_json:
        as_of = "" if answer.epoch is None else f", epoch {answer.epoch}"
        print(f"({len(rows)} row{'s' * (len(rows) != 1)}{as_of})", file=sys.stderr)


def table_list(call: CommandCall) -> None:
    """List the lake's tables with version, rows and size, and why one is held."""
    documents = lake_documents.table_list(call.made_lake)
    columns = ("name", "version", "rows", "bytes", "files", "committed_at", "held")
    rows = [[document.get(column, "-") for column in columns] for document in documents]
    headings = ["table", "version", "rows", "bytes", "files", "last commit", "held"]
    nothing = "the lake has no tables yet; they come with the first event: penstock append"
    call.answer(documents, text=table(headings, rows, nothing=nothing))


def table_retry(call: CommandCall, name: TableName) -> None:
    """Try a held typed or history table again now, when its cause was mended.

    The pipeline tries by itself, too, after pauses that grow to five minutes.
    """
    from pipeline.ddl.held_tables import NO_ORDER
    from projections.serve.standings import held_tables

    lake = call.made_lake
    held = {
        each: hold
        for each, hold in held_tables(lake).items()
        if hold.order == NO_ORDER and not hold.resumes
    }
    if name not in held:
        raise NotFound(f"{name} is not held by an error", remedy="penstock table list")
    call.catalog.try_again(name)
    call.answer({"name": name, "retry": True}, text=f"{name} is tried again")


def table_path(call: CommandCall, name: TableName) -> None:
    """Print the folder of a table: any engine may open it as a Delta table."""
    from projections.serve import lake_tables

    found = lake_tables.describe(call.made_lake, lake_tables.table_name([name]))
    document = {"name": found.name, "path": found.path}
    call.answer(document, text=found.path, verbatim=True)


def table_history(call: CommandCall, name: TableName, limit: Limit = 20) -> None:
    """Show a table's commits: version, time, what was done, rows, by which engine."""
    from projections.serve import lake_tables

    found = lake_tables.commits(call.made_lake, lake_tables.table_name([name]), limit=limit)
    columns: Columns = {each: each for each in ("version", "at", "operation", "rows", "engine")}
    call.answer(lake_documents.commit_list(found), text=listing(found, columns))


def epoch_list(call: CommandCall, limit: Limit = 20) -> None:
    """List committed epochs: when, how many rows of which kind, how long it took."""
    from projections.serve.epochs import newest_epochs

    found = newest_epochs(call.made_lake, limit=limit)
    columns: Columns = {
        "epoch": "epoch",
        "committed": "at",
        "rows": _counts,
        "took": lambda each: f"{sum(each.timings_ms.values()):.0f} ms",
    }
    nothing = "no epoch was committed yet; the pipeline commits what comes: penstock status"
    documents = [lake_documents.epoch_document(each) for each in found]
    call.answer(documents, text=listing(found, columns, nothing=nothing))


def epoch_show(
    call: CommandCall, epoch: Annotated[int, typer.Argument(help="Its number.")]
) -> None:
    """Show one epoch: offsets, heads, cuts, and the version of every table that belongs to it."""
    from projections.serve.epochs import epoch_at

    found = epoch_at(call.made_lake, epoch)
    rows = [[name, at.version, at.as_of_epoch] for name, at in sorted(found.tables.items())]
    lines = [
        f"epoch {found.epoch}, committed {found.at.isoformat(timespec='milliseconds')}",
        f"rows      {_counts(found)}",
        f"heads     {json.dumps(dict(found.heads))}",
        f"cuts      {json.dumps(dict(found.cuts))}",
        f"offsets   {json.dumps(found.end)}",
        table(["table", "version", "as of epoch"], rows),
    ]
    call.answer(lake_documents.epoch_document(found), text="\n".join(lines))


def _counts(found: Committed) -> str:
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
    """Return a row with its bytes as text, and as text what JSON has no number for: not as null."""
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: object) -> object:
    match value:
        case bytes():
            return readable(value)
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case dict():
            return plain(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value


def readable(value: bytes) -> str:
    """Show bytes as text where they are text, else in hexadecimal; cut when long."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = value.hex()
    else:
        text = text if text.isprintable() else value.hex()
    return text if len(text) <= _SHOWN_BYTES else f"{text[:_SHOWN_BYTES]}… ({len(value)} bytes)"


register = commands(
    query,
    table=[table_list, table_path, table_history, table_retry],
    epoch=[epoch_list, epoch_show],
)
