"""What clients ask for: plain appends, expected versions, several streams, conditions.

Streams and tags are shared by all writers, so that conflicts happen all the time.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from eventstore.conditions import Condition, Query, QueryItem
from eventstore.store import Expected
from kernel.positions import Position, Version
from tests.torture.options import Options
from tests.torture.verification.history import Accepted, Write

TYPE = "happened"
CATEGORY = "order"
SUBJECT = f"{CATEGORY}.{TYPE}"
SAMPLE = {"n": 1, "text": "x"}
_PAD = "x" * 60
_SMALL = 8
_SEATS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One append as it is sent, the same in each attempt. `hasty`: the client does not wait."""

    writes: tuple[Write, ...]
    condition: Condition | None
    path: str
    body: bytes
    hasty: bool

    @property
    def events(self) -> int:
        """Events in all writes."""
        return sum(write.count for write in self.writes)


@dataclass(slots=True)
class Workload:
    """The requests of one process, one after the other; it learns from its answers."""

    run: int
    process: int
    options: Options
    rng: random.Random
    _next: int = 0
    _new_streams: int = 0
    _position: int = 0
    _versions: dict[str, int] = field(default_factory=dict)

    def request(self) -> Request:
        """Return the next request."""
        rng = self.rng
        tags: tuple[str, ...] = ()
        condition = None
        writes: tuple[Write, ...]
        kind = rng.random()
        if kind < 0.60:
            writes = (self._write(self._shared(), "any", self.options.batch),)
        elif kind < 0.75:
            writes = (self._guarded(),)
        elif kind < 0.80:
            writes = (self._write(self._new_or_old(), "no_stream", self._few()),)
        elif kind < 0.85:
            writes = (self._write(self._new_or_old(), "stream_exists", self._few()),)
        elif kind < 0.92:
            several = rng.sample(range(self.options.streams), k=min(3, self.options.streams))
            writes = tuple(
                self._write(f"{CATEGORY}-{number}", "any", self._few()) for number in several
            )
        else:
            tags = tuple(f"seat:{seat}" for seat in rng.sample(range(_SEATS), k=rng.choice((1, 2))))
            condition = self._condition(tags)
            writes = (self._write(self._shared(), "any", self._few()),)
        return Request(
            writes=writes,
            condition=condition,
            path=(
                f"/v1/streams/{writes[0].stream}"
                if condition is None and len(writes) == 1
                else "/v1/append"
            ),
            body=self._body(writes, condition, tags),
            hasty=rng.random() < 0.01,
        )

    def transaction(self) -> tuple[Write, tuple[str, ...]]:
        """Return the next write, and its events' tags, for a writer with SQL of its own."""
        seat = (f"seat:{self.rng.randrange(_SEATS)}",) if self.rng.random() < 0.3 else ()
        return self._guarded(), seat

    def learn(self, outcome: Accepted) -> None:
        """Remember where streams and the store are, as far as the answer tells."""
        for answer in outcome.answers:
            self._versions[answer.stream] = answer.last_version
            self._position = max(self._position, answer.last_position)

    def forget(self, stream: str) -> None:
        """Believe nothing of a stream any more: it was not where it was thought to be."""
        self._versions.pop(stream, None)

    def _guarded(self) -> Write:
        stream = self._shared()
        known = self._versions.get(stream)
        expected: Expected = "any" if known is None else Version(known)
        return self._write(stream, expected, self._few())

    def _condition(self, tags: tuple[str, ...]) -> Condition:
        """Nothing may have happened to one of the seats, or else to both together."""
        if self.rng.random() < 0.5:
            items = tuple(QueryItem(tags=(tag,)) for tag in tags)
        else:
            items = (QueryItem(types=(TYPE,), tags=tags),)
        return Condition(query=Query(items=items), after=Position(self._position))

    def _shared(self) -> str:
        return f"{CATEGORY}-{self.rng.randrange(self.options.streams)}"

    def _new_or_old(self) -> str:
        if self.rng.random() < 0.5:
            return self._shared()
        self._new_streams += 1
        return f"{CATEGORY}-{self.process}.{self._new_streams}"

    def _few(self) -> int:
        return self.rng.randint(1, min(_SMALL, self.options.batch))

    def _write(self, stream: str, expected: Expected, count: int) -> Write:
        first, self._next = self._next, self._next + count
        return Write(stream=stream, expected=expected, first=first, count=count)

    def _body(
        self, writes: tuple[Write, ...], condition: Condition | None, tags: tuple[str, ...]
    ) -> bytes:
        entries = [self._entry(write, tags) for write in writes]
        if condition is None and len(writes) == 1:
            return f"{{{entries[0]}}}".encode()
        appends = ",".join(
            f'{{"stream":"{write.stream}",{entry}}}'
            for write, entry in zip(writes, entries, strict=True)
        )
        return f'{{"appends":[{appends}]{_condition_json(condition)}}}'.encode()

    def _entry(self, write: Write, tags: tuple[str, ...]) -> str:
        expected = write.expected if isinstance(write.expected, int) else f'"{write.expected}"'
        rest = f',"tags":[{_texts(tags)}]}}' if tags else "}"
        # The same as `history.event_id`, as text, for numbers below 2**32: there are millions.
        head = f'{{"id":"{self.run:08x}-{self.process:04x}-8000-8000-0000'
        tail = f'","type":"{TYPE}","data":{{"n":'
        end = f',"text":"{_PAD}"}}{rest}'
        events = ",".join(
            [
                f"{head}{number:08x}{tail}{number}{end}"
                for number in range(write.first, write.first + write.count)
            ]
        )
        return f'"expected_version":{expected},"events":[{events}]'


def _texts(texts: tuple[str, ...]) -> str:
    return ",".join(f'"{text}"' for text in texts)


def _condition_json(condition: Condition | None) -> str:
    if condition is None:
        return ""
    items = ",".join(
        f'{{"types":[{_texts(item.types)}],"tags":[{_texts(item.tags)}]}}'
        for item in condition.query.items
    )
    return f',"condition":{{"query":[{items}],"after":{condition.after}}}'
