"""The columns of registered event types, asked of the registry no more often than they change.

A registry that serves captured tables has two subjects for each of them, and one for each event
type. Only the latter are asked for: a new one at once, one that is known when its turn comes.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque

import pyarrow as pa

from kernel.errors import NotFound, SchemaViolation
from schemas.columns import event_shape
from schemas.registry import SchemaRegistry

LOOK_S = 10.0
"""So often the list of subjects is read."""
ROUND_LOOKS = 6
"""After so many looks every known subject was asked again."""
FEW = 20
"""So many known subjects are asked in each look: where there are no more, all of them."""


class EventFields:
    """Keeps the columns of event types, by `<category>.<type>`. For one thread."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._looked_at = float("-inf")
        self._ids: dict[str, int] = {}
        self._turns: deque[str] = deque()
        self._columns: dict[str, pa.Schema] = {}

    def columns(self) -> dict[str, pa.Schema]:
        """Return the columns of the newest version of each type. Raises `Unavailable`."""
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._look()
            self._looked_at = time.monotonic()
        return self._columns

    def _look(self) -> None:
        there = {name for name in self._registry.subjects() if name.count(".") == 1}
        for name in [name for name in self._turns if name not in there]:
            self._turns.remove(name)
            self._columns.pop(name, None)
            self._ids.pop(name, None)
        again = [self._turns.popleft() for _ in range(self._due())]
        for name in (*sorted(there - {*self._turns, *again}), *again):
            self._turns.append(name)
            self._ask(name)

    def _due(self) -> int:
        known = len(self._turns)
        return min(known, max(FEW, -(-known // ROUND_LOOKS)))

    def _ask(self, name: str) -> None:
        # No event has a schema of another language, or one that refers to what is gone.
        with contextlib.suppress(NotFound, SchemaViolation):
            latest = self._registry.latest(name)
            if latest is None or self._ids.get(name) == latest.id:
                return
            self._ids[name] = latest.id
            self._columns[name] = event_shape(latest.schema).schema
