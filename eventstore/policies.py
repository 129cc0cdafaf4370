"""Changing what a stream shows: read how it stands, decide, append the event that records it.

    how it stands -> edit -> PolicyChange + event in the metadata stream -> EventStore.append

The event and its effect are committed together. Whoever read an older standing is refused by the
expected versions of stream and metadata stream, and decides again unless it named a version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import orjson

from eventstore.decision import check_expected
from eventstore.ids import new_id
from eventstore.intake import Intake
from eventstore.lifecycle import (
    ChangeType,
    PolicyChange,
    StreamPolicy,
    StreamStanding,
    change_data,
    change_schema,
    check_readable,
    is_metadata,
    metadata_stream,
)
from eventstore.names import category_of, subject_of
from eventstore.store import AppendRequest, EventStore, Expected, StreamAppend
from kernel.errors import InvalidRequest, VersionConflict
from kernel.positions import Position
from schemas.records import NewEvent

_ATTEMPTS = 5

Edit = Callable[[StreamStanding], tuple[ChangeType, StreamPolicy]]
"""Decides what becomes of a stream that stands so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged:
    """How the stream stands now, and where that is recorded; None: it was so already."""

    standing: StreamStanding
    position: Position | None


class StreamPolicies:
    """Changes of the policies of streams. Each is an event that anybody can read."""

    def __init__(self, store: EventStore, intake: Intake) -> None:
        self._store = store
        self._intake = intake

    async def delete(
        self, stream: str, *, for_good: bool, expected: Expected = "any"
    ) -> PolicyChanged:
        """Hide all events of a stream; `for_good`: nobody may ever append to it again.

        Raises `NotFound`, `StreamGone`, `VersionConflict` and what an append raises.
        """

        def edit(standing: StreamStanding) -> tuple[ChangeType, StreamPolicy]:
            # Before the version: a deletion that is repeated, its answer lost, was not overtaken.
            if standing.policy.tombstoned or not for_good:
                check_readable(standing)
            actual = None if standing.policy.deleted else standing.version
            check_expected(stream, expected, actual)
            hidden = replace(standing.policy, truncate_before=standing.version + 1)
            if for_good:
                return "stream_tombstoned", replace(hidden, deleted=False, tombstoned=True)
            return "stream_deleted", replace(hidden, deleted=True)

        return await self._change(stream, edit)

    async def set(
        self,
        stream: str,
        *,
        truncate_before: int | None,
        max_age_s: int | None,
        max_count: int | None,
        expected: Expected = "any",
    ) -> PolicyChanged:
        """Say what a stream shows. `truncate_before` never goes back; None leaves it.

        `expected` is the version of the metadata stream. Raises like `delete`, and
        `InvalidRequest` for a `truncate_before` that goes back or beyond the stream's end.
        """

        def edit(standing: StreamStanding) -> tuple[ChangeType, StreamPolicy]:
            check_readable(standing)
            check_expected(metadata_stream(stream), expected, standing.metadata_version)
            before = standing.policy.truncate_before
            wanted = before if truncate_before is None else truncate_before
            if not before <= wanted <= standing.version + 1:
                raise InvalidRequest(
                    f"truncate_before: {wanted} is not between {before} and the end of the "
                    f"stream, {standing.version + 1}",
                    remedy="What is hidden stays hidden; events to come cannot be hidden yet.",
                )
            bounded = replace(standing.policy, max_age_s=max_age_s, max_count=max_count)
            policy = replace(bounded, truncate_before=wanted)
            only_truncated = bounded == standing.policy and wanted > before
            return ("stream_truncated" if only_truncated else "stream_metadata_set"), policy

        return await self._change(stream, edit)

    async def archived(self, stream: str, *, up_to: int) -> PolicyChanged:
        """Record that a stream's events below a version are in the archive; it never goes back.

        Nobody may say so of events that are not in the log yet. Raises `NotFound`,
        `InvalidRequest` for a version beyond the stream's end, and what an append raises.
        """

        def edit(standing: StreamStanding) -> tuple[ChangeType, StreamPolicy]:
            if up_to > standing.version + 1:
                raise InvalidRequest(
                    f"up_to: {up_to} is beyond the end of the stream, {standing.version + 1}"
                )
            reached = max(up_to, standing.policy.archived_up_to)
            return "stream_archived", replace(standing.policy, archived_up_to=reached)

        return await self._change(stream, edit)

    async def _change(self, stream: str, edit: Edit) -> PolicyChanged:
        category = category_of(stream)
        if is_metadata(stream):
            raise InvalidRequest(f"stream {stream} records the life of another stream")
        for attempt in range(1, _ATTEMPTS + 1):
            standing = await self._store.standing(stream)
            type_, policy = edit(standing)
            if policy == standing.policy:
                return PolicyChanged(standing=standing, position=None)
            try:
                return await self._record(category, standing, type_, policy)
            except VersionConflict:
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _record(
        self, category: str, standing: StreamStanding, type_: ChangeType, policy: StreamPolicy
    ) -> PolicyChanged:
        if not self._intake.writes(category, type_):
            schema = orjson.dumps(change_schema(category, type_)).decode()
            await self._intake.add(subject_of(category, type_), schema)
        event = NewEvent(
            id=new_id(),
            type=type_,
            data=change_data(standing.stream, standing.version, policy, type_),
            metadata={},
            tags=(),
            occurred_at=None,
        )
        before = standing.metadata_version
        append = StreamAppend(
            stream=metadata_stream(standing.stream),
            category=category,
            expected="no_stream" if before is None else before,
            events=await self._intake.encode(category, (event,)),
        )
        change = PolicyChange(stream=standing.stream, version=standing.version, policy=policy)
        (answer,) = (
            await self._store.append(AppendRequest(appends=(append,), change=change))
        ).appends
        return PolicyChanged(
            standing=replace(standing, policy=policy, metadata_version=answer.last_version),
            position=answer.last_position,
        )
