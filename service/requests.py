"""What a request has beside its body: its limits, its headers, the service that serves it."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Request

from service.bodies import RequestContext
from service.config import ServiceConfig
from service.idempotency import idempotency_key
from service.runtime import Runtime
from service.tracing import tracing_of


def context_of(config: ServiceConfig, headers: Mapping[bytes, bytes]) -> RequestContext:
    """Return a request's limits, traces and idempotency key.

    Raises `InvalidRequest` for a header that cannot be used as given.
    """
    return RequestContext(
        limits=config.limits, tracing=tracing_of(headers), key=idempotency_key(headers)
    )


def runtime_of(request: Request) -> Runtime:
    """Return the service's parts."""
    runtime = request.app.state.runtime
    assert isinstance(runtime, Runtime)
    return runtime
