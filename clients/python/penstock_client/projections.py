"""Rows of projections and what changes in them, as answers have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from penstock_client.errors import ServiceFault
from penstock_client.wire import dump, load, understood

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """The row of a key, None where there is none, and the epoch of which that is.

    `applied` says whether the projection has the position that was asked for; None: none was.
    """

    row: Row | None
    epoch: int
    applied: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPage:
    """Rows of one epoch, in the order of keys. `next_after` None: these are the last.

    Pages of one epoch and another `version` of the table are not of one state.
    """

    rows: tuple[Row, ...]
    key: tuple[str, ...]
    epoch: int
    version: int
    applied: bool | None
    next_after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """A row before and after: `old` None for a new one, `new` None for one that is gone.

    `place` is where a later feed goes on.
    """

    operation: Literal["insert", "update", "delete"]
    key: Row
    old: Row | None
    new: Row | None
    epoch: int
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsReset:
    """Forget all rows: they follow anew."""

    epoch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsCaughtUp:
    """All is told that there was. `place` is where a later feed goes on."""

    epoch: int
    place: str


def key_text(key: object) -> str:
    """Return a key as the service takes it: an object of its columns, or the value of the one."""
    if isinstance(key, str):
        return key
    value = load(dump(dict(key) if isinstance(key, Mapping) else key))
    return value if isinstance(value, str) else dump(value).decode()


@understood
def row_page_of(document: Mapping[str, Any]) -> RowPage:
    """Read a page of rows."""
    return RowPage(
        rows=tuple(document["rows"]),
        key=tuple(document["key"]),
        epoch=int(document["epoch"]),
        version=int(document["version"]),
        applied=document.get("applied"),
        next_after=document["next_after"],
    )


def change_of(document: Mapping[str, Any], place: str) -> RowChange:
    """Read a change."""
    try:
        return RowChange(
            operation=document["operation"],
            key=document["key"],
            old=document["old"],
            new=document["new"],
            epoch=int(document["epoch"]),
            place=place,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ServiceFault(
            f"the change is not understood: {type(error).__name__} {error}",
            remedy="Is this the address of a Penstock service, of a version that fits?",
        ) from error
