"""What `decide` gave back, checked before anything of it is appended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from eventstore.deciders.decider import Command, Decider, Event, plain
from eventstore.names import check_tag, check_type
from kernel.errors import DeciderFailed, PenstockError

Place = tuple[str, int]
"""A file and a line of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedLimits:
    """What one command may lead to: events, bytes of each as JSON, tags of each."""

    events: int = 1_000
    event_bytes: int = 256 * 1024
    tags: int = 16


_USUAL = DecidedLimits()


def decided(
    decider: Decider[Any], command: Command, state: Any, limits: DecidedLimits = _USUAL
) -> list[Event]:
    """Ask the decider, and return its events. Raises `Refused`, and `DeciderFailed` for events that
    cannot be, with the place of `decide`.
    """

    def wrong(what: str) -> DeciderFailed:
        return mistaken(decider.category, place_of(decider), command.name, what)

    result: object = decider.decide(command, state)
    if isinstance(result, Event | str | Mapping) or not isinstance(result, Iterable):
        raise wrong(f"returned {type(result).__name__}, not a list of Event")
    events: list[Event] = []
    for event in result:
        if not isinstance(event, Event):
            raise wrong(f"made a {type(event).__name__}, not an Event")
        if len(events) == limits.events:
            raise wrong(f"made more than {limits.events} events")
        try:
            check_type(event.type)
            data = plain(event.data)
            plain(event.metadata)
            for tag in event.tags:
                check_tag(tag)
        except PenstockError as error:
            raise wrong(f"made an event that cannot be: {error}") from error
        if event.occurred_at is not None and event.occurred_at.tzinfo is None:
            raise wrong(f"made a {event.type} at a time without an offset")
        if len(event.tags) > limits.tags:
            raise wrong(f"gave a {event.type} more than {limits.tags} tags")
        if len(orjson.dumps(data)) > limits.event_bytes:
            size = f"more than {limits.event_bytes} bytes"
            raise wrong(f"made a {event.type} of {size}")
        if not isinstance(data, dict):
            raise wrong(f"made a {event.type} whose data are no object")
        events.append(event)
    return events


def place_of(decider: Decider[Any]) -> Place | None:
    """Return file and line of a decider's `decide`; None for what is no plain function."""
    code = getattr(decider.decide, "__code__", None)
    return None if code is None else (code.co_filename, code.co_firstlineno)


def mistaken(category: str, place: Place | None, command: str, what: str) -> DeciderFailed:
    """Return the error of a `decide` that did what it may not."""
    file, line = place or (None, None)
    shown = "" if place is None else f"{file}:{line}: "
    return DeciderFailed(
        f"{shown}decide of {category} {what} (command {command})", file=file, line=line
    )
