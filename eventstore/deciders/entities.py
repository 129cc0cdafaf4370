"""The state of an entity: its events, folded, with a snapshot for a start where one fits.

stream -> [snapshot] -> events behind it -> newest shapes -> evolve -> Entity
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from eventstore.deciders.decided_events import Place, place_of
from eventstore.deciders.decider import Decider
from eventstore.deciders.explanation import ExplainedEvent, Explanation
from eventstore.deciders.snapshots import Snapshot, Snapshots, Stand
from eventstore.deciders.tasks import Explain, Fold, Freeze, MakeSnapshot, Unfolded
from eventstore.deciders.workers import Workers
from eventstore.store import EventStore, StreamPage
from eventstore.upcasting import Upcasting
from kernel.errors import (
    DeciderFailed,
    NotFound,
    PenstockError,
    StreamGone,
    Unavailable,
)
from kernel.positions import Position, Version
from schemas.records import RecordedEvent

_log = logging.getLogger("penstock.deciders")
_PAGE, _FIRST_PAGE = 500, 50
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDecider:
    """A decider, as a service knows it whose code runs in another process.

    `code` stands for the decider's code and all that it uses. Snapshots carry it. `place` is that
    of its `decide`.
    """

    category: str
    version: int
    commands: tuple[str, ...]
    snapshot_every: int
    code: str
    place: Place | None

    @classmethod
    def of(cls, decider: Decider[Any], code: str) -> LoadedDecider:
        """Describe a decider, in plain values: its own names may be of users' classes."""
        return cls(
            category=str.__str__(decider.category),
            version=decider.version,
            commands=tuple(sorted(str.__str__(name) for name in decider.commands)),
            snapshot_every=decider.snapshot_every,
            code=code,
            place=place_of(decider),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """The state after the event `version`; places and time are None where there was no event.

    The last events of `state` are folded by whoever asks something of it. `head` is the stream's
    version when it was read, None for a stream that is not there. It may be greater than
    `version` where the last events of a stream may not be read any more.
    """

    stream: str
    state: Unfolded
    head: Version | None
    version: Version | None
    position: Position | None
    recorded_at: datetime | None


@dataclass(slots=True, kw_only=True)
class _Fold:
    """How far the events of a stream were read."""

    stream: str
    state: Unfolded
    head: Version | None = None
    first_version: Version | None = None
    version: Version | None = None
    position: Position | None = None
    recorded_at: datetime | None = None
    folded: int = 0
    shapes: dict[str, int] = field(default_factory=dict)


class Entities:
    """Folds streams by the deciders of their categories."""

    def __init__(
        self,
        deciders: Mapping[str, LoadedDecider],
        store: EventStore,
        upcasting: Upcasting,
        snapshots: Snapshots,
        workers: Workers,
    ) -> None:
        self.deciders = deciders
        self._store = store
        self.upcasting = upcasting
        self._snapshots = snapshots
        self._workers = workers
        self._unkept: set[str] = set()

    def decider(self, category: str) -> LoadedDecider:
        """Return the decider of a category. Raises `NotFound` where the workspace has none."""
        if category not in self.deciders:
            there = ", ".join(sorted(self.deciders)) or "none"
            raise NotFound(
                f"no decider for category {category}; there are: {there}",
                remedy=f'Add one with category="{category}" to deciders/.',
            )
        return self.deciders[category]

    async def load(
        self,
        category: str,
        stream: str,
        *,
        version: int | None = None,
        at: datetime | None = None,
    ) -> Entity:
        """Return the present state, or that after event `version`, or as of `at` (recorded time).

        A stream without events, or without any so early, has the initial state. Raises `NotFound`
        for a version that the stream has not reached, `DeciderFailed` for the decider's errors,
        and what reading events raises.
        """
        loaded = self.decider(category)
        for _ in range(_TRIES):
            generation = self.upcasting.generation
            fold = await self._fold(loaded, stream, version, at)
            if fold is not None and self.upcasting.generation == generation:
                break
        else:
            raise _unsteady(stream)
        if version is not None and fold.version != version:
            raise _no_event(stream, version)
        await self._keep(loaded, fold)
        return Entity(
            stream=stream,
            state=fold.state,
            head=fold.head,
            version=fold.version,
            position=fold.position,
            recorded_at=fold.recorded_at,
        )

    async def explain(
        self,
        category: str,
        stream: str,
        *,
        version: int | None = None,
        at: datetime | None = None,
        limit: int,
    ) -> Explanation | None:
        """Return up to `limit` of the last events that led to a state, with what each changed.

        Fewer where they are large. The state is the one that `load` returns for the same
        arguments; None where it is the initial one of a stream without events, or without any so
        early. Every event is folded in the newest shape of its type. Raises what `load` raises.
        """
        loaded = self.decider(category)
        for _ in range(_TRIES):
            generation = self.upcasting.generation
            upto = version
            if at is not None:
                upto = (await self.load(category, stream, at=at)).version
                if upto is None:
                    return None
            events = await self._last_events(stream, upto, limit)
            if upto is not None and (not events or events[-1].version != upto):
                if version is not None:
                    raise _no_event(stream, version)
                continue  # It was hidden since it was folded.
            if not events:
                return None
            found = await self._explained(loaded, stream, events)
            if self.upcasting.generation == generation:
                return found
        raise _unsteady(stream)

    async def _last_events(
        self, stream: str, upto: int | None, limit: int
    ) -> tuple[RecordedEvent, ...]:
        """Return the last events up to a version, or of all, oldest first; none is an answer."""
        try:
            page = await self._store.read_stream(
                stream, from_version=upto, direction="backward", limit=limit
            )
        except StreamGone:
            raise
        except NotFound:
            return ()
        return (*reversed(page.events),)

    async def _explained(
        self, loaded: LoadedDecider, stream: str, events: tuple[RecordedEvent, ...]
    ) -> Explanation:
        state, earlier = Unfolded(category=loaded.category), None
        first = events[0].version
        if first:
            with suppress(NotFound):
                before = await self.load(loaded.category, stream, version=first - 1)
                state, earlier = before.state, before.version
        await self.upcasting.learn(events)
        types = self.upcasting.types_of(events)
        start, steps, end = await self._workers.run(
            Explain(entity=state, events=events, types=types)
        )
        return Explanation(
            stream=stream,
            before=start,
            after=end,
            events=tuple(
                ExplainedEvent(event=event, changes=changes)
                for event, changes in zip(events, steps, strict=True)
            ),
            earlier=earlier,
        )

    async def frozen(self, entity: Entity) -> Any:
        """Return a state as JSON values. Raises `DeciderFailed` when it has not its own shape."""
        return await self._workers.run(Freeze(entity=entity.state))

    async def _fold(
        self, loaded: LoadedDecider, stream: str, version: int | None, at: datetime | None
    ) -> _Fold | None:
        """Fold once; None when the stream lost its beginning meanwhile."""
        fold = await self._start(loaded, stream, version, at)
        following = 0 if fold.version is None else fold.version + 1
        # Most times lie close behind a snapshot: what is behind them is read for nothing.
        page_size = _PAGE if at is None or fold.version is None else _FIRST_PAGE
        while version is None or following <= version:
            limit = page_size if version is None else min(_PAGE, version - following + 1)
            page_size = min(_PAGE, 2 * page_size)
            try:
                page = await self._store.read_stream(
                    stream, from_version=following, direction="forward", limit=limit
                )
            except StreamGone:
                raise
            except NotFound:
                # Whatever was folded so far is gone.
                return _Fold(stream=stream, state=Unfolded(category=loaded.category))
            if fold.version is not None and _gap(page, following):
                return None
            fold.head = page.version
            # Where a policy hides the beginning, a page from there on ends behind the version.
            events = [
                event
                for event in page.events
                if (at is None or event.recorded_at <= at)
                and (version is None or event.version <= version)
            ]
            await self._take(fold, events)
            if not page.events or len(events) < len(page.events):
                break
            if page.events[-1].version >= page.version:
                break
            following = page.events[-1].version + 1
        return fold

    async def _start(
        self, loaded: LoadedDecider, stream: str, version: int | None, at: datetime | None
    ) -> _Fold:
        """Begin with the snapshot if it stands for a beginning of what was asked for."""
        snapshot = None
        if loaded.snapshot_every:
            snapshot = await self._snapshots.newest(stream, loaded.code, version=version, at=at)
        if snapshot is None or not await self._still_true(snapshot):
            return _Fold(stream=stream, state=Unfolded(category=loaded.category))
        return _Fold(
            stream=stream,
            state=Unfolded(category=loaded.category, snapshot=snapshot.state),
            head=snapshot.version,
            first_version=snapshot.first_version,
            version=snapshot.version,
            position=snapshot.position,
            recorded_at=snapshot.recorded_at,
            shapes=dict(snapshot.shapes),
        )

    async def _still_true(self, snapshot: Snapshot) -> bool:
        """Whether folding from the start would fold the same events, in the same shapes."""
        if not await self._begins_right(snapshot):
            return False
        for subject, version in snapshot.shapes.items():
            if self.upcasting.target(subject) is None:
                await self.upcasting.learn_of(subject)
            if self.upcasting.target(subject) != version:
                return False
        return True

    async def _begins_right(self, snapshot: Snapshot) -> bool:
        """Whether the first event that may be read is the first one of the snapshot."""
        if snapshot.whole_stream:
            return snapshot.first_version == 0
        try:
            page = await self._store.read_stream(
                snapshot.stream, from_version=None, direction="forward", limit=1
            )
        except NotFound:
            return False
        return [event.version for event in page.events] == [snapshot.first_version]

    async def _take(self, fold: _Fold, events: Sequence[RecordedEvent]) -> None:
        """Take events behind those of before, which are folded now: one page travels at a time."""
        if not events:
            return
        await self.upcasting.learn(events)
        if fold.state.events:
            state = await self._workers.run(Fold(entity=fold.state))
            fold.state = Unfolded(category=fold.state.category, state=state)
        types = self.upcasting.types_of(events)
        fold.state = replace(fold.state, events=tuple(events), types=types)
        fold.shapes |= dict(self.upcasting.newest(event) for event in events)
        last = events[-1]
        if fold.first_version is None:
            fold.first_version = events[0].version
        fold.version, fold.position = last.version, last.position
        fold.recorded_at = last.recorded_at
        fold.folded += len(events)

    async def _keep(self, loaded: LoadedDecider, fold: _Fold) -> None:
        """Keep a snapshot when the fold was long. That it cannot be kept stops nobody."""
        every = loaded.snapshot_every
        if not every or fold.folded < every:
            return
        # The newest is nearly always kept, an earlier one only where its stretch has none.
        if fold.version != fold.head and not await self._would_keep(loaded, fold):
            return
        text, why = await self._workers.run(MakeSnapshot(entity=fold.state))
        try:
            if text is None:
                raise DeciderFailed(why)
            fold.state = Unfolded(category=loaded.category, snapshot=text)
            assert fold.first_version is not None
            assert fold.version is not None
            assert fold.position is not None
            assert fold.recorded_at is not None
            await self._snapshots.keep(
                Snapshot(
                    stream=fold.stream,
                    decider=loaded.code,
                    first_version=fold.first_version,
                    version=fold.version,
                    position=fold.position,
                    recorded_at=fold.recorded_at,
                    shapes=fold.shapes,
                    state=text,
                )
            )
        except PenstockError as error:
            # Said once: without snapshots every load of a long stream comes here.
            level = logging.DEBUG if loaded.code in self._unkept else logging.WARNING
            self._unkept.add(loaded.code)
            _log.log(level, "no snapshot of %s at %s: %s", fold.stream, fold.version, error)

    async def _would_keep(self, loaded: LoadedDecider, fold: _Fold) -> bool:
        assert fold.first_version is not None
        assert fold.version is not None
        stand = Stand(fold.first_version, fold.version, fold.shapes)
        try:
            return await self._snapshots.would_keep(fold.stream, loaded.code, stand)
        except PenstockError:
            return True  # Keeping it says why that cannot be.


def _gap(page: StreamPage, following: int) -> bool:
    """Whether events from `following` on were there and may not be read any more."""
    return page.version >= following and (not page.events or page.events[0].version != following)


def _no_event(stream: str, version: int) -> NotFound:
    return NotFound(
        f"stream {stream} has no event {version} to read",
        remedy=f"See what it has: penstock stream show {stream}",
        stream=stream,
    )


def _unsteady(stream: str) -> Unavailable:
    return Unavailable(f"{stream} or its schemas change too quickly to fold it")
