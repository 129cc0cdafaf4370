"""What a decider is: pure functions from commands to events, and from events to state."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, get_type_hints

import orjson

from eventstore.deciders.scalars import ScalarShape
from eventstore.deciders.shape import shape_of
from eventstore.names import CATEGORY
from kernel.errors import Misconfigured, SchemaViolation
from schemas.json_codec import json_default

S = TypeVar("S")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SNAPSHOT_EVERY = 100
_COMMAND = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Event:
    """A fact, as deciders make and see it. `data` are JSON values, as HTTP shows them.

    `decide` may leave everything behind `data` out; `occurred_at` is then the time of recording.
    """

    type: str
    data: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    occurred_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """What somebody wants. `data` is of the command's dataclass, or a JSON object without one.

    `at` is when the service took it (UTC): the only clock that a decider may look at.
    """

    name: str
    data: Any = field(default_factory=dict)
    _: KW_ONLY
    entity: str = ""
    at: datetime = EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Decider(Generic[S]):
    """The rules of one category, as three pure parts.

    `decide(command, state)` returns the events that the command leads to (none is an answer too),
    or raises `Refused`. `evolve(state, event)` returns the state after an event; it must accept
    every event that a stream of the category may hold. `initial_state` is the state of an entity
    without events; each fold begins with a copy of it.

    `commands` names the commands that are taken, each with the dataclass of its data, or None for
    any JSON object. `version` is raised with every change that makes `evolve` give another state.
    A snapshot is kept about every `snapshot_every` events, none with 0. The state must have a
    shape that JSON can keep: see `eventstore.deciders.shape`.
    """

    category: str
    version: int
    commands: Mapping[str, type | None]
    initial_state: S
    decide: Callable[[Command, S], Iterable[Event]]
    evolve: Callable[[S, Event], S]
    snapshot_every: int = SNAPSHOT_EVERY
    shape: ScalarShape = field(init=False, repr=False, compare=False)
    _data: Mapping[str, ScalarShape] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(CATEGORY, self.category):
            raise Misconfigured(f"decider: {self.category!r} is no category ({CATEGORY})")
        if type(self.version) is not int or self.version < 1:
            raise Misconfigured(f"decider {self.category}: version must be a whole number from 1")
        if type(self.snapshot_every) is not int or self.snapshot_every < 0:
            raise Misconfigured(f"decider {self.category}: snapshot_every must be 0 or more")
        wrong = [name for name in self.commands if not _COMMAND.fullmatch(name)]
        if wrong or not self.commands:
            raise Misconfigured(
                f"decider {self.category}: "
                + (f"{wrong[0]!r} is no command name" if wrong else "it takes no commands"),
                remedy=f"Name at least one command; names match {_COMMAND.pattern}.",
            )
        shapes = {name: shape_of(data) for name, data in self.commands.items() if data is not None}
        object.__setattr__(self, "_data", shapes)
        object.__setattr__(self, "shape", shape_of(self._state_type()))
        try:
            self.shape.freeze(self.initial_state)
        except SchemaViolation as error:
            raise Misconfigured(
                f"decider {self.category}: initial_state {error.message}",
                remedy="Annotate what evolve returns with the type of the state.",
            ) from None

    def data_of(self, name: str, data: Mapping[str, Any]) -> Any:
        """Return a command's data as its dataclass, or unchanged when it has none.

        Raises `SchemaViolation` with `path` and `complaint` when it does not fit.
        """
        return self._data[name].thaw(data) if name in self._data else data

    def start(self) -> S:
        """Return a fresh initial state."""
        return copy.deepcopy(self.initial_state)

    def fold(self, state: S, events: Iterable[Event]) -> S:
        """Return the state after `events`, beginning with `state`."""
        for event in events:
            state = self.evolve(state, event)
        return state

    def _state_type(self) -> Any:
        """What `evolve` says it returns, else the class of the initial state."""
        function = getattr(self.evolve, "__func__", self.evolve)
        try:
            declared = get_type_hints(function).get("return")
        except (NameError, TypeError, AttributeError) as error:
            raise Misconfigured(
                f"decider {self.category}: the annotations of evolve cannot be read: {error}",
                remedy="Import every name that evolve's annotations use.",
            ) from error
        return type(self.initial_state) if declared is None else declared


def plain(value: Any) -> Any:
    """Return data as JSON values: times, UUIDs and decimals become texts, tuples lists.

    Raises `SchemaViolation` for what has no JSON.
    """
    try:
        return orjson.loads(orjson.dumps(value, default=json_default, option=orjson.OPT_UTC_Z))
    except (TypeError, orjson.JSONEncodeError) as error:
        raise SchemaViolation(f"no JSON: {error}", path="$", complaint=str(error)) from None
