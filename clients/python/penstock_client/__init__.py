"""Append events to a Penstock event store, read them, follow them.

`AsyncPenstock` and `Penstock` are the same client for asyncio and for plain code. What goes in and
comes out is in `model`, what is raised in `errors`; `testing` has a store in memory for tests.
"""

from penstock_client._async.client import AsyncPenstock
from penstock_client._async.subscription import AsyncSubscription
from penstock_client._sync.client import Penstock
from penstock_client._sync.subscription import Subscription
from penstock_client.errors import (
    BeyondHead,
    CommandRefused,
    ConditionFailed,
    Conflict,
    IdReused,
    Incompatible,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PenstockError,
    Refused,
    SchemaViolation,
    ServiceFault,
    StorageFull,
    StreamGone,
    Unauthorized,
    Unavailable,
    UnknownType,
    VersionConflict,
)
from penstock_client.model import (
    CaughtUp,
    Condition,
    Event,
    EventPage,
    Health,
    NewEvent,
    QueryItem,
    Schema,
    SchemaCheck,
    StreamAppend,
    StreamAppended,
    StreamPage,
)
from penstock_client.retry import Retry

__all__ = [
    "AsyncPenstock",
    "AsyncSubscription",
    "BeyondHead",
    "CaughtUp",
    "CommandRefused",
    "Condition",
    "ConditionFailed",
    "Conflict",
    "Event",
    "EventPage",
    "Health",
    "IdReused",
    "Incompatible",
    "NewEvent",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "Penstock",
    "PenstockError",
    "QueryItem",
    "Refused",
    "Retry",
    "Schema",
    "SchemaCheck",
    "SchemaViolation",
    "ServiceFault",
    "StorageFull",
    "StreamAppend",
    "StreamAppended",
    "StreamGone",
    "StreamPage",
    "Subscription",
    "Unauthorized",
    "Unavailable",
    "UnknownType",
    "VersionConflict",
]
