# Written by generate_sync.py from penstock_client/_async/streams.py: edit that file.
"""Which streams there are, what they show of their events, and their end."""

from __future__ import annotations

from typing import Any

from penstock_client._sync.connection import Connection
from penstock_client.model import CategorySummary, StreamMetadata, StreamSummary
from penstock_client.wire import (
    category_summary_of,
    precondition,
    segment,
    stream_metadata_of,
    stream_summary_of,
)


class Streams:
    """Lists streams, bounds and ends what they show.

    The store keeps all events, and records each change.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        category: str | None = None,
        prefix: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[StreamSummary, ...]:
        """Return one page of streams by name; the next one is behind the name of the last.

        Deleted streams are among them.
        """
        asked = {"category": category, "prefix": prefix, "after": after, "limit": limit}
        params = {name: value for name, value in asked.items() if value is not None}
        document = self._connection.call("GET", "/v1/streams", params=params)
        return tuple(stream_summary_of(each) for each in document["streams"])

    def categories(self) -> tuple[CategorySummary, ...]:
        """Return all categories by name. More than 1,000 streams of one are not counted."""
        document = self._connection.call("GET", "/v1/categories")
        return tuple(category_summary_of(each) for each in document["categories"])

    def show(self, stream: str) -> StreamMetadata:
        """Return what a stream shows. Raises `NotFound`."""
        return stream_metadata_of(self._connection.call("GET", _path(stream)))

    def set(
        self,
        stream: str,
        *,
        truncate_before: int | None = None,
        max_age_s: int | None = None,
        max_count: int | None = None,
    ) -> StreamMetadata:
        """Hide events by version, age or number. What is left out is not bounded.

        Only `truncate_before` stays as it was. Raises `NotFound`, `StreamGone`, `Refused`.
        """
        bounds = {
            "truncate_before": truncate_before,
            "max_age_s": max_age_s,
            "max_count": max_count,
        }
        body = {name: value for name, value in bounds.items() if value is not None}
        return stream_metadata_of(self._connection.call("PUT", _path(stream), body=body))

    def delete(
        self, stream: str, *, for_good: bool = False, expected_version: int | None = None
    ) -> StreamMetadata:
        """Hide all events; `for_good`: nobody may append to the stream again.

        Otherwise it begins anew with the next append, and its versions go on. A try after one
        whose answer was lost may raise `NotFound`: it is deleted. Raises `VersionConflict`.
        """
        params: dict[str, Any] = {"tombstone": "true"} if for_good else {}
        return stream_metadata_of(
            self._connection.call(
                "DELETE",
                f"/v1/streams/{segment(stream)}",
                params=params,
                headers=precondition(expected_version),
            )
        )


def _path(stream: str) -> str:
    return f"/v1/streams/{segment(stream)}/metadata"
