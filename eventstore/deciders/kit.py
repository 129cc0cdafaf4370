"""Given, when, then: tests of deciders without a store, a service or a test framework.

    account = Scenarios(payments)

    account.given(
        Event("opened", {"owner": "Ada", "currency": "EUR"}),
        Event("deposited", {"amount": "20.00"}),
    ).when("pay", amount="5.00", payee="shop").then(
        Event("paid", {"amount": "5.00", "payee": "shop", "day": "1970-01-01", "reference": None}),
    )

What fails is an `AssertionError` that shows both sides. On the way the kit checks what the service
relies on: that the parts are pure, and that every state survives the way through a snapshot.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Generic, TypeVar

import orjson

from eventstore.deciders.decider import EPOCH, Command, Decider, Event, plain
from kernel.errors import PenstockError, Refused, SchemaViolation

S = TypeVar("S")


class Scenarios(Generic[S]):
    """Scenarios of one decider."""

    def __init__(self, decider: Decider[S]) -> None:
        self._decider = decider

    def given(self, *events: Event) -> Given[S]:
        """Begin with what has happened; nothing at all without events."""
        return Given(self._decider, events)


class Given(Generic[S]):
    """What has happened."""

    def __init__(self, decider: Decider[S], events: Iterable[Event]) -> None:
        self._decider = decider
        self._events = tuple(map(_as_read, events))

    def when(
        self,
        command: str,
        data: Mapping[str, Any] | None = None,
        *,
        at: datetime = EPOCH,
        entity: str = "1",
        **fields: Any,
    ) -> When[S]:
        """Send a command at a time; its data as an object, as keywords, or both."""
        return When(self._decider, self._events, command, {**(data or {}), **fields}, at, entity)

    def then_state(self, expected: S | Mapping[str, Any]) -> Given[S]:
        """Expect the state after these events: as it is, or some of its fields as JSON."""
        _check_state(self._decider, _folded(self._decider, self._events), expected)
        return self


class When(Generic[S]):
    """A command that was decided; `then…` says what should have come of it."""

    def __init__(
        self,
        decider: Decider[S],
        before: tuple[Event, ...],
        name: str,
        data: Mapping[str, Any],
        at: datetime,
        entity: str,
    ) -> None:
        self._decider = decider
        self._before = before
        self._events: tuple[Event, ...] = ()
        self._refused: str | None = None
        if name not in decider.commands:
            raise AssertionError(
                f"{decider.category} takes no command {name}: {', '.join(decider.commands)}"
            )
        try:
            command = Command(name, decider.data_of(name, plain(data)), entity=entity, at=at)
        except SchemaViolation as error:
            raise AssertionError(f"the data of {name} do not fit: {error}") from error
        self._events, self._refused = _decided(decider, command, before)

    def then(self, *events: Event) -> When[S]:
        """Expect exactly these events, in order; tags and metadata where an event names some."""
        self._accepted()
        expected = [_shown(event, event) for event in map(_as_read, events)]
        pairs = [*events, *([Event("")] * len(self._events))]
        found = [_shown(event, like) for event, like in zip(self._events, pairs, strict=False)]
        if expected != found:
            raise AssertionError("other events than expected\n" + _difference(expected, found))
        return self

    def then_nothing(self) -> When[S]:
        """Expect that the command is accepted and leads to no events."""
        return self.then()

    def then_refused(self, reason: str = "") -> When[S]:
        """Expect a refusal whose reason contains `reason`."""
        if self._refused is None:
            shown = _difference([], [_shown(event, event) for event in self._events])
            raise AssertionError(f"expected a refusal, the command was accepted\n{shown}")
        if reason not in self._refused:
            raise AssertionError(
                "refused for another reason\n" + _difference(reason, self._refused)
            )
        return self

    def then_state(self, expected: S | Mapping[str, Any]) -> When[S]:
        """Expect the state after the command's events: as it is, or some of its fields as JSON."""
        self._accepted()
        state = _folded(self._decider, (*self._before, *self._events))
        _check_state(self._decider, state, expected)
        return self

    def _accepted(self) -> None:
        if self._refused is not None:
            raise AssertionError(f"the command was refused: {self._refused}")


def _decided(
    decider: Decider[Any], command: Command, before: tuple[Event, ...]
) -> tuple[tuple[Event, ...], str | None]:
    state = _folded(decider, before)
    frozen = plain(decider.shape.freeze(state))  # A copy: the state may be a dict itself.
    answers = [_answer(decider, command, state), _answer(decider, command, state)]
    if decider.shape.freeze(state) != frozen:
        raise AssertionError(
            "decide changed the state\n" + _difference(frozen, decider.shape.freeze(state))
        )
    if answers[0] != answers[1]:
        raise AssertionError("decide gave two answers to the same command: it is not pure")
    return answers[0]


def _answer(
    decider: Decider[Any], command: Command, state: Any
) -> tuple[tuple[Event, ...], str | None]:
    try:
        return tuple(map(_as_read, decider.decide(command, state))), None
    except Refused as refusal:
        return (), refusal.message


def _folded(decider: Decider[S], events: Iterable[Event]) -> S:
    """Fold, and at each step go through a snapshot too: both ways must end in the same state."""
    state, snapshot = decider.start(), decider.start()
    for event in events:
        state = decider.evolve(state, event)
        snapshot = decider.evolve(snapshot, event)
        try:
            text = orjson.dumps(decider.shape.freeze(snapshot))
            snapshot = decider.shape.thaw(orjson.loads(text))
        except PenstockError as error:
            raise AssertionError(
                f"the state after {event.type} cannot be kept as JSON: {error}"
            ) from error
    whole, kept = decider.shape.freeze(state), decider.shape.freeze(snapshot)
    if whole != kept:
        raise AssertionError("a snapshot changes the state\n" + _difference(whole, kept))
    return state


def _check_state(decider: Decider[Any], state: Any, expected: Any) -> None:
    found = decider.shape.freeze(state)
    if isinstance(expected, Mapping) and isinstance(found, dict) and state != expected:
        wanted = plain(expected)
        found = {key: value for key, value in found.items() if key in wanted}
    elif state == expected:
        return
    else:
        wanted = decider.shape.freeze(expected)
    if found != wanted:
        raise AssertionError("another state than expected\n" + _difference(wanted, found))


def _as_read(event: Event) -> Event:
    """An event as it is seen once it was recorded: with JSON values."""
    return Event(
        event.type,
        plain(event.data),
        tags=event.tags,
        metadata=plain(event.metadata),
        occurred_at=event.occurred_at,
    )


def _shown(event: Event, like: Event) -> dict[str, Any]:
    """What of an event is compared: more than type and data where the expected one has more."""
    shown: dict[str, Any] = {"type": event.type, "data": event.data}
    if like.tags:
        shown["tags"] = list(event.tags)
    if like.metadata:
        shown["metadata"] = event.metadata
    if like.occurred_at is not None:
        shown["occurred_at"] = None if event.occurred_at is None else str(event.occurred_at)
    return shown


def _difference(expected: Any, found: Any) -> str:
    def lines(value: Any) -> list[str]:
        option = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
        return orjson.dumps(value, option=option).decode().splitlines()

    return "\n".join(
        difflib.unified_diff(lines(expected), lines(found), "expected", "found", lineterm="", n=99)
    )
