"""Streams in memory: which there are, what they show, and their end, as recorded changes."""

from __future__ import annotations

import builtins
from dataclasses import asdict, replace
from typing import Any

import httpx

from penstock_client.errors import NotFound, Refused, StreamGone, VersionConflict
from penstock_client.testing.bodies import MAX_PAGE, Document
from penstock_client.testing.memory import METADATA_SUFFIX, Lifecycle, MemoryStore
from penstock_client.testing.requests import body_of, reply, whole

_COUNTED = 1_000
_MAX_BOUND = 2**31


class MemoryStreams:
    """Changes of what streams show."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def list(self, request: httpx.Request) -> httpx.Response:
        """List streams by name."""
        params = request.url.params
        category, after = params.get("category"), params.get("after", "")
        limit = whole(request, "limit", 100, least=1, most=MAX_PAGE)
        with self._store.lock:
            found = [
                each
                for each in self._summaries()
                if category in (None, each["category"])
                and each["stream"].startswith(params.get("prefix", ""))
                and each["stream"] > after
            ]
        next_after = found[limit - 1]["stream"] if len(found) > limit else None
        return reply({"streams": found[:limit], "next_after": next_after})

    def categories(self, _request: httpx.Request) -> httpx.Response:
        """List categories by name."""
        with self._store.lock:
            last = {event["category"]: event for event in self._store.events}
            summaries = self._summaries()
        documents = []
        for name in sorted(last):
            count = sum(each["category"] == name for each in summaries)
            documents.append(
                {
                    "category": name,
                    "streams": min(count, _COUNTED),
                    "more": count > _COUNTED,
                    "position": last[name]["position"],
                    "recorded_at": last[name]["recorded_at"],
                }
            )
        return reply({"categories": documents})

    def show(self, _request: httpx.Request, stream: str) -> httpx.Response:
        """Show a stream's version and what it shows."""
        return reply(self._document(stream))

    def set(self, request: httpx.Request, stream: str) -> httpx.Response:
        """Hide events by age, number or version."""
        body = body_of(request)
        for name in ("max_age_s", "max_count"):
            bound = body.get(name)
            if bound is not None and not (type(bound) is int and 0 < bound <= _MAX_BOUND):
                raise Refused(f"{name}: {bound!r} is out of range")
        with self._store.lock:
            before, version = self._readable(stream)
            wanted = body.get("truncate_before")
            wanted = before.truncate_before if wanted is None else wanted
            if not before.truncate_before <= wanted <= version + 1:
                raise Refused(f"truncate_before: {wanted} is out of range")
            bounded = replace(
                before, max_age_s=body.get("max_age_s"), max_count=body.get("max_count")
            )
            only_truncated = bounded == before and wanted > before.truncate_before
            type_ = "stream_truncated" if only_truncated else "stream_metadata_set"
            return self._change(stream, type_, replace(bounded, truncate_before=wanted))

    def delete(self, request: httpx.Request, stream: str) -> httpx.Response:
        """Hide all events, for good when asked so."""
        for_good = request.url.params.get("tombstone") == "true"
        with self._store.lock:
            before, version = self._standing(stream) if for_good else self._readable(stream)
            self._check(request, stream, None if before.deleted else version)
            after = replace(
                before,
                truncate_before=version + 1,
                deleted=not for_good,
                tombstoned=for_good,
            )
            return self._change(
                stream, "stream_tombstoned" if for_good else "stream_deleted", after
            )

    def _summaries(self) -> builtins.list[Document]:
        """Return all streams but those that record the life of another, by name."""
        last = {event["stream"]: event for event in self._store.events}
        named = ("stream", "category", "version", "position", "recorded_at")
        summaries = []
        for stream in sorted(last):
            if not stream.endswith(METADATA_SUFFIX):
                state = self._store.lifecycle.get(stream, Lifecycle())
                shown = {name: last[stream][name] for name in named}
                ends = {"deleted": state.deleted, "tombstoned": state.tombstoned}
                summaries.append(shown | ends)
        return summaries

    def _standing(self, stream: str) -> tuple[Lifecycle, int]:
        version = self._store.version(stream)
        if version is None:
            raise NotFound(f"stream {stream} does not exist", remedy="Check the name.")
        return self._store.lifecycle.get(stream, Lifecycle()), version

    def _readable(self, stream: str) -> tuple[Lifecycle, int]:
        state, version = self._standing(stream)
        if state.tombstoned:
            raise StreamGone(f"stream {stream} was deleted for good", remedy="Use another.")
        if state.deleted:
            raise NotFound(f"stream {stream} was deleted", remedy="Append to it to begin again.")
        return state, version

    def _check(self, request: httpx.Request, stream: str, actual: int | None) -> None:
        asked = request.headers.get("if-match")
        if asked is not None and asked not in ("*", f'"{actual}"'):
            expected = asked.strip('"')
            raise VersionConflict(
                f"stream {stream} is not at {expected}",
                remedy="Read the stream and decide again.",
                status=412,
                stream=stream,
                expected=int(expected),
                actual=actual,
            )

    def _change(self, stream: str, type_: str, after: Lifecycle) -> httpx.Response:
        position = None
        if after != self._store.lifecycle.get(stream, Lifecycle()):
            bounds = {name: getattr(after, name) for name in ("max_age_s", "max_count")}
            data = {
                "stream": stream,
                "version": self._store.version(stream),
                "truncate_before": after.truncate_before,
                **bounds,
            }
            position = self._store.record(stream + METADATA_SUFFIX, type_, data)
            self._store.lifecycle[stream] = after
        return reply(self._document(stream) | {"position": position})

    def _document(self, stream: str) -> Document:
        state, version = self._standing(stream)
        shown: dict[str, Any] = asdict(state)
        return {"stream": stream, "version": version, **shown}
