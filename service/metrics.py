"""What the service counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from service.standstills import Standstill
from service.subscription_metrics import SubscriptionMetrics

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15)


class ServiceMetrics:
    """The service's metrics, in a registry of their own. Is an `AppendObserver`."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        made = self._registry
        self.appends = Counter(
            "penstock_appends", "Append requests that were committed", registry=made
        )
        self.events = Counter("penstock_events_appended", "Events committed", registry=made)
        self.batch = Histogram(
            "penstock_append_commit_requests",
            "Append requests per commit",
            buckets=_SIZES,
            registry=made,
        )
        self.batch_events = Histogram(
            "penstock_append_commit_events", "Events per commit", buckets=_SIZES, registry=made
        )
        self.append_seconds = Histogram(
            "penstock_append_seconds",
            "Time from a request's first byte to its answer",
            buckets=_SECONDS,
            registry=made,
        )
        self.queue = Gauge(
            "penstock_append_queue_events", "Events waiting or being committed", registry=made
        )
        self.refusals = Counter(
            "penstock_refusals", "Requests refused, by problem type", ["type"], registry=made
        )
        self.subscribers = Gauge("penstock_subscribers", "Open subscriptions", registry=made)
        self.evicted = Counter(
            "penstock_subscribers_evicted",
            "Subscriptions ended because the client took no bytes",
            registry=made,
        )
        self.delivered = Counter(
            "penstock_events_delivered", "Events sent to subscribers", registry=made
        )
        self.head = Gauge("penstock_head_position", "Last position of the store", registry=made)
        self.oldest_snapshot = Gauge(
            "penstock_oldest_snapshot_seconds",
            "Age of the oldest transaction that keeps a snapshot of the store's database open",
            registry=made,
        )
        self._still = Gauge(
            "penstock_standing_still",
            "1 for each thing that ought to move and does not",
            ["component", "name"],
            registry=made,
        )
        self._killed = Counter(
            "penstock_decider_calls_killed",
            "Calls of users' code that were killed: they did not end, or took too much memory",
            ["name"],
            registry=made,
        )
        self.up = Gauge("penstock_up", "1 while appends are accepted", registry=made)
        self.subscriptions = SubscriptionMetrics(made)

    def committed(self, *, requests: int, events: int, head: int) -> None:
        """A group was committed."""
        self.appends.inc(requests)
        self.events.inc(events)
        self.batch.observe(requests)
        self.batch_events.observe(events)
        self.head.set(head)

    def standing_still(self, found: Iterable[Standstill]) -> None:
        """Show what stands still now, and nothing else."""
        self._still.clear()
        for each in found:
            self._still.labels(each.component, each.name).set(1)

    def killed(self, of: str) -> None:
        """A call of users' code was killed."""
        self._killed.labels(of).inc()

    def queued(self, events: int) -> None:
        """So many events are waiting or being committed now."""
        self.queue.set(events)

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
