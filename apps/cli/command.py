"""`penstock command`, `entity`: commands to entities and their state, through the HTTP service."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import orjson
import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.output import table
from kernel.clock import moment_of
from kernel.errors import InvalidRequest
from schemas import json_text

_EXAMPLE = 'Write an object, in quotes: --data \'{"amount": "5.00"}\''
Category = Annotated[str, typer.Argument(help="Category, as account")]
Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the entity, as 1042")]


def command(
    call: CommandCall,
    category: Category,
    id_: Id,
    name: Annotated[str, typer.Argument(metavar="COMMAND", help="The command, as deposit")],
    data: Annotated[str, typer.Option(help="JSON object: the data of the command")] = "{}",
    key: Annotated[
        str | None, typer.Option(help="Printable ASCII: the command happens once for each key")
    ] = None,
    expect: Annotated[
        int | None, typer.Option(min=0, help="Only if the entity is at this version")
    ] = None,
) -> None:
    """Send a command to an entity; print the events that it led to."""
    if key is not None and not (key.isascii() and key.isprintable()):
        raise InvalidRequest(
            f"--key {key!r} is not printable ASCII",
            remedy="It is sent as a header: 1 to 255 printable ASCII characters, as order-7.",
        )
    headers = {
        name: value
        for name, value in (
            ("idempotency-key", key),
            ("if-match", None if expect is None else f'"{expect}"'),
        )
        if value is not None
    }
    path = "/".join(quote(part, safe="") for part in (category, id_, name))
    with call.service() as client:
        answer = client.post(f"/v1/commands/{path}", _object(data), headers=headers)
    call.answer(answer, text=_told(answer))


def entity(
    call: CommandCall,
    category: Category,
    id_: Id,
    version: Annotated[int | None, typer.Option(min=0, help="After this event")] = None,
    at: Annotated[
        str | None, typer.Option(help="As recorded by this time, ISO 8601 (UTC).")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="With the last events and what each changed")
    ] = False,
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=500, help="With --explain: at most so many events (default: 50)"),
    ] = None,
) -> None:
    """Show the state of an entity: now, after a version, or at a time.

    With --explain also which events led to it, and which field each changed from what to what.
    """
    if limit is not None and not explain:
        raise InvalidRequest("--limit is of --explain", remedy="Add --explain, or leave it out.")
    moment = moment_of(at)
    path = "/v1/entities/" + "/".join(quote(part, safe="") for part in (category, id_))
    if explain:
        path += "/explain"
    with call.service() as client:
        asked = None if moment is None else moment.isoformat()
        answer = client.get(path, version=version, at=asked, limit=limit)
    state = orjson.dumps(answer["state"], option=orjson.OPT_INDENT_2).decode()
    text = f"{answer['stream']} at version {answer['version']}, position {answer['position']}"
    told = "".join(_explained(each) for each in answer.get("events", []))
    if answer.get("earlier") is not None:
        told += f"\n\nwhat came before: --explain --version {answer['earlier']}"
    call.answer(answer, text=f"{text}\n{state}{told}", verbatim=True)


def _explained(step: dict[str, Any]) -> str:
    event = step["event"]
    lines = [f"\n\n{event['version']} {event['type']}, recorded at {event['recorded_at']}"]
    for change in step["changes"]:
        before, after = (
            orjson.dumps(change[side]).decode() if side in change else "not there"
            for side in ("from", "to")
        )
        lines.append(f"  {change['field'] or '/'}: {before} -> {after}")
    return "\n".join(lines if step["changes"] else [*lines, "  nothing changed"])


def _object(text: str) -> dict[str, Any]:
    try:
        data = json_text.parse_at("--data", text)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"--data is not JSON: {error}", remedy=_EXAMPLE) from None
    if not isinstance(data, dict):
        raise InvalidRequest("--data: expected a JSON object", remedy=_EXAMPLE)
    return data


def _told(answer: dict[str, Any]) -> str:
    if not answer["events"]:
        return f"{answer['stream']}: nothing to do"
    rows = [
        (event["version"], event["position"], event["type"], orjson.dumps(event["data"]).decode())
        for event in answer["events"]
    ]
    return table(("version", "position", "type", "data"), rows)


register = commands(command, entity)
