"""What the service needs to know, read once from the settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from apps.access import Access, access_of
from apps.service.connections import ClientLimits
from apps.service.limits import BodyLimits
from apps.settings import Settings
from eventstore.intake import Mode
from kernel.errors import Misconfigured

MODES = ("infer", "strict")
_BESIDE_EVENT_BYTES = 64 * 1024
"""What a record has beside its event: headers, and what the transport adds."""

MAX_JSON_DEPTH = 200
"""JSON is rendered up to 254 levels deep, some of which an answer puts around the data."""


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


def service_config(settings: Settings) -> ServiceConfig:
    """Read the service's settings.

    Raises `Misconfigured` for a missing address, an unknown mode, and for a bind address that
    others can reach without a token.
    """
    mode = settings.text("schemas.mode")
    if mode not in MODES:
        raise Misconfigured(f"schemas.mode is {mode!r}, must be one of: {', '.join(MODES)}")
    config = ServiceConfig(
        dsn=settings.required("postgres.dsn"),
        registry_url=settings.required("registry.url"),
        host=settings.text("service.host"),
        port=settings.number("service.port"),
        access=access_of(settings, "service"),
        max_body_bytes=settings.number("service.max_body_bytes"),
        limits=BodyLimits(
            events=settings.number("service.max_events"),
            event_bytes=settings.number("service.max_event_bytes"),
            json_depth=settings.number("service.max_json_depth"),
            tags=settings.number("service.max_tags"),
        ),
        clients=_client_limits(settings),
        mode=cast(Mode, mode),
        min_free_bytes=settings.number("storage.min_free_bytes"),
        workspace=settings.workspace,
        lake=settings.lake,
        standby_s=settings.number("service.standby_seconds"),
        feed_memory_bytes=settings.number("service.feed_memory_bytes"),
        lookup_memory_bytes=settings.number("service.lookup_memory_bytes"),
        old_snapshot_s=settings.number("service.old_snapshot_seconds"),
        import_silence_s=settings.number("service.import_silence_seconds"),
        import_chunk_events=settings.number("service.import_chunk_events"),
        decider_processes=settings.number("service.decider_processes"),
        decider_memory_bytes=settings.number("service.decider_memory_bytes"),
        decider_seconds=settings.number("service.decider_seconds"),
    )
    largest = settings.number("kafka.max_record_bytes") - _BESIDE_EVENT_BYTES
    if config.limits.event_bytes > largest:
        raise Misconfigured(
            f"service.max_event_bytes is {config.limits.event_bytes}: Kafka takes events of at most"
            f" {largest} bytes here",
            remedy="Raise kafka.max_record_bytes, or lower service.max_event_bytes.",
        )
    if config.limits.json_depth > MAX_JSON_DEPTH:
        raise Misconfigured(
            f"service.max_json_depth is {config.limits.json_depth}, more than {MAX_JSON_DEPTH}",
            remedy="What is nested deeper could be taken, and not be shown again.",
        )
    return config


def _client_limits(settings: Settings) -> ClientLimits:
    return ClientLimits(
        page=settings.number("service.max_page"),
        subscriptions=settings.number("service.max_subscriptions"),
        slow_s=settings.number("service.slow_client_seconds"),
        idle_s=settings.number("service.idle_client_seconds"),
        request_s=settings.number("service.request_seconds"),
        streams=settings.number("service.max_streams"),
        connections=settings.number("service.max_connections"),
        header_bytes=settings.number("service.max_header_bytes"),
    )
