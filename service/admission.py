"""Who may come in, before anything is asked of the store.

    Host -> Origin -> path -> token -> type of the body

A request is judged by its head alone, the same on the short way of appends and on every route.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hmac import compare_digest
from typing import Final

from service.access import Access
from service.http import Scope
from service.pages import PATHS as PAGES
from service.problems import HttpRefusal, refusal

_OPEN_PREFIX: Final = "/health/"
_LINES_PATH: Final = "/v1/import"
_LINES: Final = frozenset(
    {b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/json"}
)
_JSON: Final = b"application/json"
_FOREIGN_SITES: Final = (b"cross-site", b"same-site")
_HOSTS_KEPT: Final = 64


class Admission:
    """Judges the heads of requests."""

    def __init__(self, access: Access) -> None:
        self._open = not access.token
        self._bearer = access.bearer
        self._is_ours = lru_cache(maxsize=_HOSTS_KEPT)(
            lambda host: access.names(host.decode("latin-1"))
        )

    def check(self, scope: Scope) -> None:
        """Let a request in. Raises `HttpRefusal`.

        Health needs no token, so that probes carry no secret, and the pages for people need none,
        since a browser sends none.
        """
        headers = dict(scope["headers"])
        host = headers.get(b"host")
        # Every browser sends one; a client of HTTP/1.0 may not.
        if host is not None and not self._is_ours(host):
            raise _foreign_host(host)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            _check_page(headers)
        if "\x00" in scope["path"] or b"%00" in scope["query_string"]:
            raise refusal(
                400,
                "malformed-address",
                "The address has a character that nothing is named with",
                "the address contains U+0000 (%00)",
                "Leave it out.",
            )
        if not self.bears(headers) and not _is_open(scope["path"]):
            raise refusal(
                401,
                "unauthorized",
                "A token is needed",
                "the Authorization header is missing or wrong",
                "Send: Authorization: Bearer TOKEN. The workspace's token: penstock token",
                ("www-authenticate", "Bearer"),
            )
        media = headers.get(b"content-type", b"")
        if media != _JSON and scope["method"] not in ("GET", "HEAD") and _has_body(headers):
            _check_type(scope["path"], media)

    def bears(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request may see more than health's status."""
        return self._open or compare_digest(headers.get(b"authorization", b""), self._bearer)


def _has_body(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a request's head announces a body."""
    return headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers


def _check_page(headers: Mapping[bytes, bytes]) -> None:
    """Refuse what a page of another origin sends: nobody may write by a visitor's browser."""
    origin = headers.get(b"origin")
    foreign = origin is not None and origin.partition(b"://")[2] != headers.get(b"host")
    if foreign or headers.get(b"sec-fetch-site") in _FOREIGN_SITES:
        shown = origin.decode("latin-1") if origin is not None else "another site"
        raise refusal(
            403,
            "foreign-origin",
            "The request comes from another origin's page",
            f"a page of {shown} sent it",
            "Call the service from a program. A page needs a server of its own in between.",
        )


def _check_type(path: str, given: bytes) -> None:
    """Refuse a body that is not said to be JSON: a form's types are what any page may send."""
    media = given.partition(b";")[0].strip().lower()
    if media == _JSON or (media.startswith(b"application/") and media.endswith(b"+json")):
        return
    if path == _LINES_PATH and media in _LINES:
        return
    wanted = "application/x-ndjson" if path == _LINES_PATH else "application/json"
    raise refusal(
        415,
        "unsupported-media-type",
        "The body's type is not known here",
        f"content-type: {given.decode('latin-1') or 'none'}",
        f"Send: Content-Type: {wanted}",
    )


def _is_open(path: str) -> bool:
    return path.startswith(_OPEN_PREFIX) or path in PAGES


def _foreign_host(host: bytes) -> HttpRefusal:
    return refusal(
        421,
        "foreign-host",
        "The request is addressed to somebody else",
        f"{host.decode('latin-1')} is no name of this service",
        "Call it as localhost or by its address, or add the name to service.hosts.",
    )
