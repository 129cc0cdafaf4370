"""`penstock subscription …`: persistent subscriptions, through the HTTP service."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from apps import settings
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, fields, refuse_unconfirmed, table
from apps.service_client import ServiceClient
from kernel.errors import InvalidRequest

_AT = "/v1/subscriptions"
_PAGE = 100

Name = Annotated[str, typer.Argument(metavar="NAME", help="As orders-to-shop")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=Group,
        help="Persistent subscriptions: several consumers, one memory.",
    )
    group.command("list")(list_)
    group.command("create")(create)
    group.command("show")(show)
    group.command("delete")(delete)
    group.command("replay-parked")(replay_parked)
    app.add_typer(group, name="subscription")


def list_(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """List the subscriptions and how far each is behind."""
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.get(_AT)
    headings = ("name", "state", "lag events", "lag s", "in flight", "waiting", "parked")
    rows = [
        (
            each["name"],
            each["state"],
            each["lag_events"],
            each["lag_seconds"],
            each["in_flight"],
            each["waiting"],
            each["parked"],
        )
        for each in answer["subscriptions"]
    ]
    nothing = "there are no subscriptions; make one: penstock subscription create NAME"
    emit(answer, as_json=as_json, text=table(headings, rows, nothing=nothing))


def create(
    name: Name,
    category: Annotated[str | None, typer.Option(help="Only events of this category.")] = None,
    type_: Annotated[str | None, typer.Option("--type", help="Only events of this type.")] = None,
    stream_prefix: Annotated[
        str | None, typer.Option(help="Only streams whose name begins so.")
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only events with this tag.")] = None,
    start: Annotated[
        str, typer.Option(help="Begin behind this position; 0 is the beginning.")
    ] = "end",
    max_deliveries: Annotated[
        int | None, typer.Option(help="An event is given so often, then parked.")
    ] = None,
    ack_timeout: Annotated[
        float | None, typer.Option(help="Seconds until an unanswered event is given again.")
    ] = None,
    max_in_flight: Annotated[
        int | None, typer.Option(help="Events that consumers have at a time.")
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a subscription, or change how one hands out; filter and start stay as made."""
    terms = {
        "max_deliveries": max_deliveries,
        "ack_timeout_s": ack_timeout,
        "max_in_flight": max_in_flight,
    }
    body: dict[str, Any] = {key: value for key, value in terms.items() if value is not None}
    body["filter"] = {
        "category": category,
        "type": type_,
        "stream_prefix": stream_prefix,
        "tag": tag,
    }
    body["start"] = _start(start)
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.put(_path(name), body)
    text = f"{name} begins behind position {answer['started_after']}"
    emit(answer, as_json=as_json, text=text)


def show(name: Name, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Show how a subscription stands, and the first hundred events that it gave up on."""
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.get(_path(name))
        parked = client.get(_path(name) + "/parked", limit=_PAGE)["parked"]
    lines = [fields({key: _shown(value) for key, value in answer.items()})]
    if parked:
        columns = ("id", "stream", "deliveries", "reason")
        lines.append(table(columns, [[each[column] for column in columns] for each in parked]))
    emit(answer | {"parked_events": parked}, as_json=as_json, text="\n\n".join(lines))


def delete(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Really delete it.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a subscription: how far it was, what is out, what it parked. Events stay."""
    with ServiceClient(settings.load(workspace)) as client:
        if not yes:
            client.get(_path(name))  # One that is not there wants no confirmation.
            what = f"{name} would forget how far it was and what it parked"
            refuse_unconfirmed(what, as_json=as_json)
        client.delete(_path(name))
    emit({"name": name, "deleted": True}, as_json=as_json, text=f"{name} is deleted")


def replay_parked(
    name: Name,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="EVENT_ID", help="Only these events")
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give parked events again, all of them or those named; nothing else is given again."""
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.post(_path(name) + "/replay-parked", {"ids": ids} if ids else {})
    text = f"{answer['replayed']} are given again, {answer['remaining']} stay parked"
    emit(answer, as_json=as_json, text=text)


def _start(text: str) -> int | str:
    if text == "end":
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    raise InvalidRequest(
        f"--start {text!r} is no position", remedy="Give a whole number from 0, or end."
    )


def _path(name: str) -> str:
    return f"{_AT}/{quote(name, safe='')}"


def _shown(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{key} {each}" for key, each in value.items() if each is not None) or "all"
