"""Bodies of requests about persistent subscriptions, and how subscriptions are shown."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from eventstore.filters import kept_filter
from eventstore.groups.model import MAX_IDS, GroupStanding, Parked, Terms
from eventstore.store import EventFilter
from kernel.positions import Position

_Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
_Text = Annotated[str, Field(max_length=255, pattern=r"^[^\s\x00-\x1f\x7f]+$")]
_DEFAULT = Terms()


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class FilterBody(_Body):
    """Which events a subscription is about; what is left out lets everything pass."""

    category: _Text | None = None
    type: _Text | None = None
    stream_prefix: _Text | None = None
    tag: _Text | None = None

    def filter(self) -> EventFilter:
        """Return the filter. Raises `InvalidRequest` for a name that no event can have."""
        return kept_filter(EventFilter(**self.model_dump()))


class SubscriptionBody(_Body):
    """What a subscription is to be."""

    filter: FilterBody = FilterBody()
    start: Annotated[int, Field(ge=0, le=2**62)] | Literal["end"] = "end"
    max_deliveries: int = _DEFAULT.max_deliveries
    ack_timeout_s: _Seconds = _DEFAULT.ack_timeout.total_seconds()
    backoff_s: _Seconds = _DEFAULT.backoff.total_seconds()
    backoff_cap_s: _Seconds = _DEFAULT.backoff_cap.total_seconds()
    max_in_flight: int = _DEFAULT.max_in_flight
    look_ahead: int = _DEFAULT.look_ahead
    max_parked: int = _DEFAULT.max_parked

    def position(self) -> Position | None:
        """Return the position to begin behind; None for the end."""
        return None if self.start == "end" else Position(self.start)

    def terms(self) -> Terms:
        """Return how it hands out. Raises `InvalidRequest` for what is out of bounds."""
        return Terms(
            max_deliveries=self.max_deliveries,
            ack_timeout=timedelta(seconds=self.ack_timeout_s),
            backoff=timedelta(seconds=self.backoff_s),
            backoff_cap=timedelta(seconds=self.backoff_cap_s),
            max_in_flight=self.max_in_flight,
            look_ahead=self.look_ahead,
            max_parked=self.max_parked,
        )


class AckBody(_Body):
    """Events that were handled."""

    model_config = ConfigDict(strict=False)  # Ids come as text.
    ids: Annotated[list[UUID], Field(min_length=1, max_length=MAX_IDS)]


class ParkBody(AckBody):
    """Events that the consumer gives up on."""

    reason: Annotated[str, Field(min_length=1, max_length=2_000, pattern=r"^[^\x00]+$")]
    consumer: _Text | None = None


class NackBody(ParkBody):
    """Events that the consumer could not handle now."""

    delay_s: _Seconds | None = None


class ReplayBody(_Body):
    """Parked events to give again; all of them without `ids`."""

    model_config = ConfigDict(strict=False)  # Ids come as text.
    ids: Annotated[list[UUID], Field(min_length=1, max_length=MAX_IDS)] | None = None


def standing_document(standing: GroupStanding) -> dict[str, Any]:
    """Return how a subscription is shown."""
    subscription = standing.subscription
    terms = subscription.terms
    return {
        "name": subscription.name,
        "state": standing.state,
        "filter": asdict(subscription.filter),
        "started_after": subscription.started_after,
        "checkpoint": standing.checkpoint,
        "head": standing.head,
        "lag_events": standing.lag_events,
        "lag_seconds": round(standing.lag_seconds, 3),
        "in_flight": standing.in_flight,
        "waiting": standing.waiting,
        "parked": standing.parked,
        "redelivered": standing.redelivered,
        "max_deliveries": terms.max_deliveries,
        "ack_timeout_s": terms.ack_timeout.total_seconds(),
        "backoff_s": terms.backoff.total_seconds(),
        "backoff_cap_s": terms.backoff_cap.total_seconds(),
        "max_in_flight": terms.max_in_flight,
        "look_ahead": terms.look_ahead,
        "max_parked": terms.max_parked,
    }


def parked_document(parked: Parked) -> dict[str, Any]:
    """Return how a parked event is shown."""
    return {
        "id": parked.event_id,
        "stream": parked.stream,
        "position": parked.position,
        "deliveries": parked.deliveries,
        "reason": parked.reason,
        "parked_at": parked.parked_at,
    }
