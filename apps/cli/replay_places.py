"""The other lake that `--lake` of `penstock replay …` names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import wraps
from typing import Annotated, ParamSpec

import typer

from apps.settings import Settings
from kernel.errors import PenstockError
from lake.layout import Lake

OtherLake = Annotated[
    str | None,
    typer.Option(
        "--lake",
        metavar="PLACE",
        help="Another lake, a folder or s3://BUCKET/PREFIX, whose table it is; not this one.",
    ),
]
P = ParamSpec("P")
_COMMAND = re.compile(
    r"penstock replay (?:apply|cancel|pause|resume|status|verify)(?: [\w-]+(?:\.[\w-]+)*)?"
)


def other_lake(found: Settings, place: str | None) -> Lake | None:
    """Return the lake that was named, None for the workspace's own. Raises `Conflict`."""
    if place is None:
        return None
    from replay.copies import refuse_place

    into = Lake.named(place)
    refuse_place(Lake.named(found.lake), into)
    return into


def naming(place: str | None) -> str:
    """Return what a command that is told names the other lake by, if there is one."""
    return "" if place is None else f" --lake {shlex.quote(place)}"


def told_there(command: Callable[P, None]) -> Callable[P, None]:
    """Let the commands that an error tells name the other lake, where one was given."""

    @wraps(command)
    def telling(*words: P.args, **options: P.kwargs) -> None:
        try:
            command(*words, **options)
        except PenstockError as error:
            place = options.get("lake")
            if place is None:
                raise
            remedy = _COMMAND.sub(lambda found: found[0] + naming(str(place)), error.remedy)
            raise type(error)(error.message, remedy=remedy, **error.fields) from error

    return telling
