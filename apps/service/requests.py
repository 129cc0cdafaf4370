"""What counts for all events of one request, from its headers and the settings."""

from __future__ import annotations

from collections.abc import Mapping

from apps.service.bodies import RequestContext
from apps.service.config import ServiceConfig
from apps.service.idempotency import idempotency_key
from apps.service.tracing import tracing_of


def context_of(config: ServiceConfig, headers: Mapping[bytes, bytes]) -> RequestContext:
    """Return a request's limits, traces and idempotency key.

    Raises `InvalidRequest` for a header that cannot be used as given.
    """
    return RequestContext(
        limits=config.limits, tracing=tracing_of(headers), key=idempotency_key(headers)
    )
