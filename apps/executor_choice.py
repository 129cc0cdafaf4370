"""Who works, as the settings have it: this process, or Spark's executors."""

from __future__ import annotations

from apps.settings import Settings
from lake.shipment import is_elsewhere
from pipeline.executor import MOST_PARTS, Executor, ExecutorChoice


def executor_choice(found: Settings, master: str) -> ExecutorChoice:
    """Return who chooses, for a session of Spark at `master`. Raises `Misconfigured`."""
    return ExecutorChoice(
        asked=Executor.named(found.text("pipeline.executor")),
        driver_bytes=found.number("pipeline.driver_bytes"),
        most_parts=1 if is_elsewhere(master) else MOST_PARTS,
        elsewhere=is_elsewhere(master),
    )
