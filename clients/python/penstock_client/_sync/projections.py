# Written by generate_sync.py from penstock_client/_async/projections.py: edit that file.
"""A projection: its rows by key, all of them, and what changes in them."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import replace
from typing import Any

from penstock_client._sync.connection import Connection
from penstock_client._sync.feed import SILENCE_S, Feed
from penstock_client.errors import Conflict
from penstock_client.lines import Message
from penstock_client.projections import (
    FoundRow,
    Row,
    RowChange,
    RowPage,
    RowsCaughtUp,
    RowsReset,
    change_of,
    key_text,
    row_page_of,
)
from penstock_client.wire import segment

ROWS_OF_A_PAGE = 1_000


class Projection:
    """One projection of a service."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._path = f"/v1/projections/{segment(name)}"

    def row(
        self,
        key: object,
        *,
        after_position: int | None = None,
        wait_s: int = 0,
        epoch: int | None = None,
    ) -> FoundRow:
        """Return the row of a key: of one column its value, of several a mapping of them.

        With the `last_position` of your own append as `after_position` it waits up to `wait_s`
        seconds until the projection has it; `applied` says whether it has. Raises `NotFound` for
        an unknown projection or epoch, `BeyondHead` for a position that was not given yet.
        """
        page = self.page(keys=(key,), after_position=after_position, wait_s=wait_s, epoch=epoch)
        row = page.rows[0] if page.rows else None
        return FoundRow(row=row, epoch=page.epoch, applied=page.applied)

    def page(
        self,
        *,
        keys: Iterable[object] | None = None,
        after: str | None = None,
        limit: int | None = None,
        after_position: int | None = None,
        wait_s: int = 0,
        epoch: int | None = None,
    ) -> RowPage:
        """Return the rows of keys, those that there are, or the next page behind `after`."""
        wanted = None if keys is None else [key_text(key) for key in keys]
        # Of no keys there are no rows: who names none is answered with those of all.
        of_none = wanted == []
        asked: dict[str, Any] = {
            "key": wanted or None,
            "after": after,
            "limit": 1 if of_none else limit,
            "after_position": after_position,
            "epoch": epoch,
        }
        # What one has just been told of is not to be older than that.
        headers = {"cache-control": "no-cache"}
        if wait_s:
            headers["prefer"] = f"wait={wait_s}"
        page = row_page_of(
            self._connection.call(
                "GET",
                f"{self._path}/rows",
                params={name: value for name, value in asked.items() if value is not None},
                headers=headers,
                longer_s=wait_s,
            )
        )
        return replace(page, rows=(), next_after=None) if of_none else page

    def rows(self, *, epoch: int | None = None) -> Generator[Row, None, None]:
        """Iterate over all rows in the order of keys, all of one epoch: the given one, or now's.

        Raises `Conflict` where the epoch's rows became others meanwhile, as by a swap.
        """
        after: str | None = None
        version: int | None = None
        while True:
            page = self.page(after=after, limit=ROWS_OF_A_PAGE, epoch=epoch)
            if version not in (None, page.version):
                raise Conflict(
                    f"the rows of epoch {epoch} are those of version {page.version} of the table "
                    f"now; what was read is of version {version}",
                    remedy="Read all of them again.",
                )
            yield from page.rows
            if page.next_after is None:
                return
            after, epoch, version = page.next_after, page.epoch, page.version

    def changes(self, *, after: str | None = None, silence_s: float = SILENCE_S) -> RowChanges:
        """Follow what changes: all rows first, or what came behind a `place`, or behind `end`."""
        return RowChanges(
            self._connection, f"{self._path}/changes", after=after, silence_s=silence_s
        )

    def show(self) -> Mapping[str, Any]:
        """Return how the projection stands. Raises `NotFound`."""
        found: Mapping[str, Any] = self._connection.call("GET", self._path)
        return found


class RowChanges(Feed[RowChange | RowsReset | RowsCaughtUp]):
    """Changes of a projection's rows, each once, without end; folding them gives its rows.

    `RowsReset` says that all rows are to be forgotten, and follow anew; `RowsCaughtUp` that all is
    told. A broken connection is made again from the last place.
    """

    def __init__(
        self, connection: Connection, path: str, *, after: str | None, silence_s: float
    ) -> None:
        super().__init__(connection, path, silence_s=silence_s)
        self._after = after

    @property
    def place(self) -> str | None:
        """Where a later feed goes on: all up to here was given."""
        return self._after

    def _asked(self) -> Mapping[str, Any]:
        return {} if self._after is None else {"after": self._after}

    def _taken(
        self, message: Message, document: Any
    ) -> RowChange | RowsReset | RowsCaughtUp | None:
        if message.event == "reset":
            self._after = None
            return RowsReset(epoch=document["epoch"])
        if message.event not in ("", "caught-up", "checkpoint"):
            return None
        self._after = message.id
        if message.event == "":
            return change_of(document, message.id)
        if message.event == "caught-up":
            return RowsCaughtUp(epoch=document["epoch"], place=message.id)
        return None
