"""Requests that wait for the writer: bounded, and fair between streams.

A group is all that waits, as long as that fits into it. When it does not, streams take turns
(start-time fair queueing): whoever floods one stream delays that stream, and others wait for a
group or two. Of one stream, requests keep the order in which they came.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Generic, Protocol, TypeVar

_SHARE = 4
"""A stream may fill the queue as long as a quarter of what it holds is free for others."""


class QueuedWork(Protocol):
    """What is queued: how much it is, and the streams that it goes to. The queue sets `turn`."""

    events: int
    size: int
    streams: tuple[str, ...]
    turn: int


W = TypeVar("W", bound=QueuedWork)


class FairQueue(Generic[W]):
    """All at once while there is room, in turns when there is not."""

    def __init__(self, *, max_events: int, max_bytes: int) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._waiting: deque[W] = deque()
        # Of what waits or is being committed, until it is settled.
        self.events = 0
        self._bytes = 0
        self._by_stream: defaultdict[str, int] = defaultdict(int)
        self._turn = 0
        self._due: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[W]:
        return iter(self._waiting)

    def offer(self, new: W) -> bool:
        """Take a request in, or return False: the queue, or the stream's share of it, is full.

        An empty queue takes anything, so that what is larger than the queue goes alone.
        """
        room = self._max_events - self.events
        if self._waiting:
            if new.events > room or self._bytes + new.size > self._max_bytes:
                return False
            if any(self._over_share(stream, new.events, room) for stream in new.streams):
                return False
        self._waiting.append(new)
        self.events += new.events
        self._bytes += new.size
        new.turn = self._next_turn(new)
        for stream in new.streams:
            self._by_stream[stream] += new.events
            self._due[stream] = new.turn + new.events
        return True

    def settle(self, done: W) -> None:
        """Forget a request that has been answered."""
        self.events -= done.events
        self._bytes -= done.size
        for stream in done.streams:
            left = self._by_stream[stream] - done.events
            if left:
                self._by_stream[stream] = left
            else:
                del self._by_stream[stream], self._due[stream]

    def put_back(self, group: Iterable[W]) -> None:
        """Queue a group again, before all others."""
        self._waiting.extendleft(reversed(list(group)))

    def take_all(self) -> list[W]:
        """Take everything out."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken

    def take(self, at_most: int) -> list[W]:
        """Take a group of up to `at_most` events, one request at least."""
        if self.events <= at_most:
            group = self.take_all()
        else:
            in_turn = deque(sorted(self._waiting, key=_turn))
            group = [in_turn.popleft()]
            events = group[0].events
            while in_turn and events + in_turn[0].events <= at_most:
                group.append(in_turn.popleft())
                events += group[-1].events
            self._waiting = in_turn
        self._turn = max(self._turn, max(map(_turn, group), default=0))
        return group

    def _next_turn(self, new: W) -> int:
        """Return when a request is due: behind its streams' others, and what was served already.

        Counted in events, as if each stream got one event committed in each round. Turns of one
        stream rise, so taking the lowest keeps its order; they rise for those who come new, too,
        so nobody waits for ever.
        """
        turn = self._turn + 1
        for stream in new.streams:
            turn = max(turn, self._due.get(stream, 0))
        return turn

    def _over_share(self, stream: str, events: int, room: int) -> bool:
        held = self._by_stream.get(stream, 0)
        return held > 0 and held + events > _SHARE * (room - events)


def _turn(queued: QueuedWork) -> int:
    return queued.turn
