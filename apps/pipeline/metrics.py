"""What the pipeline tells Prometheus, and the small HTTP server that serves it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from apps.pipeline.slots import SlotMetrics
from apps.pipeline.snapshots import CopyMetrics
from apps.pipeline.source_lag import SourceLag
from apps.pipeline.verifying import VerifyMetrics
from apps.standstills import Standstill, of_pipeline
from projections.runner.manifest import Committed

SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
SOURCE_LAG: Mapping[str, str] = {
    "bytes": "WAL of a captured database that is not known to be in the tables",
    "seconds": "Age of the oldest commit of a captured database that the tables may not have",
    "records": "Records of a captured database in Kafka that no epoch has (markers included)",
}


class PipelineMetrics:
    """Counters and gauges of one pipeline process."""

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
            "events": "Events in the store that the log does not have yet",
            "seconds": "Age of the oldest event that the log does not have yet",
        }
        self.lag_events, self.lag_seconds = (
            Gauge(f"penstock_lag_{what}", text, ["store"], registry=self.registry)
            for what, text in lags.items()
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
        self.projection_seconds = Histogram(
            "penstock_projection_run_seconds",
            "Duration of one run of a projection",
            ["projection"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.projection_epoch = Gauge(
            "penstock_projection_epoch",
            "Epoch up to which a projection has taken input",
            ["projection"],
            registry=self.registry,
        )
        self.restarts = Counter(
            "penstock_ingest_restarts_total",
            "Times that the stream was started again after an error",
            registry=self.registry,
        )
        self._still = Gauge(
            "penstock_standing_still",
            "1 for each thing that ought to move and does not",
            ["component", "name"],
            registry=self.registry,
        )
        self.slots = SlotMetrics(self.registry)
        self.copies = CopyMetrics(self.registry)
        self.verify = VerifyMetrics(self.registry)

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

    def standing_still(self, found: Iterable[Standstill]) -> None:
        """Book what stands still now, and nothing else."""
        self._still.clear()
        for each in found:
            self._still.labels(each.component, each.name).set(1)

    def render(self) -> bytes:
        """Return the exposition text."""
        return bytes(generate_latest(self.registry))


Health = Callable[[], tuple[bool, Mapping[str, object]]]
"""Says whether the pipeline is ready, and what state its parts are in."""


def serve(host: str, port: int, metrics: PipelineMetrics, health: Health) -> ThreadingHTTPServer:
    """Serve `/health/live`, `/health/ready` and `/metrics` from a thread; returns the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            match self.path:
                case "/health/live":
                    self._answer(200, "application/json", b'{"live":true}')
                case "/health/ready":
                    ready, state = health()
                    body = json.dumps({"ready": ready, **state}, default=str).encode()
                    self._answer(200 if ready else 503, "application/json", body)
                case "/metrics":
                    metrics.standing_still(of_pipeline(health()[1]))
                    self._answer(200, CONTENT_TYPE_LATEST, metrics.render())
                case _:
                    self._answer(404, "application/json", b'{"title":"not found"}')

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Stay silent: probes come every second."""

    server = ThreadingHTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
