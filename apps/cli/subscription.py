"""`penstock subscription …`: persistent subscriptions, through the HTTP service."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.options import DeleteIt
from apps.cli.output import Columns, fields, listing
from kernel.errors import InvalidRequest
from kernel.positions import position_of

_AT = "/v1/subscriptions"
_PAGE = 100
_COLUMNS: Columns = {
    "name": "name",
    "state": "state",
    "lag events": "lag_events",
    "lag s": "lag_seconds",
    "in flight": "in_flight",
    "waiting": "waiting",
    "parked": "parked",
}
_PARKED = ("id", "stream", "deliveries", "reason")

Name = Annotated[str, typer.Argument(metavar="NAME", help="As orders-to-shop")]


def list_(call: CommandCall) -> None:
    """List the subscriptions and how far each is behind."""
    with call.service() as client:
        answer = client.get(_AT)
    nothing = "there are no subscriptions; make one: penstock subscription create NAME"
    call.answer(answer, text=listing(answer["subscriptions"], _COLUMNS, nothing=nothing))


def create(
    call: CommandCall,
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
    body["start"] = start_of(start)
    with call.service() as client:
        answer = client.put(_path(name), body)
    text = f"{name} begins behind position {answer['started_after']}"
    call.answer(answer, text=text)


def show(call: CommandCall, name: Name) -> None:
    """Show how a subscription stands, and the first hundred events that it gave up on."""
    with call.service() as client:
        answer = client.get(_path(name))
        parked = client.get(_path(name) + "/parked", limit=_PAGE)["parked"]
    lines = [fields({key: _shown(value) for key, value in answer.items()})]
    if parked:
        lines.append(listing(parked, {name: name for name in _PARKED}))
    call.answer(answer | {"parked_events": parked}, text="\n\n".join(lines))


def delete(call: CommandCall, name: Name, yes: DeleteIt = False) -> None:
    """Forget a subscription: how far it was, what is out, what it parked. Events stay."""
    with call.service() as client:
        if not yes:
            client.get(_path(name))  # One that is not there wants no confirmation.
            what = f"{name} would forget how far it was and what it parked"
            call.refuse_unconfirmed(what)
        client.delete(_path(name))
    call.answer({"name": name, "deleted": True}, text=f"{name} is deleted")


def replay_parked(
    call: CommandCall,
    name: Name,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="EVENT_ID", help="Only these events")
    ] = None,
) -> None:
    """Give parked events again, all of them or those named; nothing else is given again."""
    with call.service() as client:
        answer = client.post(_path(name) + "/replay-parked", {"ids": ids} if ids else {})
    text = f"{answer['replayed']} are given again, {answer['remaining']} stay parked"
    call.answer(answer, text=text)


def start_of(text: str) -> int | str:
    """Read `--start`: a position, or `end`. Raises `InvalidRequest`."""
    if text == "end":
        return text
    position = position_of(text, "--start")
    if position is not None:
        return position
    raise InvalidRequest(
        f"--start {text!r} is no position", remedy="Give a whole number from 0, or end."
    )


def _path(name: str) -> str:
    return f"{_AT}/{quote(name, safe='')}"


def _shown(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{key} {each}" for key, each in value.items() if each is not None) or "all"


register = commands(subscription=[list_, create, show, delete, replay_parked])
