"""Errors as problem documents (RFC 9457): the only mapping from errors to HTTP.

Every document has `type`, `title`, `status`, `detail` and `remedy`; some have fields of their own
(`expected` and `actual` of a version conflict, `path` and `complaint` of a schema violation).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import orjson

from kernel.errors import (
    BeyondHead,
    ConditionFailed,
    Conflict,
    ContractViolation,
    DeciderFailed,
    DeciderStopped,
    IdReused,
    Incompatible,
    LeaseLost,
    Misconfigured,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PenstockError,
    Refused,
    SchemaViolation,
    StorageFull,
    StoreDiverged,
    StreamGone,
    SubscriptionDiffers,
    Unavailable,
    UnknownType,
    VersionConflict,
)
from schemas.json_codec import json_default

CONTENT_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem document and the headers that go with it."""

    status: int
    type: str
    title: str
    detail: str
    remedy: str
    fields: dict[str, object] = field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = ()

    def body(self) -> bytes:
        """Render the document."""
        document = self.fields | {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "remedy": self.remedy,
        }
        return orjson.dumps(document, default=_default)


class HttpRefusal(Exception):
    """A request that is refused for its HTTP alone, before anything was asked of the store."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


# Most specific first: the first class that an error is an instance of names its problem.
KINDS: tuple[tuple[type[PenstockError], int, str, str], ...] = (
    (VersionConflict, 409, "version-conflict", "The stream is at another version"),
    (ConditionFailed, 409, "condition-failed", "An event matches the condition"),
    (IdReused, 409, "id-reused", "The event id belongs to another event"),
    (BeyondHead, 409, "beyond-head", "The position is beyond the head"),
    (SubscriptionDiffers, 409, "subscription-differs", "The subscription is another one"),
    (LeaseLost, 503, "unavailable", "Another instance is the writer"),
    (Conflict, 409, "conflict", "Something else happened first"),
    (StreamGone, 410, "stream-gone", "The stream was deleted for good"),
    (NotFound, 404, "not-found", "There is no such thing"),
    (UnknownType, 422, "unknown-type", "The event type has no schema"),
    (SchemaViolation, 422, "schema-violation", "The data does not fit its schema"),
    (Refused, 422, "command-refused", "The decider refused the command"),
    (ContractViolation, 422, "invalid-request", "The request breaks the contract"),
    (StoreDiverged, 409, "store-diverged", "The store lost events that it had"),
    (Incompatible, 409, "incompatible", "The schema does not go with what is stored"),
    (Overloaded, 429, "overloaded", "The queue is full"),
    (OutcomeUnknown, 503, "outcome-unknown", "It may or may not have happened"),
    (StorageFull, 507, "storage-full", "The disk is nearly full"),
    (Unavailable, 503, "unavailable", "A part is down just now"),
    (DeciderStopped, 500, "decider-stopped", "A call of a decider was killed"),
    (DeciderFailed, 500, "decider-failed", "Code of the workspace went wrong"),
    (Misconfigured, 500, "misconfigured", "The service's settings must be mended"),
    (PenstockError, 500, "internal", "The service failed"),
)
RETRY_AFTER_S = "1"


def problem_of(error: BaseException) -> Problem:
    """Return the problem document of any error."""
    if isinstance(error, HttpRefusal):
        return error.problem
    if not isinstance(error, PenstockError):
        return Problem(
            status=500,
            type="internal",
            title="The service failed",
            detail=f"{type(error).__name__}; the service's log has the details",
            remedy="Retry with the same event ids; report it if it repeats.",
        )
    status, kind, title = next(
        (status, kind, title) for cls, status, kind, title in KINDS if isinstance(error, cls)
    )
    retry = (("retry-after", RETRY_AFTER_S),) if status in (429, 503) else ()
    return Problem(
        status=status,
        type=kind,
        title=title,
        detail=error.message,
        remedy=error.remedy,
        fields=dict(error.fields),
        headers=retry,
    )


def refusal(
    status: int,
    kind: str,
    title: str,
    detail: str,
    remedy: str,
    *headers: tuple[str, str],
) -> HttpRefusal:
    """Make a refusal on HTTP grounds."""
    return HttpRefusal(
        Problem(
            status=status, type=kind, title=title, detail=detail, remedy=remedy, headers=headers
        )
    )


def _default(value: object) -> object:
    try:
        return json_default(value)
    except TypeError:
        return str(value)
