"""Requests of the client, answered out of memory as a service would."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from uuid import UUID

import httpx

from penstock_client.errors import BeyondHead, Incompatible, NotFound, PenstockError, Refused
from penstock_client.testing.bodies import (
    MAX_PAGE,
    Document,
    items_of,
    matches,
    new_event,
    number_of,
)
from penstock_client.testing.deciders import MemoryDeciders
from penstock_client.testing.feeds import Feed
from penstock_client.testing.groups import MemoryGroups
from penstock_client.testing.memory import MemoryStore, Wanted
from penstock_client.testing.projections import MemoryProjections
from penstock_client.testing.requests import body_of, problem, reply, whole
from penstock_client.testing.schemas import MemorySchemas
from penstock_client.testing.streams import MemoryStreams

Respond = Callable[..., httpx.Response]
_LAST = 2**62


class Routes:
    """Calls by method and path."""

    def __init__(
        self,
        store: MemoryStore,
        schemas: MemorySchemas,
        streams: MemoryStreams,
        groups: MemoryGroups,
        deciders: MemoryDeciders,
        projections: MemoryProjections,
    ) -> None:
        self._store = store
        self._schemas = schemas
        self._feeds: list[Feed] = []
        self._table: list[tuple[str, re.Pattern[str], Respond]] = []
        for method, path, respond in (
            ("POST", "/v1/streams/{stream}", self._append),
            ("GET", "/v1/streams/{stream}", self._read_stream),
            ("POST", "/v1/append", self._append_many),
            ("GET", "/v1/events", self._read_all),
            ("GET", "/v1/events/subscribe", self._subscribe),
            ("POST", "/v1/events/query", self._query),
            ("GET", "/v1/events/{id}", self._event),
            ("GET", "/v1/schemas", self._list_schemas),
            ("POST", "/v1/schemas", self._add_schema),
            ("GET", "/v1/schemas/{subject}", self._schema),
            ("PUT", "/v1/schemas/{subject}/compatibility", self._set_level),
            ("POST", "/v1/import", self._import),
            ("GET", "/v1/streams", streams.list),
            ("GET", "/v1/categories", streams.categories),
            ("GET", "/v1/streams/{stream}/metadata", streams.show),
            ("PUT", "/v1/streams/{stream}/metadata", streams.set),
            ("DELETE", "/v1/streams/{stream}", streams.delete),
            ("GET", "/v1/subscriptions", groups.list),
            ("PUT", "/v1/subscriptions/{name}", groups.put),
            ("GET", "/v1/subscriptions/{name}", groups.show),
            ("DELETE", "/v1/subscriptions/{name}", groups.delete),
            ("GET", "/v1/subscriptions/{name}/next", groups.next),
            ("POST", "/v1/subscriptions/{name}/ack", groups.ack),
            ("POST", "/v1/subscriptions/{name}/nack", groups.nack),
            ("POST", "/v1/subscriptions/{name}/park", groups.park),
            ("GET", "/v1/subscriptions/{name}/parked", groups.show_parked),
            ("POST", "/v1/subscriptions/{name}/replay-parked", groups.replay_parked),
            ("POST", "/v1/commands/{category}/{id}/{command}", deciders.command),
            ("GET", "/v1/entities/{category}/{id}", deciders.entity),
            ("GET", "/v1/entities/{category}/{id}/explain", deciders.explain),
            ("GET", "/v1/projections/{name}", projections.show),
            ("GET", "/v1/projections/{name}/rows", projections.rows),
            ("GET", "/health/ready", self._ready),
        ):
            self.add(method, path, respond)

    def add(self, method: str, path: str, respond: Respond) -> None:
        """Add a route; `{name}` in the path becomes a keyword of `respond`."""
        pattern = re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)
        self._table.append((method, re.compile(pattern), respond))

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer one request; errors become problem documents."""
        try:
            if "\x00" in request.url.path or b"%00" in request.url.query:
                raise Refused("the address has U+0000", status=400, type="malformed-address")
            for method, pattern, respond in self._table:
                found = pattern.fullmatch(request.url.path)
                if found is not None and method == request.method:
                    return respond(request, **found.groupdict())
            raise NotFound("no such path", remedy="The fake does not have this call.")
        except PenstockError as error:
            return problem(error)

    def break_feeds(self) -> None:
        """Break all open subscriptions off."""
        feeds, self._feeds = self._feeds, []
        for feed in feeds:
            feed.break_off()
        self._store.wake()

    def _append(self, request: httpx.Request, stream: str) -> httpx.Response:
        body = body_of(request)
        entry = (stream, body.get("expected_version", "any"), body.get("events", []))
        (answer,), repeated = self._store.append([entry])
        etag = {"etag": f'"{answer["last_version"]}"'}
        return reply(answer, status=200 if repeated else 201, headers=etag)

    def _append_many(self, request: httpx.Request) -> httpx.Response:
        body = body_of(request)
        entries = [
            (each["stream"], each.get("expected_version", "any"), each.get("events", []))
            for each in body.get("appends", [])
        ]
        if not entries:
            raise Refused("$.appends: expected a list with at least one entry")
        answers, repeated = self._store.append(entries, body.get("condition"))
        return reply({"appends": answers}, status=200 if repeated else 201)

    def _read_stream(self, request: httpx.Request, stream: str) -> httpx.Response:
        backward = request.url.params.get("direction") == "backward"
        lines = _wants_lines(request)
        limit = whole(request, "limit", 100, least=1, most=None if lines else MAX_PAGE)
        start = whole(request, "from_version", _LAST if backward else 0, least=0)
        version = self._store.version(stream)
        events = [
            event
            for event in self._store.visible(stream)
            if (event["version"] <= start if backward else event["version"] >= start)
        ]
        events = events[::-1] if backward else events
        if lines:
            return _lines(request, events)
        headers = {"etag": f'"{version}"'}
        page = {"stream": stream, "version": version, "events": events[:limit]}
        return reply(page, headers=headers)

    def _read_all(self, request: httpx.Request) -> httpx.Response:
        after = whole(request, "after", 0, least=0)
        wanted = _wanted(request)
        with self._store.lock:
            head = self._reached(after)
            found = [e for e in self._store.after(after) if wanted.passes(e)]
        if _wants_lines(request):
            return _lines(request, found)
        limit = whole(request, "limit", 100, least=1, most=MAX_PAGE)
        return reply(_page(found, limit, head, after))

    def _query(self, request: httpx.Request) -> httpx.Response:
        body = body_of(request)
        if "query" not in body or not body.keys() <= {"query", "after", "limit"}:
            raise Refused("$: expected an object with query and, if you like, after and limit")
        items = items_of(body)
        after = number_of(body, "after", 0, least=0)
        limit = number_of(body, "limit", 100, least=1)
        if limit > MAX_PAGE:
            raise Refused(f"limit: {limit} is more than the {MAX_PAGE} events of a page")
        with self._store.lock:
            head = self._reached(after)
            events = list(self._store.after(after))
        found = [e for e in events if any(matches(item, e) for item in items)]
        return reply(_page(found, limit, head, after))

    def _subscribe(self, request: httpx.Request) -> httpx.Response:
        text = request.headers.get("last-event-id", request.url.params.get("after", "0"))
        after = self._store.head if text == "end" else int(text)
        self._reached(after)
        feed = Feed(self._store, after, _wanted(request))
        self._feeds = [*(each for each in self._feeds if not each.ended), feed]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=feed)

    def _reached(self, after: int) -> int:
        """Return the head, which a place to begin behind must not be beyond."""
        head = self._store.head
        if after > head:
            raise BeyondHead(
                f"position {after} is beyond the head {head}",
                remedy="Start at or below the head.",
                head=head,
            )
        return head

    def _event(self, _request: httpx.Request, id: str) -> httpx.Response:
        try:
            UUID(id)
        except ValueError:
            raise Refused(f"path.event_id: {id!r} is no UUID") from None
        return reply(self._store.event(id))

    def _list_schemas(self, _request: httpx.Request) -> httpx.Response:
        return reply({"schemas": self._schemas.latest()})

    def _schema(self, _request: httpx.Request, subject: str) -> httpx.Response:
        found = self._schemas.versions(subject)
        level = self._schemas.level(subject)
        return reply({"subject": subject, "compatibility": level, "versions": found})

    def _set_level(self, request: httpx.Request, subject: str) -> httpx.Response:
        self._schemas.levels[subject] = body_of(request)["level"]
        return reply({"subject": subject, "compatibility": self._schemas.level(subject)})

    def _import(self, request: httpx.Request) -> httpx.Response:
        counts = {"lines": 0, "appended": 0, "repeated": 0, "last_position": 0}
        lines = [json.loads(line) for line in request.read().splitlines()]
        number = 0
        try:
            # The lines of a body come together or not at all, as those of a chunk do.
            checked = []
            for number, line in enumerate(lines, start=1):
                stream, event = line.pop("stream"), line
                self._store.check(stream, new_event(event, f"line {number}"))
                checked.append((stream, event))
            for stream, event in checked:
                (answer,), repeated = self._store.append([(stream, "any", [event])])
                counts["lines"] += 1
                counts["repeated" if repeated else "appended"] += 1
                counts["last_position"] = max(counts["last_position"], answer["last_position"])
        except PenstockError as error:
            error.fields = {**error.fields, "line": number, **counts}
            raise
        return reply(counts)

    def _add_schema(self, request: httpx.Request) -> httpx.Response:
        body = body_of(request)
        subject, schema = body["subject"], body["schema"]
        schema = json.loads(schema) if isinstance(schema, str) else schema
        if request.url.params.get("check") == "true":
            complaints = self._schemas.complaints(subject, schema)
            return reply(
                {"subject": subject, "compatible": not complaints, "complaints": complaints}
            )
        before = self._schemas.levels.get(subject)
        if "compatibility" in body:
            self._schemas.levels[subject] = body["compatibility"]
        try:
            added, new = self._schemas.add(subject, schema)
        except Incompatible:
            self._schemas.levels.pop(subject, None)
            if before is not None:
                self._schemas.levels[subject] = before
            raise
        return reply(added, status=201 if new else 200)

    def _ready(self, _request: httpx.Request) -> httpx.Response:
        return reply({"status": "ready", "reasons": []})


def _wants_lines(request: httpx.Request) -> bool:
    return "application/x-ndjson" in request.headers.get("accept", "")


def _lines(request: httpx.Request, events: list[Document]) -> httpx.Response:
    text = request.url.params.get("limit")
    asked = events if text is None else events[: int(text)]
    lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in asked)
    headers = {"content-type": "application/x-ndjson"}
    return httpx.Response(200, headers=headers, content=lines.encode())


def _page(found: list[Document], limit: int, head: int, after: int) -> Document:
    events = found[:limit]
    next_after = events[-1]["position"] if len(events) == limit else max(head, after)
    return {"events": events, "head": head, "next_after": next_after}


def _wanted(request: httpx.Request) -> Wanted:
    params = request.url.params
    return Wanted(
        category=params.get("category"),
        type=params.get("type"),
        stream=params.get("stream"),
        stream_prefix=params.get("stream_prefix"),
        tag=params.get("tag"),
    )
