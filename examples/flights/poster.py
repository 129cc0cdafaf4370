"""Posts events over HTTP as any service would, and believes only what was acknowledged.

Many streams travel in one `POST /v1/append`, each once. Requests follow each other, so that
positions keep the order of sending: with a year in a minute, two requests that overtake each other
would be hours apart in event time, and no lateness would be what it says. Within a request events
are put together by stream, so one spans at most `SPAN`. The next body is encoded meanwhile.
A request that got no clear answer is sent again unchanged: its event ids make that harmless.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import httpx
import orjson

from examples.flights.posting_order import PostedEvent
from kernel.errors import ContractViolation, Overloaded, PenstockError, StorageFull, Unavailable
from kernel.retry import Backoff, retrying

EVENTS_PER_REQUEST = 500
SPAN = timedelta(hours=2)
"""How much event time one request covers at most."""
_TIMEOUT_S = 30.0
_PATIENCE = Backoff(attempts=60, base_s=0.05, cap_s=2.0)
_BUSY = {httpx.codes.TOO_MANY_REQUESTS}
_UNCLEAR = {
    httpx.codes.BAD_GATEWAY,
    httpx.codes.SERVICE_UNAVAILABLE,
    httpx.codes.GATEWAY_TIMEOUT,
}


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was acknowledged so far. `repeated` requests had been answered before."""

    events: int = 0
    requests: int = 0
    retries: int = 0
    repeated: int = 0
    last_position: int = 0


class Poster:
    """Sends events to one service, in order. Not for use from several threads."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        tally: Tally | None = None,
        per_request: int = EVENTS_PER_REQUEST,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        self._client = httpx.Client(
            base_url=url, headers=headers, timeout=_TIMEOUT_S, transport=transport
        )
        self._per_request = per_request
        self._sleep = sleep
        self.tally = tally or Tally()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def post(
        self, events: Iterable[PostedEvent], acknowledged: Callable[[Tally], None] | None = None
    ) -> Tally:
        """Send all `events`; `acknowledged` is called after each answer.

        Raises `ContractViolation` with the service's complaint when it refuses, `Unavailable`
        when it does not answer for about a minute and a half: what was sent before is in.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="encode") as encoder:
            bodies = ((body_of(b), len(b)) for b in batches(events, most=self._per_request))
            for body, count in _ahead(encoder, bodies):
                self._send(body, count)
                if acknowledged is not None:
                    acknowledged(self.tally)
        return self.tally

    def _send(self, body: bytes, count: int) -> None:
        attempts = 0

        def attempt() -> httpx.Response:
            nonlocal attempts
            attempts += 1
            try:
                response = self._client.post("/v1/append", content=body)
            except httpx.TransportError as error:
                raise Unavailable(f"the service does not answer: {error!r}") from error
            refusal = refusal_of(response)
            if refusal is not None:
                raise refusal
            return response

        response = retrying(attempt, backoff=_PATIENCE, sleep=self._sleep)
        places = orjson.loads(response.content)["appends"]
        kept = sum(place["last_version"] - place["first_version"] + 1 for place in places)
        if kept != count:
            raise ContractViolation(f"the service acknowledged {kept} events of {count}")
        tally = self.tally
        tally.events += count
        tally.requests += 1
        tally.retries += attempts - 1
        tally.repeated += response.status_code == httpx.codes.OK
        tally.last_position = max(
            tally.last_position, *(place["last_position"] for place in places)
        )


def batches(events: Iterable[PostedEvent], *, most: int) -> Iterator[list[PostedEvent]]:
    """Cut events, in order, into batches of at most `most` events and `SPAN` of time."""
    batch: list[PostedEvent] = []
    for event in events:
        if batch and (len(batch) == most or event.posted_at - batch[0].posted_at > SPAN):
            yield batch
            batch = []
        batch.append(event)
    if batch:
        yield batch


def body_of(events: Sequence[PostedEvent]) -> bytes:
    """Encode one `POST /v1/append`: streams in the order of their first event, each once."""
    streams: dict[str, list[dict[str, object]]] = {}
    for each in events:
        streams.setdefault(each.stream, []).append(_document(each))
    return orjson.dumps(
        {
            "appends": [
                {"stream": stream, "expected_version": "any", "events": documents}
                for stream, documents in streams.items()
            ]
        }
    )


def refusal_of(response: httpx.Response) -> PenstockError | None:
    """Return the error that an answer stands for, None for an accepted request."""
    if response.is_success:
        return None
    complaint = _complaint(response)
    if response.status_code in _BUSY:
        return Overloaded(complaint)
    if response.status_code in _UNCLEAR:
        return Unavailable(complaint)
    if response.status_code == httpx.codes.INSUFFICIENT_STORAGE:
        return StorageFull(complaint)
    return ContractViolation(complaint)


def _complaint(response: httpx.Response) -> str:
    try:
        problem: Any = orjson.loads(response.content)
        said = f"{problem.get('title', '')}: {problem.get('detail', '')}"
    except (orjson.JSONDecodeError, AttributeError):
        said = response.text[:200]
    return f"the service answered {response.status_code}, {said}"


def _document(posted: PostedEvent) -> dict[str, object]:
    event = posted.event
    return {
        "id": event.id,
        "type": event.type,
        "data": event.data,
        "occurred_at": event.occurred_at,
    }


def _ahead(
    encoder: ThreadPoolExecutor, bodies: Iterator[tuple[bytes, int]]
) -> Iterator[tuple[bytes, int]]:
    """Yield bodies, the next one always being encoded while this one is used."""
    coming: Future[tuple[bytes, int] | None] = encoder.submit(next, bodies, None)
    while (ready := coming.result()) is not None:
        coming = encoder.submit(next, bodies, None)
        yield ready
