"""What the service needs to know: its settings as values, and whom it asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eventstore.intake import Mode
from service.access import Access
from service.connections import ClientLimits
from service.limits import BodyLimits


def _no_account() -> None:
    """Say nothing, as where no pipeline is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """The service's settings."""

    dsn: str
    registry_url: str
    host: str = "127.0.0.1"
    port: int = 7070
    access: Access = field(default_factory=Access)
    max_body_bytes: int = 4 * 1024 * 1024
    limits: BodyLimits = field(default_factory=BodyLimits)
    clients: ClientLimits = field(default_factory=ClientLimits)
    mode: Mode = "infer"
    min_free_bytes: int = 0
    workspace: Path = Path()
    lake: str = "lake"
    heartbeat_s: float = 15.0
    lease_ttl_s: float = 10.0
    standby_s: float = 1.0
    feed_memory_bytes: int = 32 * 1024 * 1024
    lookup_memory_bytes: int = 256 * 1024 * 1024
    old_snapshot_s: float = 3_600.0
    import_silence_s: float = 60.0
    import_chunk_events: int = 500
    decider_processes: int = 4
    decider_memory_bytes: int = 512 * 1024 * 1024
    decider_seconds: float = 5.0
    pipeline_account: Callable[[], Mapping[str, Any] | None] = _no_account
    """Asks the pipeline what it says of itself; None when it does not answer."""
