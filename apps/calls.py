"""Calls of our own HTTP services, by the standard library: others take longer to load."""

from __future__ import annotations

from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit
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

from apps.access import bearing
from apps.settings import Settings


def asked(settings: Settings, part: str, path: str, *, timeout_s: float) -> tuple[int, Any] | None:
    """Return status and document of what the pipeline or the service answers at a path.

    None when it does not answer, or not in JSON.
    """
    url = settings.text(f"{part}.url")
    if not url:
        return None
    try:
        request = Request(f"{url}{path}", headers=bearing(settings, url))
        with opener_of(url).open(request, timeout=timeout_s) as answer:
            return answer.status, orjson.loads(answer.read())
    except (OSError, HTTPException, ValueError):
        return None


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
