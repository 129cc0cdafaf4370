"""What the pipeline's process tells Prometheus of epochs, lag, and what stands still."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from pipeline.commit.manifest_rows import Committed
from pipeline.position.lag import SourceLag

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
SOURCE_LAG: Mapping[str, str] = {
    "bytes": "WAL of a captured database that is not known to be in the tables",
    "seconds": "Age of the oldest commit of a captured database that the tables may not have",
    "records": "Records of a captured database in Kafka that no epoch has (markers included)",
}
WAITING = (
    (
        "penstock_standing_still",
        "1 for each thing that ought to move and does not",
        ("component", "name"),
    ),
    (
        "penstock_quarantine_records",
        "Records that wait in quarantine for a decision",
        ("topic",),
    ),
)


class ProcessMetrics:
    """Counters and gauges of one pipeline process; who works in it adds those of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.step_seconds = Histogram(
            "penstock_epoch_step_seconds",
            "Duration of one step of an epoch",
            ["step"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.rows = Counter(
            "penstock_rows_total", "Rows by what became of them", ["what"], registry=self.registry
        )
        self.epoch = Gauge("penstock_epoch", "Newest committed epoch", registry=self.registry)
        lags = {
            "penstock_lag_events": "Events in the store that the log does not have yet",
            "penstock_lag_seconds": "Age of the oldest event that the log does not have yet",
        }
        self.lag_events, self.lag_seconds = (
            Gauge(name, text, ["store"], registry=self.registry) for name, text in lags.items()
        )
        self._source_lag = {
            what: Gauge(f"penstock_source_lag_{what}", text, ["source"], registry=self.registry)
            for what, text in SOURCE_LAG.items()
        }
        self.freshness = Histogram(
            "penstock_freshness_seconds",
            "From the append of an event to the commit of its epoch, worst of each epoch",
            buckets=SECONDS,
            registry=self.registry,
        )
        self.restarts = Counter(
            "penstock_ingest_restarts_total",
            "Times that the stream was started again after an error",
            registry=self.registry,
        )
        self._still, self._quarantine = (
            Gauge(name, text, labels, registry=self.registry) for name, text, labels in WAITING
        )
        said = "1 while a server beside the pipeline answers it"
        self.part_up = Gauge("penstock_part_up", said, ["part"], registry=self.registry)

    def committed(self, done: Committed) -> None:
        """Book a committed epoch."""
        self.epoch.set(done.epoch)
        for step, milliseconds in done.timings_ms.items():
            self.step_seconds.labels(step).observe(milliseconds / 1000)
        for what, count in done.counts.items():
            if what.startswith("freshness_ms"):
                continue
            self.rows.labels(what).inc(count)
        worst = done.counts.get("freshness_ms_max")
        if worst is not None:
            self.freshness.observe(worst / 1000)

    def source_lag(self, source: str, lag: SourceLag) -> None:
        """Book how far a captured source is ahead of the tables."""
        for what, value in asdict(lag).items():
            if what in SOURCE_LAG:
                self._source_lag[what].labels(source).set(value)

    def standing_still(self, found: Iterable[tuple[str, str]]) -> None:
        """Book what stands still now, by component and name, and nothing else."""
        self._still.clear()
        for component, name in found:
            self._still.labels(component, name).set(1)

    def in_quarantine(self, state: Mapping[str, Any]) -> None:
        """Book the records that wait in quarantine now, by topic."""
        self._quarantine.clear()
        for topic, records in state.get("quarantine", {}).items():
            self._quarantine.labels(topic).set(records)

    def render(self) -> bytes:
        """Return the exposition text."""
        return bytes(generate_latest(self.registry))
