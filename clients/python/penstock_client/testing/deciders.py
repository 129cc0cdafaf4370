"""Commands and entities in memory: a decider as three plain parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any

import httpx

from penstock_client.errors import IdReused, NotFound, VersionConflict
from penstock_client.model import NewEvent
from penstock_client.testing.bodies import Document
from penstock_client.testing.memory import Lifecycle, MemoryStore
from penstock_client.testing.requests import body_of, reply
from penstock_client.wire import event_body


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeDecider:
    """The rules of one category, for tests.

    `decide(command, data, state)` returns events or raises `CommandRefused`;
    `evolve(state, event)` takes events as they are read; states are JSON values.
    """

    decide: Callable[[str, Mapping[str, Any], Any], Iterable[NewEvent]]
    evolve: Callable[[Any, Mapping[str, Any]], Any]
    initial_state: Any = None
    version: int = 1


class MemoryDeciders:
    """Handles commands one after another."""

    def __init__(self, store: MemoryStore, deciders: Mapping[str, FakeDecider]) -> None:
        self._store = store
        self._deciders = deciders
        self._answers: dict[str, tuple[Document, Document]] = {}

    def command(
        self, request: httpx.Request, category: str, id: str, command: str
    ) -> httpx.Response:
        """Decide a command and append what it leads to."""
        decider, stream = self._decider(category), f"{category}-{id}"
        data = body_of(request)
        asked: Document = {"stream": stream, "command": command, "data": data}
        key = request.headers.get("idempotency-key")
        with self._store.lock:
            if key in self._answers:
                known, answer = self._answers[key]
                if known != asked:
                    raise IdReused("the key was used for another command", remedy="Use another.")
                return reply(answer)
            self._check(request, stream)
            state = self._folded(decider, self._events(stream))
            events = [event_body(e) for e in decider.decide(command, data, state)]
            if events:
                self._store.append([(stream, "any", events)])
            history = self._events(stream)
            last = history[-1] if history else {"version": None, "position": None}
            answer = {
                "stream": stream,
                "version": last["version"],
                "position": last["position"],
                "events": history[len(history) - len(events) :],
            }
            if key is not None:
                self._answers[key] = (asked, answer)
        return reply(answer, status=201 if events else 200)

    def entity(self, request: httpx.Request, category: str, id: str) -> httpx.Response:
        """Show an entity's state."""
        events = self._events_upto(request, category, id)
        return reply(self._document(category, id, events))

    def explain(self, request: httpx.Request, category: str, id: str) -> httpx.Response:
        """Show which events led to a state, and what each of them changed."""
        decider, events = self._decider(category), self._events_upto(request, category, id)
        first = max(0, len(events) - int(request.url.params.get("limit", 50)))
        state = before = _copied(self._folded(decider, events[:first]))
        steps = []
        for event in events[first:]:
            after = _copied(decider.evolve(_copied(state), event))
            steps.append({"event": event, "changes": [*_changes(state, after, "")]})
            state = after
        more = {
            "before": before,
            "events": steps,
            "earlier": events[first - 1]["version"] if first else None,
        }
        return reply(self._document(category, id, events) | more)

    def _document(self, category: str, id: str, events: list[Document]) -> Document:
        decider, last = self._decider(category), events[-1]
        return {
            "stream": f"{category}-{id}",
            "category": category,
            "id": id,
            "version": last["version"],
            "position": last["position"],
            "recorded_at": last["recorded_at"],
            "decider_version": decider.version,
            "state": self._folded(decider, events),
        }

    def _events_upto(self, request: httpx.Request, category: str, id: str) -> list[Document]:
        self._decider(category)
        events = self._events(f"{category}-{id}")
        version, at = request.url.params.get("version"), request.url.params.get("at")
        if version is not None:
            events = [event for event in events if event["version"] <= int(version)]
        if at is not None:
            moment = datetime.fromisoformat(at)
            events = [e for e in events if datetime.fromisoformat(e["recorded_at"]) <= moment]
        if not events:
            raise NotFound(f"there is no {category} {id}", remedy="Check the id.")
        return events

    def _decider(self, category: str) -> FakeDecider:
        found = self._deciders.get(category)
        if found is None:
            raise NotFound(f"category {category} has no decider", remedy="Give the fake one.")
        return found

    def _events(self, stream: str) -> list[Document]:
        return [] if self._head(stream) is None else self._store.visible(stream)

    def _head(self, stream: str) -> int | None:
        """Return a stream's version; None where it is not there, or not any more."""
        deleted = self._store.lifecycle.get(stream, Lifecycle()).deleted
        return None if deleted else self._store.version(stream)

    def _folded(self, decider: FakeDecider, events: list[Document]) -> Any:
        return reduce(decider.evolve, events, _copied(decider.initial_state))

    def _check(self, request: httpx.Request, stream: str) -> None:
        version = self._head(stream)
        match, none = request.headers.get("if-match"), request.headers.get("if-none-match")
        expected = "no_stream" if none == "*" else "stream_exists" if match == "*" else match
        met = {None: True, "no_stream": version is None, "stream_exists": version is not None}
        if not met.get(expected, expected == f'"{version}"'):
            raise VersionConflict(
                f"stream {stream} is not at {expected}",
                remedy="Read the stream and decide again.",
                status=412,
                expected=expected,
                actual=version,
            )


def _copied(state: Any) -> Any:
    """Return a state that shares nothing with this one: `evolve` may change it in place."""
    return json.loads(json.dumps(state))


def _changes(before: Any, after: Any, at: str) -> Iterator[Document]:
    """Yield what differs between two JSON values, as the service tells it."""
    ours, theirs = _parts(before), _parts(after)
    if ours is not None and theirs is not None and type(before) is type(after):
        names = [*dict.fromkeys([*ours, *theirs])]
        if isinstance(before, list):
            # A list that became shorter loses its items from the end.
            names[len(theirs) :] = [*reversed(names[len(theirs) :])]
        for name in names:
            place = f"{at}/{name.replace('~', '~0').replace('/', '~1')}"
            if name in ours and name in theirs:
                yield from _changes(ours[name], theirs[name], place)
            elif name in ours:
                yield {"field": place, "from": ours[name]}
            else:
                yield {"field": place, "to": theirs[name]}
    elif json.dumps(before) != json.dumps(after):
        yield {"field": at, "from": before, "to": after}


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the parts of a list or an object by their names; None for any other value."""
    if isinstance(value, list):
        return {str(number): part for number, part in enumerate(value)}
    return value if isinstance(value, dict) else None
