# Written by generate_sync.py from penstock_client/_async/client.py: edit that file.
"""The client: one object per service."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Self
from uuid import UUID

import httpx

from penstock_client._sync.connection import Connection
from penstock_client._sync.feed import SILENCE_S
from penstock_client._sync.groups import Group, Groups
from penstock_client._sync.projections import Projection
from penstock_client._sync.reading import PAGE, all_events, stream_events
from penstock_client._sync.schemas import Schemas
from penstock_client._sync.streams import Streams
from penstock_client._sync.subscription import Subscription
from penstock_client.access import found_token
from penstock_client.errors import Refused
from penstock_client.model import (
    CommandAnswer,
    Condition,
    Direction,
    Entity,
    Event,
    EventPage,
    Expected,
    Explanation,
    Health,
    Imported,
    NewEvent,
    QueryItem,
    StreamAppend,
    StreamAppended,
    StreamPage,
    new_id,
)
from penstock_client.retry import Retry
from penstock_client.wire import (
    append_body,
    appended_of,
    command_answer_of,
    entity_of,
    event_of,
    event_page_of,
    explanation_of,
    import_lines,
    imported_of,
    moment_params,
    precondition,
    query_body,
    segment,
    stream_body,
    stream_page_of,
)

DEFAULT_URL = "http://127.0.0.1:7070"


class Penstock:
    """A Penstock service.

    Calls are tried again after a broken connection, 429 and 503, as `retry` says: reads may be,
    and appends carry the ids of their events, so that they happen once however often they are
    sent. Errors are in `penstock_client.errors`. One client may serve any number of threads.

    Without `token` the one of the environment or the workspace is taken, see
    `penstock_client.access`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        token: str | None = None,
        workspace: str | PathLike[str] | None = None,
        timeout_s: float = 30.0,
        retry: Retry | None = None,
        transport: httpx.BaseTransport | None = None,
        verify: bool = True,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise Refused(f"{url!r} is no address", remedy=f"As an example: {DEFAULT_URL}")
        headers = {"user-agent": "penstock-client"}
        if token is None:
            token = found_token(url, workspace)
        if token:
            headers["authorization"] = f"Bearer {token}"
        self._connection = Connection(
            httpx.Client(
                base_url=url,
                headers=headers,
                timeout=timeout_s,
                transport=transport,
                verify=verify,
                limits=httpx.Limits(max_connections=200, max_keepalive_connections=50),
            ),
            retry if retry is not None else Retry(),
        )
        self.schemas = Schemas(self._connection)
        self.streams = Streams(self._connection)
        self.groups = Groups(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._connection.close()

    def append(
        self,
        stream: str,
        events: NewEvent | Iterable[NewEvent],
        *,
        expected_version: Expected | None = None,
    ) -> StreamAppended:
        """Append events to one stream, all or none, and return once they are durable.

        Raises `VersionConflict`, `IdReused`, `UnknownType`, `SchemaViolation`, `StreamGone`,
        `Overloaded`, `StorageFull`; `OutcomeUnknown` when no try was answered: call it again with
        the same events.
        """
        body = stream_body(events, expected_version)
        return appended_of(
            self._connection.call("POST", f"/v1/streams/{segment(stream)}", body=body)
        )

    def append_many(
        self, appends: Iterable[StreamAppend], *, condition: Condition | None = None
    ) -> tuple[StreamAppended, ...]:
        """Append to several streams, all or nothing; one answer per entry, in order.

        Raises `ConditionFailed` too, when `condition` is given and does not hold.
        """
        body = append_body(appends, condition)
        document = self._connection.call("POST", "/v1/append", body=body)
        return tuple(appended_of(each) for each in document["appends"])

    def import_events(self, events: Iterable[tuple[str, NewEvent]]) -> Imported:
        """Append any number of events, each to the stream it comes with, in order.

        They go 500 at a time, each 500 all or none, in constant memory. After an error, or a
        crash, call it again with the same events: their ids tell what is there already.
        """
        done = Imported(lines=0, appended=0, repeated=0, last_position=0)
        for lines in import_lines(events):
            document = self._connection.call("POST", "/v1/import", lines=lines)
            done = imported_of(document, done)
        return done

    def encode(self, stream: str, events: NewEvent | Iterable[NewEvent]) -> list[dict[str, Any]]:
        """Check events and return them as `es.append` takes them in your own SQL transaction.

        Nothing is appended.
        """
        body = {"stream": stream, **stream_body(events, None)}
        document = self._connection.call("POST", "/v1/encode", body=body)
        encoded: list[dict[str, Any]] = document["events"]
        return encoded

    def read_stream(
        self,
        stream: str,
        *,
        from_version: int | None = None,
        direction: Direction = "forward",
        limit: int | None = None,
    ) -> Generator[Event, None, None]:
        """Iterate over a stream's events, from `from_version` (inclusive) or the near end.

        A stream that does not exist has no events. Raises `StreamGone`.
        """
        return stream_events(
            self._connection, stream, from_version=from_version, direction=direction, limit=limit
        )

    def stream_page(
        self,
        stream: str,
        *,
        from_version: int | None = None,
        direction: Direction = "forward",
        limit: int = PAGE,
    ) -> StreamPage:
        """Return one page of a stream and its present version.

        Raises `NotFound` for a stream that does not exist.
        """
        params: dict[str, Any] = {"direction": direction, "limit": limit}
        if from_version is not None:
            params["from_version"] = from_version
        return stream_page_of(
            self._connection.call("GET", f"/v1/streams/{segment(stream)}", params=params)
        )

    def read_all(
        self,
        *,
        after: int = 0,
        category: str | None = None,
        type: str | None = None,
        stream: str | None = None,
        stream_prefix: str | None = None,
        tag: str | None = None,
        limit: int | None = None,
    ) -> Generator[Event, None, None]:
        """Iterate over all events behind position `after`, up to where the store is then."""
        filters = _given(
            category=category, type=type, stream=stream, stream_prefix=stream_prefix, tag=tag
        )
        return all_events(self._connection, after=after, filters=filters, limit=limit)

    def event(self, event_id: UUID | str) -> Event:
        """Return one event by its id. Raises `NotFound`."""
        return event_of(self._connection.call("GET", f"/v1/events/{segment(event_id)}"))

    def head(self) -> int:
        """Return the last position, 0 for an empty store."""
        document = self._connection.call("GET", "/v1/events", params={"limit": 1})
        return event_page_of(document).head

    def query(
        self, items: QueryItem | Iterable[QueryItem], *, after: int = 0, limit: int = PAGE
    ) -> EventPage:
        """Return events that match any of the items, by position.

        When all were looked at (`next_after` equals `head`), `head` is what a `Condition` on the
        same items takes as `after`.
        """
        several = (items,) if isinstance(items, QueryItem) else items
        body = {"query": query_body(several), "after": after, "limit": limit}
        return event_page_of(self._connection.call("POST", "/v1/events/query", body=body))

    def subscribe(
        self,
        *,
        after: int | Literal["end"] = 0,
        category: str | None = None,
        type: str | None = None,
        stream: str | None = None,
        stream_prefix: str | None = None,
        tag: str | None = None,
        silence_s: float = SILENCE_S,
    ) -> Subscription:
        """Follow events behind a position, or from now on, without end.

        Raises `BeyondHead` while it is iterated when the store has not come to `after`: it was
        restored or replaced, and what was computed from the old one cannot be gone on with.
        """
        filters = _given(
            category=category, type=type, stream=stream, stream_prefix=stream_prefix, tag=tag
        )
        return Subscription(self._connection, after=after, filters=filters, silence_s=silence_s)

    def group(self, name: str, *, consumer: str | None = None) -> Group:
        """Be a consumer of a persistent subscription; by default one with a name of its own."""
        return Group(self._connection, name, consumer)

    def projection(self, name: str) -> Projection:
        """Read a projection's rows, and what changes in them."""
        return Projection(self._connection, name)

    def command(
        self,
        category: str,
        id: str,
        command: str,
        data: Mapping[str, Any] | None = None,
        *,
        expected_version: int | Literal["no_stream", "stream_exists"] | None = None,
        idempotency_key: str | None = None,
    ) -> CommandAnswer:
        """Have a command decided, and return the events that it led to.

        The key makes all tries one command; without one of yours, one is made for this call.
        Raises `CommandRefused`, `VersionConflict`, `SchemaViolation`, `DeciderFailed`, `NotFound`.
        """
        key = idempotency_key if idempotency_key is not None else str(new_id())
        path = f"/v1/commands/{segment(category)}/{segment(id)}/{segment(command)}"
        headers = {"idempotency-key": key, **precondition(expected_version)}
        body = dict(data or {})
        return command_answer_of(self._connection.call("POST", path, body=body, headers=headers))

    def entity(
        self, category: str, id: str, *, version: int | None = None, at: datetime | None = None
    ) -> Entity:
        """Return an entity's state: now, after the event `version`, or as it was recorded `at`.

        Raises `NotFound` when there was no event by then.
        """
        path = f"/v1/entities/{segment(category)}/{segment(id)}"
        params = moment_params(version, at)
        return entity_of(self._connection.call("GET", path, params=params))

    def explain(
        self,
        category: str,
        id: str,
        *,
        version: int | None = None,
        at: datetime | None = None,
        limit: int = 50,
    ) -> Explanation:
        """Return the last events that led to a state, and which fields each of them changed.

        Up to `limit` (500 at most), fewer where they are large: `earlier` of the answer is the
        `version` to go on with. Raises `NotFound` when there was no event by then.
        """
        path = f"/v1/entities/{segment(category)}/{segment(id)}/explain"
        params = {**moment_params(version, at), "limit": limit}
        return explanation_of(self._connection.call("GET", path, params=params))

    def health(self) -> Health:
        """Say whether the service takes appends and reads. Raises `Unavailable` when it is down.

        Without the token it gives no reasons.
        """
        status, document = self._connection.probe("/health/ready")
        return Health(
            ready=status == 200,
            reasons={each["part"]: each["reason"] for each in document.get("reasons", [])},
        )


def _given(**filters: str | None) -> dict[str, str]:
    return {name: value for name, value in filters.items() if value is not None}
