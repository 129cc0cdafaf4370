# Written by generate_sync.py from penstock_client/_async/groups.py: edit that file.
"""Persistent subscriptions: a place in the feed that several consumers share."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Literal

from penstock_client._sync.connection import Connection
from penstock_client.groups import (
    Delivery,
    Given,
    Handled,
    Parked,
    Settled,
    Standing,
    Terms,
    given_of,
    ids_body,
    parked_of,
    settled_of,
    standing_of,
)
from penstock_client.model import new_id
from penstock_client.wire import segment

_PATH = "/v1/subscriptions"


class Groups:
    """The persistent subscriptions of a service."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(
        self,
        name: str,
        *,
        start: int | Literal["end"] = "end",
        category: str | None = None,
        type: str | None = None,
        stream_prefix: str | None = None,
        tag: str | None = None,
        terms: Terms | None = None,
    ) -> Standing:
        """Make a group, or change the terms of one that is there.

        `start` is the position to begin behind. Raises `GroupDiffers` for another filter or start
        than it was made with.
        """
        filters = {"category": category, "type": type, "stream_prefix": stream_prefix, "tag": tag}
        body = {
            "start": start,
            "filter": {key: value for key, value in filters.items() if value is not None},
            **(terms if terms is not None else Terms()).body(),
        }
        return standing_of(self._connection.call("PUT", f"{_PATH}/{segment(name)}", body=body))

    def list(self) -> tuple[Standing, ...]:
        """Return every group and how it stands."""
        document = self._connection.call("GET", _PATH)
        return tuple(map(standing_of, document["subscriptions"]))

    def show(self, name: str) -> Standing:
        """Return how a group stands. Raises `NotFound`."""
        return standing_of(self._connection.call("GET", f"{_PATH}/{segment(name)}"))

    def delete(self, name: str) -> None:
        """Forget a group, what it has out and parked. Raises `NotFound`."""
        self._connection.call("DELETE", f"{_PATH}/{segment(name)}")


class Group:
    """One consumer of a group. Events come at least once, those of one stream in order.

    `ack`, `nack` and `park` take ids, events or deliveries, one or several.
    """

    def __init__(self, connection: Connection, name: str, consumer: str | None) -> None:
        self._connection = connection
        self._path = f"{_PATH}/{segment(name)}"
        self.consumer = consumer if consumer is not None else f"client-{new_id().hex}"

    def next(self, *, limit: int = 10, per_stream: int = 1, wait_s: float = 0.0) -> Given:
        """Take events to handle; wait up to `wait_s` for the first.

        Of one stream there are up to `per_stream`: handle and acknowledge them in order. After a
        `nack` of one, leave those of its stream behind it: they were taken back with it.
        """
        params = {
            "consumer": self.consumer,
            "limit": limit,
            "wait": wait_s,
            "per_stream": per_stream,
        }
        return given_of(
            self._connection.call("GET", f"{self._path}/next", params=params, longer_s=wait_s)
        )

    def deliveries(
        self, *, limit: int = 10, per_stream: int = 1, wait_s: float = 30.0
    ) -> Generator[Delivery, None, None]:
        """Iterate over events to handle, without end. Settle each before the next is taken."""
        while True:
            given = self.next(limit=limit, per_stream=per_stream, wait_s=wait_s)
            yield from given.deliveries

    def ack(self, handled: Handled | Iterable[Handled]) -> Settled:
        """Finish events: they are never given again. Repeating it is harmless."""
        return self._settle("ack", handled)

    def nack(
        self, handled: Handled | Iterable[Handled], *, reason: str, delay_s: float | None = None
    ) -> Settled:
        """Give events back: they come again after a pause, or are parked after their last time."""
        more = {} if delay_s is None else {"delay_s": delay_s}
        return self._settle("nack", handled, reason=reason, consumer=self.consumer, **more)

    def park(self, handled: Handled | Iterable[Handled], *, reason: str) -> Settled:
        """Put events aside for a person; their streams go on."""
        return self._settle("park", handled, reason=reason, consumer=self.consumer)

    def parked(self, *, after: int = 0, limit: int = 100) -> tuple[Parked, ...]:
        """Return parked events by position."""
        params = {"after": after, "limit": limit}
        document = self._connection.call("GET", f"{self._path}/parked", params=params)
        return tuple(map(parked_of, document["parked"]))

    def replay_parked(self, handled: Handled | Iterable[Handled] | None = None) -> int:
        """Have parked events given again, all of them by default; return how many."""
        body = {} if handled is None else {"ids": ids_body(handled)}
        document = self._connection.call("POST", f"{self._path}/replay-parked", body=body)
        replayed: int = document["replayed"]
        return replayed

    def _settle(self, how: str, handled: Handled | Iterable[Handled], **more: Any) -> Settled:
        body = {"ids": ids_body(handled), **more}
        return settled_of(self._connection.call("POST", f"{self._path}/{how}", body=body))
