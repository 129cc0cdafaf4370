# Written by generate_sync.py from penstock_client/_async/connection.py: edit that file.
"""One service over HTTP: calls that are tried again, and answers that arrive in pieces."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from penstock_client.errors import (
    OutcomeUnknown,
    PenstockError,
    ServiceFault,
    StorageFull,
    Unauthorized,
    Unavailable,
    error_of,
)
from penstock_client.retry import Retry
from penstock_client.wire import dump, load

_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_HOW_TO_REPEAT = "Repeat the call with the same events: their ids make it happen once."


class Connection:
    """Sends requests. All of them may be repeated: writes carry ids that make them happen once."""

    def __init__(self, http: httpx.Client, retry: Retry) -> None:
        self._http = http
        self.retry = retry

    def call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        lines: bytes | None = None,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        longer_s: float = 0.0,
    ) -> Any:
        """Return the answer's JSON, None for an empty one; wait `longer_s` longer for it.

        `lines` is a body of lines, in place of `body`.

        Raises `OutcomeUnknown` when any of the tries may have taken effect and none was answered.
        """
        sent = dict(headers or {})
        if body is not None:
            sent["content-type"] = "application/json"
        elif lines is not None:
            sent["content-type"] = "application/x-ndjson"
        request = {
            "method": method,
            "url": path,
            "content": lines if body is None else dump(body),
            "params": dict(params or {}),
            "headers": sent,
            "timeout": self._patience(longer_s),
        }
        in_doubt: PenstockError | None = None
        failures = 0
        while True:
            try:
                return self._once(request)
            except PenstockError as error:
                if isinstance(error, OutcomeUnknown):
                    in_doubt = error
                failures += 1
                if not error.worth_a_retry or failures >= self.retry.attempts:
                    # A later try that was turned away does not settle what became of an earlier.
                    if in_doubt in (None, error) or not _turned_away(error):
                        raise
                    raise in_doubt from error
                self.pause(failures, error)

    def pause(self, failures: int, error: PenstockError) -> None:
        """Wait after so many failures in a row."""
        asked_s = error.retry_after_s if isinstance(error, Unavailable) else None
        time.sleep(self.retry.delay_s(failures, asked_s))

    @contextmanager
    def pieces(
        self, path: str, *, params: Mapping[str, Any], headers: Mapping[str, str], silence_s: float
    ) -> Iterator[tuple[str, Iterator[bytes]]]:
        """Open an answer without end; yield its content type and its pieces. Never tried again.

        Raises `Unavailable` when the connection breaks or is silent for longer than `silence_s`.
        """
        timeout = self._patience(silence_s - (self._http.timeout.read or 0.0))
        request = self._http.build_request(
            "GET", path, params=dict(params), headers=dict(headers), timeout=timeout
        )
        try:
            answer = self._http.send(request, stream=True)
        except httpx.TransportError as error:
            raise _unreachable(error) from error
        try:
            if not answer.is_success:
                raise error_of(answer.status_code, answer.read(), answer.headers)
            yield answer.headers.get("content-type", ""), answer.iter_bytes()
        except httpx.TransportError as error:
            raise _unreachable(error) from error
        finally:
            answer.close()

    def probe(self, path: str) -> tuple[int, Any]:
        """Return status and JSON of one answer, whatever the status. Never tried again."""
        try:
            answer = self._http.request("GET", path)
        except httpx.TransportError as error:
            raise _unreachable(error) from error
        return answer.status_code, load(answer.content)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _patience(self, longer_s: float) -> httpx.Timeout:
        usual = self._http.timeout
        read_s = None if usual.read is None else usual.read + longer_s
        return httpx.Timeout(connect=usual.connect, read=read_s, write=usual.write, pool=usual.pool)

    def _once(self, request: dict[str, Any]) -> Any:
        try:
            answer = self._http.request(**request)
        except httpx.TransportError as error:
            if request["method"] == "GET" or isinstance(error, _NEVER_SENT):
                raise _unreachable(error) from error
            raise OutcomeUnknown(
                f"the connection broke before the answer came: {_cause(error)}",
                remedy=_HOW_TO_REPEAT,
            ) from error
        if answer.is_success:
            return load(answer.content) if answer.content else None
        raise error_of(answer.status_code, answer.content, answer.headers)


def _turned_away(error: PenstockError) -> bool:
    """Return whether an answer says nothing of what the request asks for."""
    known = isinstance(error, (StorageFull, Unauthorized)) or type(error) is ServiceFault
    return known or error.worth_a_retry


def _unreachable(error: httpx.TransportError) -> Unavailable:
    return Unavailable(
        f"the service cannot be reached: {_cause(error)}",
        remedy="Check the address, and that the service runs: penstock status",
    )


def _cause(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
