"""Rows of groups to what they mean, and rounds to the values that save them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eventstore.groups.model import GroupEntry, GroupStanding, Subscription, Terms
from eventstore.groups.rules import Round
from eventstore.postgres.connect import Connection
from eventstore.postgres.rows import of_row
from eventstore.store import EventFilter
from kernel.positions import Position


@dataclass(slots=True, kw_only=True)
class OpenRound:
    """A round in its transaction, on the connection that holds the group's row lock."""

    connection: Connection
    subscription: Subscription
    number: int
    scanned_to: Position
    began_at: Position
    finished_to: Position
    round: Round


def opened(
    connection: Connection,
    row: Sequence[Any],
    progress: Sequence[Any],
    entries: Sequence[Sequence[Any]],
) -> OpenRound:
    """Make a round of what `group_lock.sql` selects."""
    subscription = subscription_of(row)
    number, scanned_to, finished_to, parked, now = progress
    return OpenRound(
        connection=connection,
        subscription=subscription,
        number=number,
        scanned_to=Position(scanned_to),
        began_at=Position(scanned_to),
        finished_to=Position(finished_to),
        round=Round(
            subscription.terms,
            entries=[of_row(GroupEntry, each) for each in entries],
            parked=parked,
            now=now,
        ),
    )


def subscription_of(row: Sequence[Any]) -> Subscription:
    """Read a subscription from the first 13 columns that the group queries select."""
    return Subscription(
        name=row[0],
        filter=EventFilter(category=row[1], type=row[2], stream_prefix=row[3], tag=row[4]),
        started_after=Position(row[5]),
        terms=of_row(Terms, row[6:13]),
    )


def standing_of(row: Sequence[Any]) -> GroupStanding:
    """Read a row of `group_standings.sql`."""
    head, checkpoint, lag_s, in_flight, waiting, parked, redelivered = row[13:20]
    return GroupStanding(
        subscription=subscription_of(row),
        head=Position(head),
        checkpoint=Position(checkpoint),
        lag_events=head - checkpoint,
        lag_seconds=max(0.0, lag_s),
        in_flight=in_flight,
        waiting=waiting,
        parked=parked,
        redelivered=redelivered,
    )


def saved_values(open_round: OpenRound) -> dict[str, object]:
    """Return what `group_save.sql` needs to keep a round."""
    done = open_round.round
    changed, parked = list(done.changed.values()), done.newly_parked
    return {
        "group": open_round.subscription.name,
        "gone": [*done.finished, *(each.position for each in parked)],
        "positions": [each.position for each in changed],
        "event_ids": [each.event_id for each in changed],
        "streams": [each.stream for each in changed],
        "due_at": [each.due_at for each in changed],
        "deliveries": [each.deliveries for each in changed],
        "consumers": [each.consumer for each in changed],
        "reasons": [each.reason for each in changed],
        "parked_positions": [each.position for each in parked],
        "parked_ids": [each.event_id for each in parked],
        "parked_streams": [each.stream for each in parked],
        "parked_deliveries": [each.deliveries for each in parked],
        "parked_reasons": [each.reason for each in parked],
        "now": done.now,
        "number": open_round.number,
        "scanned_to": open_round.scanned_to,
        "finished_to": open_round.finished_to,
        "parked": done.parked,
        "redelivered": done.redelivered,
    }
