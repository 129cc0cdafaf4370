"""How commands, the pipeline and replays talk to the HTTP service of a store.

The standard library's client: others take longer to load than most commands take to answer.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import (
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

import orjson

from kernel.errors import (
    Conflict,
    ContractViolation,
    Incompatible,
    InvalidRequest,
    Misconfigured,
    NotFound,
    PenstockError,
    StoreDiverged,
    StreamGone,
    Unavailable,
)
from schemas import json_text

_TIMEOUT_S = 30.0
_NO_CONTENT = 204
_UNKNOWN_CALLER = 401
_IN_LINES = ("application/x-ndjson", "text/event-stream")
_SHOWN = 200
_TOKEN_REMEDY = (
    "Commands find the workspace's token by themselves: leave PENSTOCK_TOKEN unset, or give it "
    "what penstock token prints in the folder of the service."
)
_KINDS: Mapping[str, type[PenstockError]] = {
    "invalid-request": InvalidRequest,
    "incompatible": Incompatible,
    "store-diverged": StoreDiverged,
}
"""Errors whose status other errors have too, which end a command with another exit code."""


class ServiceClient:
    """A client of the service at an address. Use as a context manager."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        """Each call carries `headers`. Raises `Misconfigured` for what is no address."""
        if not url.startswith(("http://", "https://")):
            rest = url.rpartition("://")[2]
            raise Misconfigured(
                f"service.url is '{url}', which does not begin with http:// or https://",
                remedy=f"Write it whole: PENSTOCK_SERVICE_URL=http://{rest}",
            )
        if not _is_address(url):
            raise Misconfigured(
                f"service.url is '{url}', which is no address",
                remedy="Write it as PENSTOCK_SERVICE_URL=http://127.0.0.1:7070",
            )
        self.url = url.rstrip("/")
        self._headers = headers
        self._opener = opener_of(url)

    def __enter__(self) -> ServiceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is open."""
        self._opener.close()

    def get(self, path: str, **query: object) -> Any:
        """Return the document at a path. Parameters that are None are left out."""
        return self._call("GET", path, query=query)

    def post(
        self,
        path: str,
        document: object,
        *,
        headers: Mapping[str, str] | None = None,
        **query: object,
    ) -> Any:
        """Send a document and return the answer."""
        body = _written(document)
        return self._call("POST", path, query=query, body=body, headers=headers)

    def send_lines(self, path: str, lines: Iterator[bytes]) -> Any:
        """Send lines of any number and return the answer. Memory stays constant."""
        headers = {"content-type": "application/x-ndjson"}
        return self._call("POST", path, query={}, body=lines, headers=headers)

    def put(self, path: str, document: object) -> Any:
        """Set what is at a path and return the answer."""
        return self._call("PUT", path, query={}, body=_written(document))

    def delete(
        self, path: str, *, headers: Mapping[str, str] | None = None, **query: object
    ) -> Any:
        """Remove what is at a path and return the answer, None for an empty one."""
        return self._call("DELETE", path, query=query, headers=headers)

    @contextmanager
    def lines(self, path: str, *, accept: str = "*/*", **query: object) -> Iterator[Iterator[str]]:
        """Open an answer of any length and lend its lines."""
        with self._open("GET", path, query=query, headers={"accept": accept}) as answer:
            if answer.status >= 300:
                raise error_of(answer.status, answer.read())
            if answer.headers.get_content_type() not in _IN_LINES:
                raise _foreign(answer.status, answer.read(_SHOWN))
            yield _lines_of(self._parts_of(answer))

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object],
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        with (
            self._open(method, path, query=query, body=body, headers=headers) as answer,
            self._reached(),
        ):
            content = answer.read()
        if answer.status >= 300:
            raise error_of(answer.status, content)
        if answer.status == _NO_CONTENT:
            return None
        document = _object_of(content)
        if document is None:
            raise _foreign(answer.status, content)
        return document

    def _open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object],
        body: bytes | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HTTPResponse:
        given = urlencode(_given(query))
        request = Request(
            f"{self.url}{path}" + (f"?{given}" if given else ""),
            data=body,
            headers={"content-type": "application/json", **self._headers, **(headers or {})},
            method=method,
        )
        with self._reached():
            answer: HTTPResponse = self._opener.open(request, timeout=_TIMEOUT_S)
        return answer

    def _parts_of(self, answer: HTTPResponse) -> Iterator[bytes]:
        """Yield what comes, when it comes, without waiting for more."""
        while True:
            with self._reached():
                part = answer.read1()
            if not part:
                return
            yield part

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """Whatever goes wrong on the way to the service and back is `Unavailable`."""
        try:
            yield
        except (OSError, HTTPException, UnicodeError) as error:
            cause = error.reason if isinstance(error, URLError) else error
            cause = (cause.strerror if isinstance(cause, OSError) else None) or cause
            raise Unavailable(
                f"the service at {self.url} does not answer: {cause}",
                remedy="Start it with: penstock up. Or name it: PENSTOCK_SERVICE_URL=http://…",
            ) from error


def _is_address(url: str) -> bool:
    try:
        place = urlsplit(url)
        return bool(place.hostname) and place.port != 0 and url.isprintable() and " " not in url
    except ValueError:
        return False


def _written(document: object) -> bytes:
    """Return what is sent: numbers exactly as they were given."""
    try:
        return json_text.dump(document)
    except TypeError as error:
        raise InvalidRequest(
            f"the request cannot be written as JSON: {error}",
            remedy="Whole numbers, as a version or a position, have at most 64 bits.",
        ) from None


def _lines_of(parts: Iterator[bytes]) -> Iterator[str]:
    """Yield lines. Only a line feed ends one: texts may hold what Unicode calls a separator."""
    rest: list[bytes] = []
    for part in parts:
        first, *more = part.split(b"\n")
        rest.append(first)
        for line in more:
            yield b"".join(rest).decode()
            rest = [line]
    if last := b"".join(rest):
        yield last.decode()


def error_of(status: int, body: bytes) -> PenstockError:
    """Return the error that a problem document stands for, `Unavailable` for anything else."""
    problem = _object_of(body)
    if problem is None or status < 400:
        return _foreign(status, body)
    kind = _KINDS.get(str(problem.get("type"))) or _kind_of(status)
    if status == _UNKNOWN_CALLER:
        problem["remedy"] = _TOKEN_REMEDY
    known = {"type", "title", "status", "detail", "remedy", "message", "problem"}
    fields = {key: value for key, value in problem.items() if key not in known}
    return kind(
        str(problem.get("detail", f"HTTP {status}")),
        remedy=problem.get("remedy"),
        problem=problem.get("type", "unknown"),
        status=status,
        **fields,
    )


def _object_of(body: bytes) -> dict[str, Any] | None:
    """Return what a body says, None where it is no object in JSON: those of the service are."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None


def _foreign(status: int, body: bytes) -> Unavailable:
    """Return the error for what no service of ours answers: a proxy's page, another address."""
    text = " ".join(body.decode(errors="replace")[:_SHOWN].split())
    return Unavailable(
        f"the answer is not one of Penstock: status {status}, {text or 'without content'}",
        remedy="Is this the address of a Penstock service? PENSTOCK_SERVICE_URL (service.url) says "
        "which is asked; penstock status, whether it runs.",
        status=status,
    )


def _kind_of(status: int) -> type[PenstockError]:
    match status:
        case 404:
            return NotFound
        case 410:
            return StreamGone
        case 409 | 412:
            return Conflict
        case 400 | 413:
            return InvalidRequest
        case 429 | 502 | 503 | 504 | 507:
            return Unavailable
        case _ if status < 500:
            return ContractViolation
        case _:
            return PenstockError


def _given(query: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in query.items() if value is not None}


def opener_of(url: str) -> OpenerDirector:
    """Return what opens requests to a service of ours: every answer is one, whatever its status."""
    local = urlsplit(url).hostname in {"127.0.0.1", "localhost", "::1"}
    # A proxy of the environment is for other machines.
    direct = [ProxyHandler({})] if local else []
    return build_opener(_AnyStatus, _Http, _Https, *direct)


class _AnyStatus(HTTPErrorProcessor):
    """Hands every answer over, also one that tells of an error or of another address."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        return response

    https_response = http_response


class _Patient(HTTPConnection):
    """Reads the answer also when the service stopped reading the request: it tells why."""

    def request(self, *arguments: Any, **named: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):
            super().request(*arguments, **named)


class _PatientWithTls(_Patient, HTTPSConnection):
    pass


class _Http(HTTPHandler):
    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_Patient, request)


class _Https(HTTPSHandler):
    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(_PatientWithTls, request)


def is_loopback(host: str) -> bool:
    """Say whether a host is this machine, by its address or as localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
