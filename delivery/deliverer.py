"""One deliverer: takes events of its subscription, sends each, records what became of it.

1. Take as many events as may be sent at a time.
2. Send each.
3. Record: acknowledge what was sent, give back what was not, park what is hopeless. While
   PostgreSQL is away this is repeated, and nothing is sent again.

An event that is marked as silent is acknowledged and not sent.
A crash between 2 and 3 sends the event again, under the same id; nothing else of ours does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, assert_never

from delivery.outcome import (
    Document,
    Hopeless,
    Outcome,
    Sender,
    Sent,
    TryAgain,
    message_id,
)
from eventstore.groups.model import Delivery, Settled
from eventstore.groups.port import SubscriptionGroups
from eventstore.metadata import SILENT
from kernel import failpoints
from kernel.errors import Overloaded, PenstockError, Unavailable
from kernel.retry import Backoff
from schemas.records import RecordedEvent

_log = logging.getLogger("penstock.delivery")
_WAIT_S = 5.0
_RECORD = Backoff(base_s=0.1, cap_s=5.0)

Render = Callable[[RecordedEvent], Awaitable[Document]]
"""Makes of an event what callers see. Raises a `PenstockError` when it cannot just now."""


class DeliveryObserver(Protocol):
    """Told what becomes of events, for metrics and health. Must be quick and must not raise."""

    def delivered(self) -> None:
        """One was sent and recorded."""
        ...

    def failed(self, reason: str, *, parked: bool) -> None:
        """One was tried in vain; `parked`: for the last time."""
        ...


class Deliverer:
    """Serves one subscription until `stop`."""

    def __init__(
        self,
        *,
        subscription: str,
        consumer: str,
        groups: SubscriptionGroups,
        sender: Sender,
        render: Render,
        observer: DeliveryObserver,
        concurrency: int,
        max_deliveries: int,
    ) -> None:
        self._subscription = subscription
        self._consumer = consumer
        self._groups = groups
        self._sender = sender
        self._render = render
        self._observer = observer
        self._concurrency = concurrency
        self._max_deliveries = max_deliveries
        self._stopping = asyncio.Event()
        self._busy: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Take no more events; what is being sent is finished by `run`."""
        self._stopping.set()

    async def run(self) -> None:
        """Deliver until stopped, then finish what is under way.

        Raises what the subscription raises (`NotFound`, `Unavailable`) for the caller to judge.
        """
        try:
            while not self._stopping.is_set():
                if len(self._busy) >= self._concurrency:
                    await asyncio.wait(self._busy, return_when=asyncio.FIRST_COMPLETED)
                    continue
                given = await self._groups.next(
                    self._subscription,
                    consumer=self._consumer,
                    limit=self._concurrency - len(self._busy),
                    wait_s=_WAIT_S,
                    gone=self._ended,
                )
                for delivery in given.deliveries:
                    task = asyncio.create_task(self._deliver(delivery))
                    self._busy.add(task)
                    task.add_done_callback(self._finished)
        except asyncio.CancelledError:
            for task in self._busy:
                task.cancel()
            raise
        finally:
            if self._busy:
                await asyncio.wait(self._busy)

    async def _ended(self) -> bool:
        return self._stopping.is_set()

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._busy.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not recorded: the subscription gives it again when its time is over.
            _log.error("delivery of %s failed", self._subscription, exc_info=error)
            self._observer.failed(type(error).__name__, parked=False)

    async def _deliver(self, delivery: Delivery) -> None:
        event = delivery.event
        if event.metadata.get(SILENT) is True:
            await self._record(delivery, Sent())
            return
        try:
            document = await self._render(event)
        except PenstockError as error:
            outcome: Outcome = TryAgain(reason=error.message)
        else:
            id_ = message_id(self._subscription, event.id)
            outcome = await self._sent(id_, document)
        failpoints.hit(failpoints.DELIVER_BEFORE_RECORD)
        await self._record(delivery, outcome)
        match outcome:
            case Sent():
                self._observer.delivered()
            case TryAgain(reason=reason):
                last = delivery.attempt >= self._max_deliveries
                self._observer.failed(reason, parked=last)
            case Hopeless(reason=reason):
                self._observer.failed(reason, parked=True)
            case _:
                assert_never(outcome)

    async def _sent(self, id_: str, document: Document) -> Outcome:
        try:
            return await self._sender.send(id_, document)
        except Exception as error:
            # A defect of ours: unrecorded, nobody would be told why the event comes again so late.
            _log.exception("sending an event of %s failed", self._subscription)
            return TryAgain(reason=f"{type(error).__name__}, see the log")

    async def _record(self, delivery: Delivery, outcome: Outcome) -> None:
        attempt = 0
        while True:
            try:
                await self._recorded(delivery, outcome)
                return
            except Overloaded as error:
                # No room for parked events: given back instead, it waits for room there.
                outcome = TryAgain(reason=f"{_reason(outcome)}; {error.message}")
            except Unavailable as error:
                self._observer.failed(f"not recorded yet: {error.message}", parked=False)
                pause = _RECORD.delay_s(attempt, uniform=max)
                attempt = min(attempt + 1, 10)
                if self._stopping.is_set():
                    raise
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), pause)

    async def _recorded(self, delivery: Delivery, outcome: Outcome) -> Settled:
        ids = [delivery.event.id]
        match outcome:
            case Sent():
                return await self._groups.ack(self._subscription, ids)
            case TryAgain(reason=reason, delay=delay):
                return await self._groups.nack(
                    self._subscription, ids, reason=reason, consumer=self._consumer, delay=delay
                )
            case Hopeless(reason=reason):
                return await self._groups.park(
                    self._subscription, ids, reason=reason, consumer=self._consumer
                )
            case _:
                assert_never(outcome)


def _reason(outcome: Outcome) -> str:
    return "" if isinstance(outcome, Sent) else outcome.reason
