"""`penstock savepoint …`: states of all tables that nothing removes before they are dropped."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, table
from apps.cli.query import lake_of, moment_of
from kernel.errors import InvalidRequest
from kernel.positions import Epoch

if TYPE_CHECKING:
    from lake.savepoint_states import Savepoint
    from projections.serve.savepoints import Cost

Name = Annotated[str, typer.Argument(metavar="NAME", help="As before-the-migration.")]
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, help="Named states of all tables, kept until dropped.")
    group.command("create")(create_)
    group.command("list")(list_)
    group.command("drop")(drop_)
    app.add_typer(group, name="savepoint")


def create_(
    name: Name,
    epoch: Annotated[int | None, typer.Option(help="Of this epoch.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Of what was committed by this time, ISO 8601 (UTC).")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Leave a table out, as projection/NAME (repeatable)."),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(metavar="TIME", help="Drop it after 90m, 12h, 30d or 8w.")
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep all tables as of one epoch: by default the greatest that all of them have.

    Read it with `query --savepoint NAME`. Repeating the command changes nothing. No copy is made:
    files of the lake stay that would go otherwise.
    """
    from lake.savepoint_states import refuse_name

    refuse_name(name)
    lake, moment, expires_at = lake_of(settings.load(workspace)), moment_of(at), _after(expires)
    # It writes down the files of every table, in Arrow's form.
    from projections.serve.savepoints import create

    taken = create(
        lake,
        name,
        epoch=Epoch(epoch) if epoch is not None else None,
        at=moment,
        without=without or (),
        expires_at=expires_at,
    )
    found = taken.savepoint
    verb = "keeps" if taken.made else "is there already and keeps"
    ends = f" until {found.expires_at.isoformat()}" if found.expires_at else ""
    text = f"savepoint {name} {verb} {len(taken.tables)} tables as of epoch {found.epoch}{ends}"
    document = _document(found) | {"tables": taken.tables, "made": taken.made}
    emit(document, as_json=as_json, text=text)


def list_(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """List savepoints: epoch, tables, bytes, and the bytes that nothing else keeps alive."""
    from lake.savepoint_states import SavepointState, savepoints_of

    lake = lake_of(settings.load(workspace))
    found: list[Cost] = []
    if any(each.state is SavepointState.KEPT for each in savepoints_of(lake)):
        # What files they keep is in Arrow's form.
        from projections.serve.savepoints import costs

        found = costs(lake)
    rows = [
        [s.name, s.epoch, s.at, s.expires_at or "-", len(c.tables), c.bytes, c.held_bytes]
        for c in found
        for s in [c.savepoint]
    ]
    headings = ["savepoint", "epoch", "taken", "expires", "tables", "bytes", "bytes held"]
    documents = [
        _document(c.savepoint) | {"tables": c.tables, "bytes": c.bytes, "held_bytes": c.held_bytes}
        for c in found
    ]
    nothing = "nothing is kept; to keep all tables as they are: penstock savepoint create NAME"
    emit(documents, as_json=as_json, text=table(headings, rows, nothing=nothing))


def drop_(name: Name, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Drop a savepoint. Its files go as those of any old version do."""
    from lake.savepoint_states import kept_as

    lake = lake_of(settings.load(workspace))
    kept_as(lake, name)  # One that is not there is refused before Arrow loads.
    from projections.serve.savepoints import drop

    dropped, removed = drop(lake, name)
    text = f"savepoint {name} of epoch {dropped.epoch} is dropped; {removed} files went at once"
    emit(_document(dropped) | {"removed_files": removed}, as_json=as_json, text=text)


def _document(found: Savepoint) -> dict[str, object]:
    document = asdict(found)
    del document["state"], document["heads"]
    return document


def _after(text: str | None) -> datetime | None:
    if text is None:
        return None
    read = re.fullmatch(r"([1-9]\d{0,4})([mhdw])", text)
    if read is None:
        raise InvalidRequest(f"{text!r} is no time to expire after", remedy="As 90m, 12h, 30d, 8w.")
    return datetime.now(UTC) + timedelta(**{_UNITS[read[2]]: int(read[1])})
