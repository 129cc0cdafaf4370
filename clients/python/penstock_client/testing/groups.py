"""Persistent subscriptions in memory, by the service's rules."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import httpx

from penstock_client.errors import GroupDiffers, NotFound, Refused
from penstock_client.testing.bodies import Document
from penstock_client.testing.memory import MemoryStore, Wanted
from penstock_client.testing.requests import body_of, reply, whole

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_DEFAULTS: Document = {
    "max_deliveries": 10,
    "ack_timeout_s": 30.0,
    "backoff_s": 1.0,
    "backoff_cap_s": 300.0,
    "max_in_flight": 100,
    "look_ahead": 1_000,
    "max_parked": 10_000,
}


@dataclass(slots=True, kw_only=True)
class _Entry:
    """An event that is not finished: with a consumer until `due_at`, or waiting for it."""

    event: Document
    due_at: datetime
    deliveries: int = 0
    consumer: str | None = None
    reason: str = "not acknowledged in time"
    parked_at: datetime | None = None
    was_late: bool = False


@dataclass(slots=True, kw_only=True)
class _Group:
    name: str
    wanted: Wanted
    started_after: int
    looked_to: int
    terms: Document
    waiting: dict[int, _Entry] = field(default_factory=dict)
    parked: dict[int, _Entry] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    redelivered: int = 0


class MemoryGroups:
    """All groups of a fake. Answers requests by name of the group."""

    def __init__(self, store: MemoryStore, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now
        self._groups: dict[str, _Group] = {}

    def put(self, request: httpx.Request, name: str) -> httpx.Response:
        """Make a group, or change its terms."""
        body = body_of(request)
        if not _NAME.fullmatch(name):
            raise Refused(f"{name!r} cannot name a subscription")
        wanted = Wanted(**body.get("filter", {}))
        start = body.get("start", "end")
        after = self._store.head if start == "end" else start
        given = {key: body[key] for key in _DEFAULTS if key in body}
        group = self._groups.get(name)
        if group is None:
            group = _Group(
                name=name,
                wanted=wanted,
                started_after=after,
                looked_to=after,
                terms=_DEFAULTS | given,
            )
            self._groups[name] = group
            return reply(self._standing(group), status=201)
        if group.wanted != wanted or start not in ("end", group.started_after):
            raise GroupDiffers(f"{name} has another filter or start", remedy="Use another name.")
        group.terms = _DEFAULTS | given
        return reply(self._standing(group))

    def list(self, _request: httpx.Request) -> httpx.Response:
        """Show all groups."""
        return reply({"subscriptions": [self._standing(each) for each in self._groups.values()]})

    def show(self, _request: httpx.Request, name: str) -> httpx.Response:
        """Show one group."""
        return reply(self._standing(self._group(name)))

    def delete(self, _request: httpx.Request, name: str) -> httpx.Response:
        """Forget a group."""
        del self._groups[self._group(name).name]
        return httpx.Response(204)

    def next(self, request: httpx.Request, name: str) -> httpx.Response:
        """Give events: of each stream as many as asked for, none that another one blocks."""
        group = self._group(name)
        limit = whole(request, "limit", 10, least=1, most=1_000)
        per_stream = whole(request, "per_stream", 1, least=1, most=1_000)
        consumer = request.url.params.get("consumer", "consumer")
        with self._store.lock:
            self._look(group)
            now = self._now()
            room = group.terms["max_in_flight"] - sum(
                entry.consumer is not None and entry.due_at > now
                for entry in group.waiting.values()
            )
            given: list[_Entry] = []
            for entry in list(self._givable(group, now, per_stream)):
                if len(given) >= min(limit, room):
                    break
                entry.deliveries += 1
                group.redelivered += entry.deliveries > 1
                entry.consumer = consumer
                entry.due_at = now + timedelta(seconds=group.terms["ack_timeout_s"])
                given.append(entry)
        events = [
            {"attempt": e.deliveries, "ack_by": e.due_at.isoformat(), "event": e.event}
            for e in given
        ]
        return reply({"events": events, "caught_up": group.looked_to >= self._store.head})

    def ack(self, request: httpx.Request, name: str) -> httpx.Response:
        """Finish events, parked ones too."""

        def finish(group: _Group, position: int) -> bool:
            held = group.waiting if position in group.waiting else group.parked
            entry = held.get(position)
            if entry is None or not (entry.deliveries or entry.was_late):
                return False
            del held[position]
            group.finished.add(entry.event["id"])
            return True

        return self._settle(request, name, finish)

    def nack(self, request: httpx.Request, name: str) -> httpx.Response:
        """Give events back."""
        body, named = body_of(request), self._group(name)
        held = {at for at in named.waiting if self._out(named, at, body) is not None}

        def give_back(group: _Group, position: int) -> bool:
            if position not in held:
                return False
            entry = group.waiting[position]
            if entry.consumer is None:
                return True  # Taken back with one before it.
            entry.reason = body["reason"]
            delay_s = body.get("delay_s")
            if delay_s is None:
                doubled = group.terms["backoff_s"] * 2.0 ** min(entry.deliveries - 1, 40)
                delay_s = min(group.terms["backoff_cap_s"], doubled)
            entry.due_at = self._now() + timedelta(seconds=delay_s)
            behind = [
                other
                for at, other in group.waiting.items()
                if at > position
                and other.consumer is not None
                and other.event["stream"] == entry.event["stream"]
            ]
            self._take_back(group, [entry, *behind])
            if entry.deliveries >= group.terms["max_deliveries"]:
                self._park(group, position)
            return True

        return self._settle(request, name, give_back)

    def park(self, request: httpx.Request, name: str) -> httpx.Response:
        """Put events aside."""
        body = body_of(request)

        def put_aside(group: _Group, position: int) -> bool:
            entry = self._out(group, position, body)
            if entry is None:
                return False
            entry.reason = body["reason"]
            self._park(group, position)
            return True

        return self._settle(request, name, put_aside)

    def show_parked(self, request: httpx.Request, name: str) -> httpx.Response:
        """Show parked events."""
        after = whole(request, "after", 0, least=0)
        limit = whole(request, "limit", 100, least=1, most=1_000)
        found = [
            {
                "id": entry.event["id"],
                "stream": entry.event["stream"],
                "position": position,
                "deliveries": entry.deliveries,
                "reason": entry.reason,
                "parked_at": (entry.parked_at or self._now()).isoformat(),
            }
            for position, entry in sorted(self._group(name).parked.items())
            if position > after
        ]
        return reply({"parked": found[:limit]})

    def replay_parked(self, request: httpx.Request, name: str) -> httpx.Response:
        """Have parked events given again, as if never before."""
        group, wanted = self._group(name), body_of(request).get("ids")
        with self._store.lock:
            chosen = [
                position
                for position, entry in group.parked.items()
                if wanted is None or entry.event["id"] in wanted
            ]
            for position in chosen:
                event = group.parked.pop(position).event
                group.waiting[position] = _Entry(event=event, due_at=self._now())
        return reply({"replayed": len(chosen), "remaining": len(group.parked)})

    def _group(self, name: str) -> _Group:
        found = self._groups.get(name)
        if found is None:
            raise NotFound(f"there is no subscription {name}", remedy="Make it first.")
        return found

    def _look(self, group: _Group) -> None:
        for event in self._store.after(group.looked_to):
            if len(group.waiting) >= group.terms["look_ahead"]:
                return
            group.looked_to = event["position"]
            if group.wanted.passes(event):
                group.waiting[event["position"]] = _Entry(event=event, due_at=self._now())

    def _givable(self, group: _Group, now: datetime, per_stream: int) -> Iterator[_Entry]:
        self._settle_late(group, now)
        stopped = {e.event["stream"] for e in group.waiting.values() if e.consumer is not None}
        counts: Counter[str] = Counter()
        fresh = False
        for _, entry in sorted(group.waiting.items()):
            stream = entry.event["stream"]
            if stream in stopped:
                continue
            if entry.deliveries and entry.due_at <= now:
                # What comes back comes alone: of a batch, nobody knows which event failed.
                if not fresh:
                    yield entry
                    return
                stopped.add(stream)
                continue
            counts[stream] += 1
            if entry.due_at > now or counts[stream] == per_stream:
                stopped.add(stream)
            if entry.due_at <= now:
                fresh = True
                yield entry

    def _settle_late(self, group: _Group, now: datetime) -> None:
        late = [e for e in group.waiting.values() if e.consumer is not None and e.due_at <= now]
        for entry in late:
            entry.was_late = True
        self._take_back(group, late)
        for position, entry in sorted(group.waiting.items()):
            if entry.consumer is None and entry.deliveries >= group.terms["max_deliveries"]:
                self._park(group, position)

    def _take_back(self, group: _Group, entries: Iterable[_Entry]) -> None:
        """Take entries from their consumers; those behind another of their stream do not count."""
        firsts: dict[str, _Entry] = {}
        for _, entry in sorted(group.waiting.items()):
            firsts.setdefault(entry.event["stream"], entry)
        for entry in entries:
            entry.consumer = None
            if entry is not firsts[entry.event["stream"]]:
                entry.deliveries -= 1
                entry.due_at = self._now()

    def _park(self, group: _Group, position: int) -> None:
        entry = group.waiting.pop(position)
        entry.consumer, entry.parked_at = None, self._now()
        group.parked[position] = entry

    def _out(self, group: _Group, position: int, body: Document) -> _Entry | None:
        entry = group.waiting.get(position)
        if entry is None or entry.consumer is None or entry.due_at <= self._now():
            return None
        return entry if body.get("consumer") in (None, entry.consumer) else None

    def _settle(
        self, request: httpx.Request, name: str, settle: Callable[[_Group, int], bool]
    ) -> httpx.Response:
        group = self._group(name)
        settled: dict[str, list[str]] = {"done": [], "already": [], "refused": []}
        with self._store.lock:
            places = {
                entry.event["id"]: position
                for position, entry in (group.waiting | group.parked).items()
            }
            for id_ in body_of(request)["ids"]:
                position = places.get(id_)
                if position is not None and settle(group, position):
                    settled["done"].append(id_)
                else:
                    kind = "already" if id_ in group.finished else "refused"
                    settled[kind].append(id_)
        return reply(settled)

    def _standing(self, group: _Group) -> dict[str, Any]:
        now = self._now()
        out = [e for e in group.waiting.values() if e.consumer is not None and e.due_at > now]
        checkpoint = min(group.waiting, default=group.looked_to + 1) - 1
        behind = self._store.head - checkpoint
        first = next(self._store.after(checkpoint), None)
        age_s = (now - datetime.fromisoformat(first["recorded_at"])).total_seconds() if first else 0
        return {
            "name": group.name,
            "state": "behind" if behind else "caught-up",
            "started_after": group.started_after,
            "checkpoint": checkpoint,
            "head": self._store.head,
            "lag_events": behind,
            "lag_seconds": age_s,
            "in_flight": len(out),
            "waiting": len(group.waiting) - len(out),
            "parked": len(group.parked),
            "redelivered": group.redelivered,
        } | group.terms
