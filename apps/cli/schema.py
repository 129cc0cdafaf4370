"""`penstock schema add|list|check`: the schemas of event types, through the HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.output import Columns, listing
from kernel.errors import Incompatible
from schemas.compatibility import Level
from schemas.text_files import text_of

_HOLDS = "an Avro schema"
Subject = Annotated[str, typer.Argument(metavar="CATEGORY.TYPE", help="As order.placed")]
File = Annotated[Path, typer.Argument(metavar="FILE.avsc", help="An Avro schema")]

_LEVELS = ", ".join(level.value.lower() for level in Level)


def add(
    call: CommandCall,
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
) -> None:
    """Register a schema that can read everything stored with earlier ones.

    Another level of compatibility than BACKWARD_TRANSITIVE is kept for the type.
    """
    document = {"subject": subject, "schema": text_of(file, _HOLDS), "compatibility": compatibility}
    with call.service() as client:
        answer = client.post("/v1/schemas", document)
    call.answer(
        answer,
        text=f"{subject}: version {answer['version']}, schema id {answer['id']}",
    )


def list_(call: CommandCall) -> None:
    """List the newest schema of each event type."""
    with call.service() as client:
        answer = client.get("/v1/schemas")
    columns: Columns = {
        "subject": "subject",
        "version": "version",
        "id": "id",
        "origin": lambda one: "inferred" if one["schema"].get("penstock") else "registered",
        "fields": lambda one: ", ".join(field["name"] for field in one["schema"]["fields"]),
    }
    nothing = "no event type has a schema yet; the first event of a type makes one: penstock append"
    call.answer(answer, text=listing(answer["schemas"], columns, nothing=nothing))


def check(call: CommandCall, subject: Subject, file: File) -> None:
    """Say whether a schema could be added, and what stops it; nothing is registered."""
    with call.service() as client:
        answer = client.post(
            "/v1/schemas", {"subject": subject, "schema": text_of(file, _HOLDS)}, check=True
        )
    if answer["complaints"]:
        raise Incompatible(
            f"{subject}: " + "; ".join(answer["complaints"]),
            remedy="Make the change readable from old data (new fields need defaults), or use a "
            "new event type.",
        )
    call.answer(answer, text=f"{subject}: can be added")


register = commands(schema=[add, list_, check])
