"""What the pipeline tells Prometheus: of its process, and of all that works in it."""

from __future__ import annotations

from prometheus_client import Gauge, Histogram

from cdc.copies.table_copier import CopyMetrics
from cdc.upkeep.slot_guard import SlotMetrics
from cdc.verification.verifier import VerifyMetrics
from pipeline.process.metrics import SECONDS, ProcessMetrics
from projections.run.projection_states import Run
from projections.sinks.sink_metrics import SinkMetrics


class PipelineMetrics(ProcessMetrics):
    """Those of the process, of projections, sinks and captured sources, in one registry."""

    def __init__(self) -> None:
        super().__init__()
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
        self.sinks = SinkMetrics(self.registry)
        self.slots = SlotMetrics(self.registry)
        self.copies = CopyMetrics(self.registry)
        self.verify = VerifyMetrics(self.registry)

    def ran(self, name: str, run: Run) -> None:
        """Book one run of a projection."""
        self.projection_seconds.labels(name).observe(run.milliseconds / 1000)
        self.projection_epoch.labels(name).set(run.table.as_of_epoch)
