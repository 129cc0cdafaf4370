"""Everything that the client raises, in one tree, mirrored from the service's problem types.

    PenstockError
    ├── Refused               the request cannot be served as it is; the same one never can
    │   ├── UnknownType           an event type without a schema: event_type, index
    │   ├── SchemaViolation       data does not fit its schema: path, complaint, event_type, index
    │   ├── CommandRefused        the decider said no, with its reason
    │   └── Unauthorized          no token, or a wrong one
    ├── NotFound              no such stream, event, schema, group or path
    ├── StreamGone            the stream was deleted for good
    ├── Conflict              true when asked, no longer true now
    │   ├── GroupDiffers          a persistent subscription of that name is another one
    │   ├── VersionConflict       the stream is at `actual`, not at `expected`
    │   ├── ConditionFailed       an event that the condition excludes is there
    │   ├── IdReused              an event id with other content than before: id, position
    │   ├── BeyondHead            a feed was to start behind `head`: another or a restored store
    │   └── StoreDiverged         the store lost events that it had, and takes no more appends
    ├── Incompatible          a schema cannot read what is stored: complaints
    ├── Unavailable           nothing was kept; worth a retry
    │   ├── Overloaded            the queue is full: retry_after_s
    │   ├── OutcomeUnknown        it may have happened: repeat with the same ids
    │   └── StorageFull           the service's disk is nearly full: free_bytes, min_free_bytes
    └── ServiceFault          the service failed in a way that it does not explain
        └── DeciderFailed         code of the workspace went wrong
            └── DeciderStopped    it did not end, and was killed

A problem type that this version does not know becomes the class that its status stands for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

MAX_RETRY_AFTER_S = 60.0


class PenstockError(Exception):
    """Root of the tree. `detail` is the cause, `remedy` the next step, `fields` are for programs.

    `status` is None where no answer came. `type` is the problem type as the service named it.
    """

    type_: ClassVar[str] = "internal"
    worth_a_retry: ClassVar[bool] = False

    def __init__(
        self,
        detail: str,
        *,
        remedy: str = "",
        status: int | None = None,
        type: str | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy
        self.status = status
        self.type = type if type is not None else self.type_
        self.fields: Mapping[str, Any] = fields

    def __str__(self) -> str:
        return f"{self.detail} ({self.remedy})" if self.remedy else self.detail

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders: keep keyword fields.
        return _rebuild, (
            type(self),
            self.detail,
            {"remedy": self.remedy, "status": self.status, "type": self.type, **self.fields},
        )


def _rebuild(kind: type[PenstockError], detail: str, more: dict[str, Any]) -> PenstockError:
    return kind(detail, **more)


class Refused(PenstockError):
    """The request cannot be served as it is."""

    type_ = "invalid-request"


class UnknownType(Refused):
    """The event type has no schema, and the service does not infer one."""

    type_ = "unknown-type"

    @property
    def event_type(self) -> str:
        """The type without a schema, as `category.type`."""
        return str(self.fields.get("event_type", ""))


class SchemaViolation(Refused):
    """The data does not fit the schema of its type."""

    type_ = "schema-violation"

    @property
    def path(self) -> str:
        """Where in the data."""
        return str(self.fields.get("path", ""))

    @property
    def complaint(self) -> str:
        """What is wrong there."""
        return str(self.fields.get("complaint", self.detail))


class CommandRefused(Refused):
    """The decider refused the command."""

    type_ = "command-refused"

    @property
    def reason(self) -> str:
        """The decider's reason."""
        return str(self.fields.get("reason", self.detail))


class Unauthorized(Refused):
    """The service wants a token, or another one."""

    type_ = "unauthorized"


class NotFound(PenstockError):
    """There is no such thing."""

    type_ = "not-found"


class StreamGone(PenstockError):
    """The stream was deleted for good."""

    type_ = "stream-gone"


class Conflict(PenstockError):
    """Something else happened first."""

    type_ = "conflict"


class GroupDiffers(Conflict):
    """A persistent subscription of that name has another filter or start."""

    type_ = "subscription-differs"


class VersionConflict(Conflict):
    """The stream is at another version than the one that was expected."""

    type_ = "version-conflict"

    @property
    def expected(self) -> int | str | None:
        """What the request expected."""
        expected: int | str | None = self.fields.get("expected")
        return expected

    @property
    def actual(self) -> int | None:
        """The stream's version; None: it does not exist."""
        actual: int | None = self.fields.get("actual")
        return actual


class ConditionFailed(Conflict):
    """An event that matches the condition's query is behind its position."""

    type_ = "condition-failed"

    @property
    def position(self) -> int | None:
        """The position of such an event, where the service names it."""
        position: int | None = self.fields.get("position")
        return position


class IdReused(Conflict):
    """The event id belongs to another event."""

    type_ = "id-reused"

    @property
    def position(self) -> int | None:
        """Where that event is."""
        position: int | None = self.fields.get("position")
        return position


class StoreDiverged(Conflict):
    """The store lost events that it had: it was restored, or failed over to a copy behind it."""

    type_ = "store-diverged"


class BeyondHead(Conflict):
    """The store has not come to this position: it is another store, or a restored one."""

    type_ = "beyond-head"

    @property
    def head(self) -> int | None:
        """The store's last position."""
        head: int | None = self.fields.get("head")
        return head


class Incompatible(PenstockError):
    """The schema cannot read what is stored."""

    type_ = "incompatible"

    @property
    def complaints(self) -> tuple[str, ...]:
        """What stands in its way."""
        return tuple(map(str, self.fields.get("complaints", ())))


class Unavailable(PenstockError):
    """A part is down just now; nothing was kept."""

    type_ = "unavailable"
    worth_a_retry = True

    @property
    def retry_after_s(self) -> float | None:
        """How long the service asks to wait."""
        asked: float | None = self.fields.get("retry_after_s")
        return asked


class Overloaded(Unavailable):
    """The service's queue is full; nothing was kept."""

    type_ = "overloaded"


class OutcomeUnknown(Unavailable):
    """It may have happened. The same call with the same ids makes it happen exactly once."""

    type_ = "outcome-unknown"


class StorageFull(Unavailable):
    """The service's disk is nearly full; reads go on. Waiting alone does not help."""

    type_ = "storage-full"
    worth_a_retry = False


class ServiceFault(PenstockError):
    """The service failed."""


class DeciderFailed(ServiceFault):
    """Code of the workspace went wrong; nothing was appended."""

    type_ = "decider-failed"


class DeciderStopped(DeciderFailed):
    """Code of the workspace did not end in time, or took too much memory, and was killed."""

    type_ = "decider-stopped"


_KINDS: Mapping[str, type[PenstockError]] = {
    kind.type_: kind
    for kind in (
        *(Refused, UnknownType, SchemaViolation, CommandRefused, Unauthorized, NotFound),
        *(StreamGone, Conflict, VersionConflict, ConditionFailed, IdReused, BeyondHead),
        *(StoreDiverged, GroupDiffers, DeciderFailed, DeciderStopped),
        *(Incompatible, Unavailable, Overloaded, OutcomeUnknown, StorageFull, ServiceFault),
    )
}
_BY_STATUS: Mapping[int, type[PenstockError]] = {
    401: Unauthorized,
    404: NotFound,
    409: Conflict,
    410: StreamGone,
    412: Conflict,
    429: Overloaded,
    # A gateway's words: the request may have passed it.
    502: OutcomeUnknown,
    503: Unavailable,
    504: OutcomeUnknown,
    507: StorageFull,
}
_STANDARD = frozenset({"type", "title", "status", "detail", "remedy", "instance"})


def error_of(status: int, body: bytes, headers: Mapping[str, str]) -> PenstockError:
    """Return the error that an answer stands for."""
    document = _document(body)
    named = document.get("type")
    by_status = _BY_STATUS.get(status, Refused if status < 500 else ServiceFault)
    kind = _KINDS.get(named, by_status) if isinstance(named, str) else by_status
    fields = {name: value for name, value in document.items() if name not in _STANDARD}
    if issubclass(kind, Unavailable):
        fields["retry_after_s"] = _seconds(headers.get("retry-after"))
    return kind(
        str(document.get("detail") or f"the service answered {status}"),
        remedy=str(document.get("remedy") or ""),
        status=status,
        type=named if isinstance(named, str) else None,
        **fields,
    )


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _seconds(text: str | None) -> float | None:
    """Read `Retry-After` in seconds, bounded; its form as a date is not used by the service."""
    if text is None or not text.strip().isdigit():
        return None
    return min(float(text), MAX_RETRY_AFTER_S)
