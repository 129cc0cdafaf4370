"""Webhooks, signed as the Standard Webhooks specification says (standardwebhooks.com).

The signature is HMAC-SHA256 of `{webhook-id}.{webhook-timestamp}.{body}` under the bytes that the
secret `whsec_<base64>` stands for. The timestamp is that of the attempt, the id that of the event.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from datetime import timedelta

import httpx
import orjson

from delivery.outcome import Document, Hopeless, Outcome, Sent, TryAgain
from kernel.clock import Clock, SystemClock
from kernel.errors import Misconfigured
from schemas.json_codec import json_default

SECRET_PREFIX = "whsec_"
_SECRET_BYTES = range(24, 65)
_READ_BYTES = 4_096
"""Of an answer: enough to show why; the rest is not read."""
_SHOWN_CHARS = 200
_MAX_DELAY = timedelta(days=1)
_GONE = 410


def signing_key(secret: str) -> bytes:
    """Return the bytes of a secret `whsec_…`, or raise `Misconfigured`."""
    try:
        if secret.startswith(SECRET_PREFIX):
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
            if len(key) in _SECRET_BYTES:
                return key
    except ValueError:
        pass  # Of text beyond ASCII it is no `binascii.Error`.
    raise Misconfigured(
        "the webhook's secret is not whsec_ and the base64 of 24 to 64 bytes",
        remedy='Make one: echo "whsec_$(openssl rand -base64 32)"',
    )


def signature(key: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of the header `webhook-signature`."""
    signed = f"{webhook_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class WebhookSender:
    """A `Sender` that posts each event to one URL. Redirects are refused, not followed."""

    def __init__(
        self, *, url: str, key: bytes, timeout_s: float, clock: Clock | None = None
    ) -> None:
        self._url = url
        self._key = key
        self._timeout_s = timeout_s
        self._clock = clock or SystemClock()
        local = _host_of(url) in {"127.0.0.1", "localhost", "::1"}
        self._http = httpx.AsyncClient(
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=not local,
            # Without TLS there is no need to read all certificates of the machine.
            verify=url.startswith("https:"),
            headers={"user-agent": "penstock", "content-type": "application/json"},
        )

    async def send(self, message_id: str, document: Document) -> Outcome:
        """Post an event; 2xx is success, 410 the end of it, everything else is tried again."""
        body = _body(document)
        timestamp = int(self._clock.now().timestamp())
        headers = {
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": signature(self._key, message_id, timestamp, body),
        }
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._http.stream("POST", self._url, content=body, headers=headers) as answer,
            ):
                return await _judged(answer)
        except TimeoutError:
            return TryAgain(reason=f"no answer within {self._timeout_s:g} s")
        except httpx.HTTPError as error:
            return TryAgain(reason=f"{type(error).__name__}: {error}")

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


def _host_of(url: str) -> str:
    try:
        return httpx.URL(url).host
    except (httpx.InvalidURL, ValueError) as error:
        raise Misconfigured(
            f"the webhook's url cannot be used: {error}",
            remedy="Write it as https://shop.example/events, with a port as :8443.",
        ) from None


def _body(document: Document) -> bytes:
    return orjson.dumps(
        {
            "type": f"{document['category']}.{document['type']}",
            "timestamp": document["occurred_at"],
            "data": document,
        },
        default=json_default,
        option=orjson.OPT_UTC_Z,
    )


async def _judged(answer: httpx.Response) -> Outcome:
    if answer.is_success:
        return Sent()
    read = b""
    async for chunk in answer.aiter_raw(_READ_BYTES):
        read += chunk
        if len(read) >= _READ_BYTES:
            break
    text = read.decode("utf-8", errors="replace")[:_SHOWN_CHARS].strip()
    reason = f"HTTP {answer.status_code}" + (f": {text}" if text else "")
    if answer.status_code == _GONE:
        return Hopeless(reason=reason)
    return TryAgain(reason=reason, delay=_retry_after(answer.headers.get("retry-after", "")))


def _retry_after(text: str) -> timedelta | None:
    """Read the seconds of `Retry-After`; dates are not worth their ambiguity."""
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(timedelta(seconds=int(text)), _MAX_DELAY)
