"""Is it alive, is it ready, what does it count."""

from __future__ import annotations

import contextlib

import orjson
from fastapi import APIRouter, Request, Response

from apps.service.metrics import CONTENT_TYPE
from apps.service.requests import runtime_of
from apps.service.runtime import Runtime
from kernel.errors import PenstockError

router = APIRouter()


@router.get("/health/live", summary="Does the process answer")
async def live() -> Response:
    """Answer 200 as long as the process serves requests at all."""
    return Response(b'{"status":"live"}', media_type="application/json")


@router.get("/health/ready", summary="Are appends and reads accepted")
async def ready(request: Request) -> Response:
    """Answer 200 when appends and reads are accepted, else 503; say why to bearers of the token.

    `degraded` answers 200 as well: a delivery does not work.

    The registry is not among the reasons: it is needed for new event types only. Reasons quote
    other systems (PostgreSQL, the receivers of deliveries), which tell more than a probe may know.
    """
    runtime = runtime_of(request)
    reasons, deliveries = await _reasons(runtime), _deliveries(runtime)
    stopped = any(each["state"] != "running" for each in deliveries)
    document: dict[str, object] = {
        "status": "unready" if reasons else "degraded" if stopped else "ready"
    }
    if runtime.admission.bears(dict(request.scope["headers"])):
        document["reasons"] = [{"part": part, "reason": reason} for part, reason in reasons.items()]
        document["deliveries"] = deliveries
        document["deciders"] = _deciders(runtime)
    return Response(
        orjson.dumps(document),
        status_code=503 if reasons else 200,
        media_type="application/json",
    )


@router.get("/metrics", summary="Metrics for Prometheus")
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    runtime = runtime_of(request)
    reasons = await _reasons(runtime)
    runtime.metrics.up.set(0 if reasons else 1)
    with contextlib.suppress(PenstockError):  # Figures of groups are not worth a failed scrape.
        groups, deliveries = runtime.opened.groups, runtime.opened.deliveries.standings()
        runtime.metrics.subscriptions.show(
            await groups.standings(),
            waiting=groups.waiting,
            up={each.name: each.state == "running" for each in deliveries},
        )
    return Response(runtime.metrics.render(), media_type=CONTENT_TYPE)


def _deliveries(runtime: Runtime) -> list[dict[str, str | None]]:
    """Return how the deliverers stand. They do not decide whether appends are accepted."""
    if not runtime.is_open:
        return []
    return [
        {"name": each.name, "kind": each.kind, "state": each.state, "reason": each.reason}
        for each in runtime.opened.deliveries.standings()
    ]


def _deciders(runtime: Runtime) -> dict[str, str | None]:
    """Return whether the deciders are those of the files as they are now."""
    trouble = runtime.opened.deciders.trouble if runtime.is_open else None
    return {"state": "loaded" if trouble is None else "outdated", "reason": trouble}


async def _reasons(runtime: Runtime) -> dict[str, str]:
    if runtime.stopping:
        return {"service": "stopping"}
    try:
        store = runtime.opened.store
        runtime.metrics.head.set(await store.head())
        runtime.opened.storage.check()
    except PenstockError as error:
        return {"store": error.message}
    return {} if store.appender.trouble is None else {"appender": store.appender.trouble}
