"""Is it alive, is it ready, what does it count."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

from fastapi import APIRouter, Request, Response

from eventstore.postgres.old_snapshots import OpenSnapshot
from kernel.errors import PenstockError
from service.metrics import CONTENT_TYPE
from service.render import answer
from service.requests import runtime_of
from service.runtime import Runtime
from service.standstills import of_service

router = APIRouter()


@router.get("/health/live", summary="Does the process answer")
async def live() -> Response:
    """Answer 200 as long as the process serves requests at all."""
    return answer({"status": "live"})


@router.get("/health/ready", summary="Are appends and reads accepted")
async def ready(request: Request) -> Response:
    """Answer 200 when appends and reads are accepted, else 503; say why to bearers of the token.

    `degraded` answers 200 as well: something beside appends and reads stands still (a delivery,
    deciders whose files cannot be loaded, or of which calls had to be killed), or a transaction is
    open for so long that it slows others down.

    The registry is not among the reasons: it is needed for new event types only. Reasons quote
    other systems (PostgreSQL, the receivers of deliveries), which tell more than a probe may know.
    """
    runtime = runtime_of(request)
    look = await _look(runtime)
    account = _account(runtime, look.oldest)
    document: dict[str, object] = {
        "status": "unready" if look.reasons else "degraded" if of_service(account) else "ready"
    }
    if runtime.admission.bears(dict(request.scope["headers"])):
        document |= {"reasons": look.told(), **account}
    return answer(document, status=503 if look.reasons else 200)


@router.get("/metrics", summary="Metrics for Prometheus")
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    runtime = runtime_of(request)
    look = await _look(runtime)
    runtime.metrics.up.set(0 if look.reasons else 1)
    account = {"reasons": look.told(), **_account(runtime, look.oldest)}
    runtime.metrics.standing_still(of_service(account))
    if look.answers:
        with contextlib.suppress(PenstockError):  # Figures of groups are not worth a failed scrape.
            groups, deliveries = runtime.opened.groups, runtime.opened.deliveries.standings()
            runtime.metrics.subscriptions.show(
                await groups.standings(),
                waiting=groups.waiting,
                up={each.name: each.state == "running" for each in deliveries},
            )
    return Response(runtime.metrics.render(), media_type=CONTENT_TYPE)


def _account(runtime: Runtime, oldest: OpenSnapshot | None) -> dict[str, object]:
    """Say how everything stands that does not decide whether appends and reads are accepted."""
    found: dict[str, object] = {"deliveries": _deliveries(runtime), "deciders": _deciders(runtime)}
    if oldest is None or oldest.age_s < runtime.config.old_snapshot_s:
        return found
    return found | {"old_snapshot": asdict(oldest)}


async def _asked(runtime: Runtime) -> tuple[int, OpenSnapshot | None]:
    return await runtime.opened.store.head(), await _oldest_snapshot(runtime)


async def _oldest_snapshot(runtime: Runtime) -> OpenSnapshot | None:
    """Look for the oldest open snapshot, and show its age."""
    with contextlib.suppress(PenstockError):  # The store's own trouble is told already.
        oldest = await runtime.opened.store.oldest_snapshot()
        runtime.metrics.oldest_snapshot.set(0 if oldest is None else oldest.age_s)
        return oldest
    return None


def _deliveries(runtime: Runtime) -> list[dict[str, str | None]]:
    """Return how the deliverers stand. They do not decide whether appends are accepted."""
    if not runtime.is_open:
        return []
    return [
        {"name": each.name, "kind": each.kind, "state": each.state, "reason": each.reason}
        for each in runtime.opened.deliveries.standings()
    ]


def _deciders(runtime: Runtime) -> dict[str, object]:
    """Return whether the deciders are those of the files as they are now, and come to an end."""
    if not runtime.is_open:
        return {"state": "loaded", "reason": None, "stopped": []}
    deciders = runtime.opened.deciders
    stopped = [
        {"name": name, "calls": each.count, "cause": each.cause}
        for name, each in sorted(deciders.stopped.items())
    ]
    state = "outdated" if deciders.trouble else "stopped" if stopped else "loaded"
    return {"state": state, "reason": deciders.trouble, "stopped": stopped}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """How the store stands. Where its database does not answer, it was asked one question alone:
    each waits for seconds, and a probe or a scrape would give up before it was told.
    """

    reasons: Mapping[str, str]
    answers: bool = False
    oldest: OpenSnapshot | None = None

    def told(self) -> list[dict[str, str]]:
        """Say which parts keep appends from being taken, and why."""
        return [{"part": part, "reason": reason} for part, reason in self.reasons.items()]


async def _look(runtime: Runtime) -> _Look:
    if runtime.stopping:
        return _Look(reasons={"service": "stopping"})
    reasons: dict[str, str] = {}
    answers, oldest = False, None
    try:
        head, oldest = await runtime.store_question.answer(partial(_asked, runtime))
        runtime.metrics.head.set(head)
        answers = True
        runtime.opened.storage.check()
    except PenstockError as error:
        reasons["store"] = error.message
    trouble = runtime.opened.store.appender.trouble if runtime.is_open else None
    if trouble is not None:
        reasons["appender"] = trouble
    return _Look(reasons=reasons, answers=answers, oldest=oldest)
