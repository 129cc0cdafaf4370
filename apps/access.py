"""What the workspace says of who may call its HTTP services, and of how it calls them itself."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import Final, Literal
from urllib.parse import urlsplit

from apps.settings import TOKEN_FILE, Settings, kept_token
from eventstore.service_client import is_loopback
from kernel.errors import Misconfigured
from service.access import Access, without_port

MODES: Final = ("token", "none")
Section = Literal["service", "pipeline"]


def access_of(settings: Settings, section: Section) -> Access:
    """Return who may call the service or the pipeline; make the workspace's token at first use.

    Raises `Misconfigured` for an unknown mode, and for a bind address that others can reach where
    nobody has chosen a token.
    """
    host, mode = settings.text(f"{section}.host"), settings.text("service.auth")
    if mode not in MODES:
        raise Misconfigured(f"service.auth is {mode!r}, must be one of: {', '.join(MODES)}")
    local = is_loopback(host)
    chosen = bool(settings.text("service.token")) and not _is_kept(settings)
    if not local and (mode == "none" or not chosen):
        raise Misconfigured(
            f"{section}.host {host} can be reached by others, and no token is set",
            remedy=f"Set PENSTOCK_TOKEN to a long random text, or {section}.host to 127.0.0.1.",
        )
    listed = settings.text("service.hosts").split(",")
    names = {name.strip().lower() for name in listed} | {without_port(host).lower()}
    return Access(
        token="" if mode == "none" else token_of(settings),
        hosts=frozenset(names - {""}),
        addresses=not local,
    )


def token_of(settings: Settings) -> str:
    """Return the token that is set, or else the workspace's own, which is made at first use."""
    given = _given(settings)
    if given:
        return given
    path = settings.workspace / TOKEN_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_urlsafe(24))
    # Service and pipeline start together: the first one's token holds for both.
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    return kept_token(settings.workspace)


def bearing(settings: Settings, url: str) -> dict[str, str]:
    """Return the header that a call of our own carries.

    The workspace's own token is for the services of this machine: it is told to no other one.
    """
    token = _given(settings)
    if not token or (_is_kept(settings) and not is_loopback(urlsplit(url).hostname or "")):
        return {}
    # A header is bytes: what the service reads as UTF-8, Python's client would write otherwise.
    return {"authorization": f"Bearer {token}".encode().decode("latin-1")}


def _given(settings: Settings) -> str:
    """Return the token that is set. Raises `Misconfigured` for one that no header can carry."""
    token = settings.text("service.token")
    if any(ord(each) < 0x20 or ord(each) == 0x7F for each in token):
        raise Misconfigured(
            "service.token has a character that ends lines or moves terminals",
            remedy="Give PENSTOCK_TOKEN one line of text.",
        )
    return token


def _is_kept(settings: Settings) -> bool:
    return settings.values["service.token"].origin == str(TOKEN_FILE)
