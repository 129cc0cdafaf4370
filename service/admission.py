"""Who may come in, before anything is asked of the store.

    Host -> Origin -> path -> token -> type of the body

A request is judged by its head alone, the same on the short way of appends and on every route.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

from service.access import Access
from service.http import Scope
from service.pages import PATHS as PAGES
from service.problems import HttpRefusal, refusal

_OPEN_PREFIX: Final = "/health/"
_TABLES: Final = b"/v1/tables/"
"""Whose names have a `/`, as current/shop.public.orders."""
_LINES_PATH: Final = "/v1/import"
_LINES: Final = frozenset(
    {b"application/x-ndjson", b"application/ndjson", b"application/jsonl", b"application/json"}
)
_JSON: Final = b"application/json"
_CHARSET: Final = re.compile(rb"(?:^|[;\s])charset\s*=\s*\"?([^\s\";]*)")
_UTF8: Final = (b"utf-8", b"utf8", b"us-ascii")
_FOREIGN_SITES: Final = (b"cross-site", b"same-site")
_HOSTS_KEPT: Final = 64
_SAID_ONCE: Final = (
    b"host",
    b"origin",
    b"authorization",
    b"content-type",
    b"content-encoding",
    b"idempotency-key",
    b"if-match",
    b"if-none-match",
    b"x-correlation-id",
    b"x-causation-id",
    b"last-event-id",
)
_OF_CLOUD_EVENT: Final = b"ce-"
_LISTS: Final = (b"accept", b"prefer")
"""Headers that may stand on several lines, which are read as one."""


class Admission:
    """Judges the heads of requests."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._is_ours = lru_cache(maxsize=_HOSTS_KEPT)(
            lambda host: access.names(host.decode("latin-1"))
        )

    def check(self, scope: Scope) -> None:
        """Let a request in. Raises `HttpRefusal`.

        Health needs no token, so that probes carry no secret, and the pages for people need none,
        since a browser sends none.
        """
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):
            _check_repeated(scope["headers"])
            scope["headers"] = _joined(scope["headers"])
        host = headers.get(b"host")
        # Every browser sends one; a client of HTTP/1.0 may not.
        if host is None and scope["http_version"] != "1.0":
            raise _unclear("it has no Host header")
        if host is not None and not self._is_ours(host):
            raise _foreign_host(host)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            _check_page(headers)
        if b"%" in scope["raw_path"] or b"%" in scope["query_string"]:
            _check_address(scope["raw_path"], scope["query_string"])
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
        if media == _JSON and b"content-encoding" not in headers:
            return
        if scope["method"] not in ("GET", "HEAD") and _has_body(headers):
            _check_type(scope["path"], media, headers.get(b"content-encoding", b"identity"))

    def bears(self, headers: Mapping[bytes, bytes]) -> bool:
        """Return whether a request may see more than health's status."""
        return self._access.bears(headers.get(b"authorization", b""))


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


def _check_repeated(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a request that says twice what it is judged by: another server may read the other."""
    names = [name for name, _ in headers]
    attributes = {name for name in names if name.startswith(_OF_CLOUD_EVENT)}
    for name in (*_SAID_ONCE, *sorted(attributes)):
        if names.count(name) > 1:
            raise _unclear(f"it has several {name.decode().title()} headers")


def _joined(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return headers in which each list stands on one line (RFC 9110, 5.3)."""
    lists: dict[bytes, list[bytes]] = {}
    others = []
    for name, value in headers:
        if name in _LISTS:
            lists.setdefault(name, []).append(value)
        else:
            others.append((name, value))
    return others + [(name, b", ".join(values)) for name, values in lists.items()]


def _check_address(path: bytes, query: bytes) -> None:
    """Refuse what is no text, and would be taken for other text, U+0000, and a `/` within a name:
    what stands behind it would be taken for the next part of the path.
    """
    if b"%2f" in path.lower() and not path.startswith(_TABLES):
        raise _unnamed(
            "a name in the address contains '/' (%2F)",
            "Name it without '/': a stream is category-id, as order-1042.",
        )
    try:
        ours = "\x00" not in unquote_to_bytes(path + b"?" + query).decode()
    except UnicodeDecodeError:
        ours = False
    if not ours:
        raise _unnamed(
            "the address contains U+0000 (%00), or bytes that are not UTF-8",
            "Leave it out, or write names in UTF-8, each byte as %XX.",
        )


def _unnamed(what: str, remedy: str) -> HttpRefusal:
    title = "The address has a character that nothing is named with"
    return refusal(400, "malformed-address", title, what, remedy)


def _check_type(path: str, given: bytes, encoding: bytes) -> None:
    """Refuse a body that is not said to be JSON: a form's types are what any page may send."""
    if encoding.lower() != b"identity":
        raise refusal(
            415,
            "unsupported-media-type",
            "The body is compressed",
            f"content-encoding: {encoding.decode('latin-1')}",
            "Send the body as it is, without Content-Encoding.",
        )
    media, _, parameters = given.lower().partition(b";")
    media = media.strip()
    charset = _CHARSET.search(parameters)
    if charset is not None and charset[1] not in _UTF8:
        raise refusal(
            415,
            "unsupported-media-type",
            "The body's encoding is not known here",
            f"content-type: {given.decode('latin-1')}",
            "Send the body in UTF-8, as all JSON is (RFC 8259).",
        )
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


def _unclear(why: str) -> HttpRefusal:
    return refusal(
        400,
        "malformed-request",
        "The request does not say clearly what it is",
        why,
        "Send each header that counts once, and Host with HTTP/1.1, as clients do by themselves.",
    )


def _foreign_host(host: bytes) -> HttpRefusal:
    return refusal(
        421,
        "foreign-host",
        "The request is addressed to somebody else",
        f"{host.decode('latin-1') or 'an empty Host'} is no name of this service",
        "Call it as localhost or by its address, or add the name to service.hosts.",
    )
