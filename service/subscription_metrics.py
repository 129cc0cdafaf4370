"""What is counted of persistent subscriptions and of deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

from eventstore.groups.model import GroupStanding


class SubscriptionMetrics:
    """Figures by subscription: as many label values as there are groups, 200 at most."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str) -> Gauge:
            return Gauge(name, text, ["subscription"], registry=registry)

        self._lag_events = gauge(
            "penstock_subscription_lag_events", "Positions behind the checkpoint"
        )
        self._lag_seconds = gauge(
            "penstock_subscription_lag_seconds", "Age of the first unfinished event"
        )
        self._in_flight = gauge("penstock_subscription_in_flight", "Events with consumers")
        self._parked = gauge("penstock_subscription_parked", "Events that were given up on")
        self._redelivered = gauge(
            "penstock_subscription_redelivered", "Deliveries after an event's first"
        )
        self._waiting = Gauge(
            "penstock_waiting_consumers", "Consumers that wait for events here", registry=registry
        )
        self.deliveries = Counter(
            "penstock_deliveries",
            "Events that a deliverer sent, tried in vain, or parked",
            ["delivery", "outcome"],
            registry=registry,
        )
        self.delivery_up = Gauge(
            "penstock_delivery_up", "1 while a deliverer works", ["delivery"], registry=registry
        )

    def counted(self, delivery: str, outcome: Literal["sent", "retried", "parked"]) -> None:
        """One event more that a deliverer sent, tried in vain, or parked."""
        self.deliveries.labels(delivery, outcome).inc()

    def show(
        self, standings: Sequence[GroupStanding], *, waiting: int, up: Mapping[str, bool]
    ) -> None:
        """Replace what was shown by how subscriptions, and deliverers by name, stand now."""
        for name, works in up.items():
            self.delivery_up.labels(name).set(works)
        gauges = (
            self._lag_events,
            self._lag_seconds,
            self._in_flight,
            self._parked,
            self._redelivered,
        )
        self._waiting.set(waiting)
        for gauge in gauges:
            gauge.clear()
        for standing in standings:
            name = standing.subscription.name
            figures = (
                standing.lag_events,
                standing.lag_seconds,
                standing.in_flight,
                standing.parked,
                standing.redelivered,
            )
            for gauge, figure in zip(gauges, figures, strict=True):
                gauge.labels(name).set(figure)
