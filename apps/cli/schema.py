"""`penstock schema add|list|check`: the schemas of event types, through the HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apps import settings
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, table, text_of
from apps.service_client import ServiceClient
from kernel.errors import Incompatible
from schemas.compatibility import Level

_HOLDS = "an Avro schema"
Subject = Annotated[str, typer.Argument(metavar="CATEGORY.TYPE", help="As order.placed")]
File = Annotated[Path, typer.Argument(metavar="FILE.avsc", help="An Avro schema")]

_LEVELS = ", ".join(level.value.lower() for level in Level)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, help="Schemas of event types.")
    group.command("add")(add)
    group.command("list")(list_)
    group.command("check")(check)
    app.add_typer(group, name="schema")


def add(
    subject: Subject,
    file: File,
    compatibility: Annotated[
        Level | None,
        typer.Option(
            metavar="LEVEL",
            help=f"What this and later versions must get on with: {_LEVELS}",
            case_sensitive=False,
        ),
    ] = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Register a schema that can read everything stored with earlier ones.

    Another level of compatibility than BACKWARD_TRANSITIVE is kept for the type.
    """
    document = {"subject": subject, "schema": text_of(file, _HOLDS), "compatibility": compatibility}
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.post("/v1/schemas", document)
    emit(
        answer,
        as_json=as_json,
        text=f"{subject}: version {answer['version']}, schema id {answer['id']}",
    )


def list_(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """List the newest schema of each event type."""
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.get("/v1/schemas")
    rows = [
        (
            schema["subject"],
            schema["version"],
            schema["id"],
            "inferred" if schema["schema"].get("penstock") else "registered",
            ", ".join(field["name"] for field in schema["schema"]["fields"]),
        )
        for schema in answer["schemas"]
    ]
    headings = ("subject", "version", "id", "origin", "fields")
    nothing = "no event type has a schema yet; the first event of a type makes one: penstock append"
    emit(
        answer,
        as_json=as_json,
        text=table(headings, rows, nothing=nothing),
    )


def check(
    subject: Subject, file: File, workspace: WorkspaceOption = None, as_json: JsonOption = False
) -> None:
    """Say whether a schema could be added, and what stops it; nothing is registered."""
    with ServiceClient(settings.load(workspace)) as client:
        answer = client.post(
            "/v1/schemas", {"subject": subject, "schema": text_of(file, _HOLDS)}, check=True
        )
    if answer["complaints"]:
        raise Incompatible(
            f"{subject}: " + "; ".join(answer["complaints"]),
            remedy="Make the change readable from old data (new fields need defaults), or use a "
            "new event type.",
        )
    emit(answer, as_json=as_json, text=f"{subject}: can be added")
