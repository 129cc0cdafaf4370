"""`lake/replays`: what was built, compared, swapped. Append only; a generation's newest row counts.

A generation goes BUILDING -> BUILT -> VERIFIED or DIFFERS -> SWAPPED -> ROLLED_BACK. CANCELLED and
FAILED end it before the swap. While it is built, rows with progress come every few seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum

import pyarrow as pa

from kernel.errors import LeaseLost, NotFound
from kernel.positions import Epoch
from projections.log.frames import UTC_MICROS
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.log.writer import ArrowWriter, Guard

SCHEMA = pa.schema(
    [
        ("entry", pa.int64()),
        ("name", pa.string()),
        ("generation", pa.int32()),
        ("base", pa.int32()),
        ("state", pa.string()),
        ("epoch", pa.int64()),
        ("include_late", pa.bool_()),
        ("text", pa.string()),
        ("base_text", pa.string()),
        ("detail", pa.string()),
        ("at", UTC_MICROS),
    ]
)
_APP_ID = "replays"
_ATTEMPTS = 20


class State(StrEnum):
    """How far a generation has come."""

    BUILDING = "building"
    BUILT = "built"
    VERIFIED = "verified"
    DIFFERS = "differs"
    SWAPPED = "swapped"
    ROLLED_BACK = "rolled back"
    CANCELLED = "cancelled"
    FAILED = "failed"


READY = (State.BUILT, State.VERIFIED, State.DIFFERS)
"""A whole generation that is not the table yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """One generation's row. `base` is the generation that was live when the build began.

    `epoch`: up to which it has taken input (0 while the first build runs). `text` and `base_text`
    are the two generations' SQL. `detail`: progress, comparison or versions, by state.
    """

    name: str
    generation: int
    base: int
    state: State
    epoch: Epoch
    include_late: bool
    text: str
    base_text: str
    detail: Mapping[str, object] = field(default_factory=dict)
    at: datetime | None = None

    def now(
        self,
        state: State,
        *,
        epoch: Epoch | None = None,
        detail: Mapping[str, object] | None = None,
    ) -> Replay:
        """Return the row of its next state."""
        moved = self.epoch if epoch is None else epoch
        return replace(self, state=state, epoch=moved, detail=detail or {}, at=None)


class ReplayBook:
    """Reads and appends the book of one lake."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._path = lake.path("replays")
        self._tables = tables
        self._writer = ArrowWriter(tables)

    def all(self) -> list[Replay]:
        """Return the newest row of every generation, oldest generation first."""
        rows = self._tables.read(self._path)
        newest: dict[tuple[str, int], Replay] = {}
        for row in sorted(rows.to_pylist(), key=lambda r: int(r["entry"])) if rows else []:
            newest[row["name"], row["generation"]] = Replay(
                name=row["name"],
                generation=row["generation"],
                base=row["base"],
                state=State(row["state"]),
                epoch=Epoch(row["epoch"]),
                include_late=row["include_late"],
                text=row["text"],
                base_text=row["base_text"],
                detail=json.loads(row["detail"]),
                at=row["at"],
            )
        return [newest[place] for place in sorted(newest)]

    def of(self, name: str) -> list[Replay]:
        """Return the generations of one projection, oldest first."""
        return [replay for replay in self.all() if replay.name == name]

    def newest(self, name: str, *states: State, generation: int | None = None) -> Replay:
        """Return the newest generation that is in one of the states, or the one that is named.

        Raises `NotFound`.
        """
        found = [
            replay
            for replay in self.of(name)
            if replay.state in states and generation in (None, replay.generation)
        ]
        if not found:
            wanted = " or ".join(states)
            which = "no generation" if generation is None else f"no generation {generation}"
            raise NotFound(
                f"{name} has {which} that is {wanted}",
                remedy=f"penstock replay status {name}; to build one: penstock replay apply {name}",
            )
        return found[-1]

    def record(self, replay: Replay) -> Replay:
        """Append a row. Writers of other generations may come in between."""
        for attempt in range(_ATTEMPTS):
            table = self._tables.ensure(self._path, SCHEMA)
            entry = (table.transaction_version(_APP_ID) or 0) + 1
            try:
                rows = pa.Table.from_pylist([_row(replay, entry)], SCHEMA)
                self._writer.append(self._path, rows, Guard(_APP_ID, Epoch(entry)))
                return replay
            except LeaseLost:
                if attempt == _ATTEMPTS - 1:
                    raise
                self._tables.forget(self._path)
        raise AssertionError("unreachable: the loop returns or raises")


def _row(replay: Replay, entry: int) -> dict[str, object]:
    return {
        "entry": entry,
        "name": replay.name,
        "generation": replay.generation,
        "base": replay.base,
        "state": replay.state.value,
        "epoch": replay.epoch,
        "include_late": replay.include_late,
        "text": replay.text,
        "base_text": replay.base_text,
        "detail": json.dumps(dict(replay.detail), default=str),
        "at": datetime.now(UTC),
    }
