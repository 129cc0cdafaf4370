"""Which projections a round runs, and when the next one is due: as their freshness asks.

    a run begins       its rows are seen                 the next run begins
    |------- takes ------|                                |------- takes ------|
    |------------ freshness, less `takes` and `SPARE` ----|

What comes right behind the begin of a run is in the next one, and is seen as late as its freshness
allows, not later. Whoever may be older makes room: rounds have no preemption, and while the rows of
forty projections of five seconds are computed, one of a second would be late.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta

from kernel.positions import Epoch
from projections.run.projection_states import ProjectionState

MOST_EARLY = 1 / 2
"""Of its freshness a projection is run so much earlier at most: each run costs, and who is late for
want of processors is not helped by more of them."""
ROOM = 1 / 8
"""Of the shortest freshness so much is for runs of projections with a longer one, in one round."""
SPARE = 1 / 16
"""Of its freshness a projection that may be older than others is run so much earlier besides: one
round that takes a second longer, and the next runs of all that waited for it, make it late else."""
_FORGETS = 0.25
_NONE = timedelta(0)


class DueProjections:
    """Says what is due. For the thread of the rounds, which begins and ends each of them here."""

    def __init__(
        self,
        states: Mapping[str, ProjectionState],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`states` are those of the projections, each with the moment at which it is due."""
        self._states = states
        self._now = now
        self._began = self._before = now()
        self._shortest = _NONE

    def begin(self, *, busy: bool) -> None:
        """Take note that a round begins; `busy`: what came during the one before waited for it."""
        now = self._now()
        self._before = self._began if busy else now
        self._began = now

    def is_due(self, name: str) -> bool:
        """Say whether a projection's pause is over."""
        return self._now() >= self._states[name].due_at

    def chosen(
        self, due: Collection[str], up_to: Epoch, freshness: Mapping[str, timedelta]
    ) -> set[str]:
        """Return those of the due projections that this round runs.

        `freshness` is of all that rounds run just now, due or not.

        All that have the shortest freshness. Of the others those that wait for longest, one at
        least, as far as they are computed within a part of it, or in as much time as those take.
        """
        behind = [name for name in due if self._states[name].epoch < up_to]
        first, shortest = self.first(behind, freshness), min(freshness.values(), default=_NONE)
        self._shortest = shortest
        others = sorted({*behind} - first, key=lambda name: (self._states[name].due_at, name))
        room_ms = max(shortest.total_seconds() * 1000 * ROOM, self._runs_ms(first))
        found, taken_ms = {*due} - {*others}, 0.0
        for name in others:
            if taken_ms and taken_ms + self._states[name].last_ms > room_ms:
                break
            found.add(name)
            taken_ms += max(self._states[name].last_ms, 1.0)
        return found

    def first(self, names: Collection[str], freshness: Mapping[str, timedelta]) -> set[str]:
        """Return those of some projections that have the shortest freshness of all."""
        shortest = min(freshness.values(), default=_NONE)
        return {name for name in names if freshness.get(name, timedelta.max) <= shortest}

    def _runs_ms(self, names: Collection[str]) -> float:
        return sum(self._states[name].last_ms for name in names)

    def begun(self, name: str, freshness: timedelta) -> None:
        """Take note that a projection's run begins, and say when it is due again."""
        state, asked = self._states[name], freshness.total_seconds()
        state.waits_since = max(state.due_at, self._before)
        # What comes from the begin of the round on is in the next one.
        spare = asked * SPARE if freshness > self._shortest > _NONE else 0.0
        state.due_at = self._began + asked - min(state.takes_s + spare, asked * MOST_EARLY)

    def seen(self) -> None:
        """Take note that what was computed can be seen: how long that took, of each projection.

        The longest times count, and are forgotten by and by: a run that was quick tells little.
        """
        now = self._now()
        for state in self._states.values():
            if state.waits_since is not None:
                took = now - state.waits_since
                lately = state.takes_s + (took - state.takes_s) * _FORGETS
                state.takes_s, state.waits_since = max(took, lately), None

    def pause_s(self, most: float) -> float:
        """Return how long nothing becomes due, `most` at most."""
        now = self._now()
        later = [state.due_at - now for state in self._states.values() if state.due_at > now]
        return min([most, *later])
