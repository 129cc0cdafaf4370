"""What the sinks of projections tell Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from projections.sinks.projection_sink import SinkState

_GAUGES = {
    "penstock_sink_lag_seconds": "Seconds for which changes of rows have waited for the sink",
    "penstock_sink_lag_versions": "Versions of a projection's table that its sink has not sent",
    "penstock_sink_records": "Records or events that a sink has sent in all",
    "penstock_sink_rows": "Rows of a projection with a sink: the alerts that are raised",
}


class SinkMetrics:
    """Gauges by projection, and how often each sink failed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._gauges = {
            name: Gauge(name, text, ["projection"], registry=registry)
            for name, text in _GAUGES.items()
        }
        self._errors = Counter(
            "penstock_sink_errors_total",
            "Attempts of a sink that failed",
            ["projection"],
            registry=registry,
        )

    def stands(self, projection: str, state: SinkState) -> None:
        """Book how a sink stands."""
        newest = -1 if state.newest is None else state.newest
        sent = -1 if state.version is None else state.version
        shown = {
            "penstock_sink_lag_seconds": state.lag_s,
            "penstock_sink_lag_versions": newest - sent,
            "penstock_sink_records": state.records,
            "penstock_sink_rows": state.rows,
        }
        for name, value in shown.items():
            self._gauges[name].labels(projection).set(value)

    def failed(self, projection: str) -> None:
        """Count an attempt in vain."""
        self._errors.labels(projection).inc()

    def forgotten(self, projection: str) -> None:
        """Show a sink that is gone no more."""
        for gauge in self._gauges.values():
            gauge.remove_by_labels({"projection": projection})
