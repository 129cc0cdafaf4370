"""`penstock savepoint …`: states of all tables that nothing removes before they are dropped."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.output import table
from kernel.clock import moment_of
from kernel.errors import Conflict, InvalidRequest
from kernel.positions import Epoch

if TYPE_CHECKING:
    from lake.layout import Lake
    from lake.savepoint_states import Savepoint
    from projections.serve.savepoints import Cost

Name = Annotated[str, typer.Argument(metavar="NAME", help="As before-the-migration.")]
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def create_(
    call: CommandCall,
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
) -> None:
    """Keep all tables as of one epoch: by default the greatest that all of them have.

    Read it with `query --savepoint NAME`. Repeating the command changes nothing. No copy is made:
    files of the lake stay that would go otherwise.
    """
    from lake.savepoint_states import refuse_name, savepoints_of

    refuse_name(name)
    lake, moment, expires_at = call.made_lake, moment_of(at), _after(expires)
    for each in savepoints_of(lake):
        if each.name == name and each.expires_at and each.expires_at <= datetime.now(UTC):
            _refuse_needed(lake, each)  # Taking the name anew drops what has expired.
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
    call.answer(document, text=text)


def list_(call: CommandCall) -> None:
    """List savepoints: epoch, tables, bytes, and the bytes that nothing else keeps alive."""
    from lake.savepoint_states import SavepointState, savepoints_of

    lake = call.made_lake
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
    call.answer(documents, text=table(headings, rows, nothing=nothing))


def drop_(call: CommandCall, name: Name) -> None:
    """Drop a savepoint. Its files go as those of any old version do.

    One that a build begins with stays until that is built or cancelled; if it expires, too.
    """
    from lake.savepoint_states import kept_as

    lake = call.made_lake
    found = kept_as(lake, name)  # One that is not there is refused before Arrow loads.
    _refuse_needed(lake, found)
    from projections.serve.savepoints import drop

    dropped, removed = drop(lake, name)
    text = f"savepoint {name} of epoch {dropped.epoch} is dropped; {removed} files went at once"
    call.answer(_document(dropped) | {"removed_files": removed}, text=text)


def _refuse_needed(lake: Lake, savepoint: Savepoint) -> None:
    """Raise `Conflict` for a savepoint whose rows a build begins with that is not finished."""
    from lake.rows import SmallTables
    from replay.book import ReplayBook
    from replay.slices import builds_by_savepoint

    build = builds_by_savepoint(ReplayBook(lake, SmallTables())).get(savepoint.id)
    if build is not None:
        raise Conflict(
            f"generation {build.generation} of {build.name} begins with savepoint "
            f"{savepoint.name}, and is {build.state}",
            remedy=f"Wait until it is built, or give it up: penstock replay cancel {build.name}",
        )


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


register = commands(savepoint=[create_, list_, drop_])
