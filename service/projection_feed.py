"""What changes in a projection, as server-sent events that can be resumed.

    version that is served -> all rows, or differences from the version before -> Chunk -> socket

A reader's place (`FeedPlace`) is text, as it stands in `id:`. From a place that leads nowhere the
feed says `reset`, and begins with all rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from kernel.errors import NotFound
from kernel.positions import DeltaVersion, Epoch
from projections.serve.feed_places import FeedPlace, place_of
from service.feed_messages import SSE, Chunk, Chunks
from service.render import dump
from service.runtime import Runtime

if TYPE_CHECKING:
    from projections.serve.lookups import Lookups
    from projections.serve.newest_runs import ServedVersion
    from projections.serve.row_changes import RowChange

END: Final = "end"
_LOOK_EVERY_S: Final = 0.2
_CHUNK_BYTES: Final = 256 * 1024


class ChangeFeed:
    """One reader's feed of one projection."""

    def __init__(self, runtime: Runtime, name: str, after: str) -> None:
        self._runtime = runtime
        self._name = name
        self._from_end = after == END
        self._place = None if self._from_end else place_of(after)
        self._caught_up = False
        self._told: Epoch | None = None
        """The epoch that the reader has heard of last."""
        self._lost: DeltaVersion | None = None
        """The version that could not be read when the reader was told to begin anew."""

    async def chunks(self) -> Chunks:
        """Send what the reader lacks, then what changes, without end.

        The first chunk says that there is such a projection. Raises `NotFound` when there is none,
        or not any more.
        """
        lookups = await self._runtime.lake.lookups()
        served = await self._served()
        if self._from_end:
            self._place = _whole(served)
        yield Chunk(body=b"", farewell=self._farewell())
        silent_s = 0.0
        while not self._runtime.stopping:
            served = await self._served()
            async for chunk in self._step(lookups, served):
                silent_s = 0.0
                yield chunk
            await asyncio.sleep(_LOOK_EVERY_S)
            silent_s += _LOOK_EVERY_S
            if silent_s >= self._runtime.config.heartbeat_s:
                silent_s = 0.0
                yield Chunk(body=SSE.heartbeat)

    async def _served(self) -> ServedVersion:
        # Who is told to be caught up has all that there was when it asked.
        served, _ = await self._runtime.lake.served(self._name, newest=not self._caught_up)
        return served

    async def _step(self, lookups: Lookups, served: ServedVersion) -> Chunks:
        """Bring the reader to what is served."""
        whole = _whole(served)
        if whole is None:
            return  # Its first run is to come.
        if self._place is not None and self._place.table_id != served.table_id:
            yield self._reset(served)
        while self._place != whole:
            async for chunk in self._towards(lookups, served, whole):
                yield chunk
            if self._place is None:
                return  # What is served now is looked at before all rows are sent.
        self._lost = None
        if not self._caught_up:
            self._caught_up = True
            yield self._named("caught-up", served.epoch)
        elif served.epoch != self._told:
            yield self._named("checkpoint", served.epoch)

    async def _towards(self, lookups: Lookups, served: ServedVersion, whole: FeedPlace) -> Chunks:
        """Send all rows, or one step of differences; say `reset` where neither goes on.

        Raises `NotFound` when the newest version could not be read before, and cannot now.
        """
        place = self._place
        try:
            if place is None or (place.towards is None and place.done is not None):
                async for chunk in self._rows(lookups, served, place):
                    yield chunk
                return
            target = place.towards or whole.version
            compare = partial(lookups.difference, served, place.version, target)
            found = await self._runtime.lake.follow(compare)
        except NotFound:
            if self._lost == whole.version:
                raise
            self._lost = whole.version
            found = None
        if place is None or found is None:
            yield self._reset(served)
            return
        epoch, number, total = place.epoch or served.epoch, place.done or 0, len(found)
        end = FeedPlace(table_id=place.table_id, version=target)
        async for documents in self._batches(found.after(number), epoch):
            messages = []
            for document in documents:
                number += 1
                amid = replace(place, towards=target, epoch=epoch, done=number)
                self._place = end if number == total else amid
                messages.append(_message(self._place, document))
            self._told = epoch
            yield self._chunk(messages)
        self._place = end

    async def _rows(
        self, lookups: Lookups, served: ServedVersion, place: FeedPlace | None
    ) -> Chunks:
        """Send all rows of a version behind those that the reader has."""
        if place is None:
            place = FeedPlace(
                table_id=served.table_id,
                version=served.version or DeltaVersion(0),
                epoch=served.epoch,
                done=0,
            )
        shown = replace(served, version=place.version, epoch=place.epoch)
        number = place.done or 0
        async for documents in self._batches(lookups.all_rows(shown, number), place.epoch):
            messages = []
            for document in documents:
                number += 1
                self._place = replace(place, done=number)
                messages.append(_message(self._place, document))
            yield self._chunk(messages)
        self._told = place.epoch
        self._place = FeedPlace(table_id=place.table_id, version=place.version)

    async def _batches(
        self, found: Iterator[list[RowChange]], epoch: Epoch | None
    ) -> AsyncIterator[list[bytes]]:
        """Read and render changes in a thread."""
        rendered = _rendered(found, epoch)

        def take() -> list[bytes] | None:
            return next(rendered, None)

        while (batch := await self._runtime.lake.follow(take)) is not None:
            yield batch

    def _reset(self, served: ServedVersion) -> Chunk:
        """Have the reader forget all that it has."""
        self._place, self._caught_up, self._told = None, False, served.epoch
        return self._named("reset", served.epoch)

    def _named(self, event: str, epoch: Epoch | None) -> Chunk:
        self._told = epoch
        # An empty id has an EventSource forget the place that it had.
        data = dump({"epoch": epoch}).decode()
        body = f"event: {event}\nid: {self._place or ''}\ndata: {data}\n\n".encode()
        return Chunk(body=body, farewell=self._farewell())

    def _chunk(self, messages: list[bytes]) -> Chunk:
        return Chunk(body=b"".join(messages), farewell=self._farewell(), count=len(messages))

    def _farewell(self) -> bytes:
        return f"event: evicted\nid: {self._place or ''}\ndata: {{}}\n\n".encode()


def _whole(served: ServedVersion) -> FeedPlace | None:
    if served.version is None:
        return None
    return FeedPlace(table_id=served.table_id, version=served.version)


def _rendered(found: Iterator[list[RowChange]], epoch: Epoch | None) -> Iterator[list[bytes]]:
    """Render changes, as many together as make a message to the socket."""
    for changes in found:
        together, size = [], 0
        for change in changes:
            document = dump(
                {
                    "operation": change.operation,
                    "key": change.key,
                    "old": change.old,
                    "new": change.new,
                    "epoch": epoch,
                }
            )
            together.append(document)
            size += len(document)
            if size >= _CHUNK_BYTES:
                yield together
                together, size = [], 0
        if together:
            yield together


def _message(place: FeedPlace, document: bytes) -> bytes:
    return b"id: %b\ndata: %b\n\n" % (str(place).encode(), document)
