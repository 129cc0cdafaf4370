"""`lake/replays`: what was built, compared, swapped. Append only; a generation's newest row counts.

A generation goes BUILDING -> BUILT -> VERIFIED or DIFFERS -> SWAPPING -> SWAPPED, and from there by
ROLLING_BACK to ROLLED_BACK.
PAUSED and STOPPED (by an error) lead back to BUILDING; CANCELLED ends it before the swap. While it
is built, rows with progress come every few seconds. BUILDING names the process that builds,
SWAPPING the swap and ROLLING_BACK the rollback, by a claim: nobody else goes on with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import zip_longest
from typing import Any, TypeGuard

from arro3.core import DataType, Schema
from arro3.core import Field as Column

from kernel.errors import Cancelled, Conflict, NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.ledger import Handles, Ledger
from lake.rows import SmallTables

SCHEMA = Schema(
    [
        Column("entry", DataType.int64()),
        Column("name", DataType.utf8()),
        Column("generation", DataType.int32()),
        Column("base", DataType.int32()),
        Column("state", DataType.utf8()),
        Column("epoch", DataType.int64()),
        Column("include_late", DataType.bool()),
        Column("text", DataType.utf8()),
        Column("base_text", DataType.utf8()),
        Column("detail", DataType.utf8()),
        Column("at", DataType.timestamp("us", tz="UTC")),
    ]
)
_APP_ID = "replays"


class State(StrEnum):
    """How far a generation has come."""

    BUILDING = "building"
    PAUSED = "paused"
    STOPPED = "stopped"
    BUILT = "built"
    VERIFIED = "verified"
    DIFFERS = "differs"
    SWAPPING = "swapping"
    SWAPPED = "swapped"
    ROLLING_BACK = "rolling back"
    ROLLED_BACK = "rolled back"
    CANCELLED = "cancelled"
    FAILED = "failed"


OVER = (State.CANCELLED, State.FAILED)
"""Nothing comes after these: whoever still builds such a generation learns of it. Builds that
failed before there were slices are FAILED: their files are gone."""
CLAIM = "claim"
"""Names, in the detail of a generation that is built or swapped, the process that does it."""
REASON = "reason"
"""Says, in the detail of a generation, why it is swapped though no comparison speaks for it."""
TOGETHER = "together"
"""Names, in the detail of a generation, those that are swapped or taken back with it, itself too:
generations by projection."""
UNFINISHED = (State.BUILDING, State.PAUSED, State.STOPPED)
"""A generation some of whose slices are there."""
READY = (State.BUILT, State.VERIFIED, State.DIFFERS)
"""A whole generation that is not the table yet."""
CLAIMED = (State.SWAPPING, State.ROLLING_BACK)
"""A generation whose place is about to be taken, or its own."""


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

    @property
    def together(self) -> dict[str, int]:
        """The generations, by projection, that it was swapped or taken back with; its own too."""
        told = self.detail.get(TOGETHER)
        return {str(name): int(number) for name, number in told.items()} if _is_map(told) else {}

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a finished build took: input rows, and seconds of its slices."""

    name: str
    rows: int
    seconds: float


class ReplayBook:
    """Reads and appends the book of one lake. It loads no pyarrow."""

    def __init__(self, lake: Lake, tables: Handles) -> None:
        self._path = lake.path("replays")
        self._ledger = Ledger(self._path, tables, SCHEMA, _APP_ID)

    def built(self) -> list[Built]:
        """Return what every finished build took, the oldest first."""
        found = []
        for row in self._rows():
            detail = json.loads(row["detail"]) if row["state"] == State.BUILT else {}
            if "seconds" in detail:
                took = Built(name=row["name"], rows=detail["rows"], seconds=detail["seconds"])
                found.append(took)
        return found

    def compared(self, name: str, generation: int) -> list[Replay]:
        """Return the last comparison of a generation at each epoch, ascending."""
        told: dict[Epoch, Replay] = {}
        for row in self._rows():
            if (row["name"], row["generation"]) != (name, generation):
                continue
            replay = _replay(row)
            # A generation that is brought forward keeps what was told of it, of another epoch.
            if replay.detail.get("epoch") == replay.epoch and "differing" in replay.detail:
                told[replay.epoch] = replay
        return [told[epoch] for epoch in sorted(told)]

    def reason(self, name: str, generation: int) -> str | None:
        """Return why a generation was to be swapped though no comparison spoke for it."""
        told: str | None = None
        for row in self._rows():
            if (row["name"], row["generation"]) == (name, generation):
                spoken_for = row["state"] == State.VERIFIED
                told = json.loads(row["detail"]).get(REASON, None if spoken_for else told)
        return told

    def swaps(self, name: str) -> list[Replay]:
        """Return the rows by which each swap and rollback of a projection was done, ascending."""
        done: dict[tuple[object, ...], Replay] = {}
        for row in self._rows():
            if row["name"] == name and row["state"] in (State.SWAPPED, State.ROLLED_BACK):
                replay = _replay(row)
                done.setdefault(_done(replay), replay)
        return [*done.values()]

    def _rows(self) -> list[dict[str, Any]]:
        # Opened anew: the thread that shows progress reads here, too.
        return SmallTables().select(self._path, "SELECT * FROM rows ORDER BY entry")

    def all(self) -> list[Replay]:
        """Return the newest row of every generation, oldest generation first."""
        newest: dict[tuple[str, int], Replay] = {}
        swapped: dict[tuple[object, ...], datetime | None] = {}
        for row in self._rows():
            replay = _replay(row)
            if replay.state is State.SWAPPED:
                # A rollback that was refused leaves the row again: the swap was at the first one.
                replay = replace(replay, at=swapped.setdefault(_done(replay), replay.at))
            newest[row["name"], row["generation"]] = replay
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
            known = [each for each in self.of(name) if generation in (None, each.generation)]
            is_ = f"; generation {known[-1].generation} is {known[-1].state}" if known else ""
            raise NotFound(
                f"{name} has {which} that is {wanted}{is_}",
                remedy=f"penstock replay status {name}; to build one: penstock replay apply {name}",
            )
        return found[-1]

    def set_of(
        self, names: Sequence[str], *states: State, generation: int | None = None
    ) -> list[Replay]:
        """Return the newest generation of each projection in one of the states, and who goes along.

        Of what was begun with others and interrupted, these are returned too, whichever is named.
        Raises `NotFound`, and `Conflict` where some were begun with others than those named, or to
        be taken back, which is none of the states.
        """
        found: dict[str, Replay] = {}
        for name in names:
            own = [r for r in self.of(name) if r.state in CLAIMED and r.together]
            found[name] = own[0] if own else self.newest(name, *states, generation=generation)
        for begun in [r for r in found.values() if r.state in CLAIMED and r.together]:
            back = begun.state is State.ROLLING_BACK and begun.state not in states
            if back or not found.keys() <= begun.together.keys():
                raise _amid_others(begun)
            for name, number in begun.together.items():
                if (other := self.known(name, number)) is not None:
                    found[name] = other
        return [*found.values()]

    def known(self, name: str, generation: int) -> Replay | None:
        """Return the newest row of a generation; None for one that the book does not have."""
        return next((each for each in self.of(name) if each.generation == generation), None)

    def pause(self, name: str, *, generation: int | None = None) -> Replay:
        """Let a build rest after the slice under way, until `Builder.resume`; return its last row.

        Raises `NotFound` when none is built.
        """
        replay = self.newest(name, State.BUILDING, generation=generation)
        return self.record(replay.now(State.PAUSED, detail=replay.detail), after=(State.BUILDING,))

    def refuse_moved(
        self, replay: Replay, *, after: Sequence[State], claim: str | None = None
    ) -> None:
        """Raise what `record` raises for a generation that is in none of the states `after`."""
        known = self.known(replay.name, replay.generation)
        if known is not None:
            _refuse_moved(known, after, claim)

    def begin(self, replay: Replay) -> Replay:
        """Append the first row of a generation that is to be built.

        Raises `Conflict` where another process took its number, or builds another one meanwhile.
        """

        def rows(entry: int) -> list[dict[str, object]]:
            for other in self.of(replay.name):
                if other.generation == replay.generation:
                    _refuse_moved(other, (), None)
                elif other.state in UNFINISHED:
                    which = f"generation {other.generation} of {replay.name}"
                    raise Conflict(
                        f"{which} is {other.state} meanwhile",
                        remedy=f"penstock replay status {replay.name}",
                    )
            return [_row(replay, entry)]

        self._ledger.put(rows)
        return replay

    def record(
        self,
        replay: Replay,
        *,
        after: Sequence[State] | None = None,
        claim: str | None = None,
        epoch: Epoch | None = None,
    ) -> Replay:
        """Append a row, unless the generation has come to an end or left the states `after`.

        `claim` and `epoch` are those that its newest row must have. Raises `Cancelled` for a
        generation that was cancelled, `Conflict` for any other that moved on.
        """

        def rows(entry: int) -> list[dict[str, object]]:
            known = self.known(replay.name, replay.generation)
            if known is not None:
                _refuse_moved(known, after, claim)
                _refuse_brought(known, epoch)
            return [_row(replay, entry)]

        self._ledger.put(rows)
        return replay

    def record_all(
        self, moves: Sequence[tuple[Replay, Sequence[State]]], *, claims: Sequence[str] = ()
    ) -> None:
        """Append rows in one commit, of generations each of which is in one of some states.

        `claims`: of their newest rows. Raises what `record` raises, and `Conflict` where another
        generation of one is being swapped or taken back with others. Nothing is appended then.
        """

        def rows(entry: int) -> list[dict[str, object]]:
            known = self.all()
            for (replay, after), claim in zip_longest(moves, claims):
                for other in known:
                    same = other.name == replay.name
                    if same and other.generation == replay.generation:
                        _refuse_moved(other, after, claim)
                    elif same and other.state in CLAIMED and other.together:
                        raise _amid_others(other)
            return [_row(replay, entry) for replay, _ in moves]

        self._ledger.put(rows)


def command_of(replay: Replay) -> str:
    """Return the command that finishes what was begun with a claimed generation, none newer."""
    back, together = replay.state is State.ROLLING_BACK, " ".join(sorted(replay.together))
    alone = replay.name if back else f"{replay.name} --generation {replay.generation}"
    return f"penstock replay {'rollback' if back else 'swap'} {together or alone}"


def _amid_others(replay: Replay) -> Conflict:
    others = ", ".join(sorted({*replay.together} - {replay.name}))
    return Conflict(
        f"generation {replay.generation} of {replay.name} is {replay.state} together with {others}",
        remedy=f"Give the same command again; where that was interrupted, before it: "
        f"{command_of(replay)}",
    )


def _is_map(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def _done(replay: Replay) -> tuple[object, ...]:
    """Return what tells a swap or a rollback from others."""
    return replay.name, replay.generation, replay.state, replay.detail.get("version")


def _refuse_moved(known: Replay, after: Sequence[State] | None, claim: str | None) -> None:
    moved = known.state in OVER if after is None else known.state not in after
    moved = moved or (claim is not None and known.detail.get(CLAIM) != claim)
    which = f"generation {known.generation} of {known.name}"
    if moved and known.state is State.CANCELLED:
        raise Cancelled(f"{which} was cancelled")
    if moved:
        raise Conflict(
            f"{which} is {known.state} meanwhile", remedy=f"penstock replay status {known.name}"
        )


def _refuse_brought(known: Replay, epoch: Epoch | None) -> None:
    if epoch is not None and known.epoch != epoch:
        raise Conflict(
            f"generation {known.generation} of {known.name} was brought to epoch {known.epoch} "
            "meanwhile",
            remedy=f"penstock replay status {known.name}",
        )


def _replay(row: Mapping[str, Any]) -> Replay:
    return Replay(
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
