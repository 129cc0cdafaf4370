"""Run the HTTP service: `python -m apps.service`. Settings come from `apps.settings`."""

from __future__ import annotations

import argparse
import gc
import logging
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

from apps.access import access_of
from apps.accounts import account
from apps.settings import Settings, load
from eventstore.intake import Mode
from kernel import failpoints
from kernel.errors import Misconfigured, PenstockError, exit_code
from schemas.registry import ConfluentRegistry
from service.config import ServiceConfig
from service.connections import ClientLimits
from service.limits import BodyLimits
from service.runtime import Runtime
from service.serving import server_of

MODES = ("infer", "strict")
_BESIDE_EVENT_BYTES = 64 * 1024
"""What a record has beside its event: headers, and what the transport adds."""

MAX_JSON_DEPTH = 200
"""JSON is rendered up to 254 levels deep, some of which an answer puts around the data."""


def main() -> None:
    """Serve until SIGTERM or SIGINT; what is queued by then is committed and answered."""
    parser = argparse.ArgumentParser(prog="python -m apps.service", description=__doc__)
    parser.add_argument("--workspace", type=Path, default=None)
    arguments = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    # The readers' pool says each second that PostgreSQL is away; readiness says it too.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        failpoints.arm_from_environment()
        config = service_config(load(arguments.workspace))
        runtime = Runtime(config, ConfluentRegistry(config.registry_url))
    except PenstockError as error:
        print(f"error: {error.message}\n  fix: {error.remedy}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from error
    server = server_of(runtime)
    # uvicorn raises the signal again once it has stopped: a stop that was asked for is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    # Requests leave no cycles behind: walking through all live objects every 700 is for nothing.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    server.run()
    if not server.started:
        raise SystemExit(1)


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
        pipeline_account=partial(_pipeline_account, settings.workspace),
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


def _pipeline_account(workspace: Path) -> Mapping[str, Any] | None:
    """Ask where the pipeline answers now: another one may have been started since."""
    return account(load(workspace), "pipeline")


if __name__ == "__main__":
    main()
