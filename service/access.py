"""Who may call our HTTP services: bearers of the workspace's token, under names that are ours.

A page in a browser reaches loopback too. It can name no token, and a name that its owner points at
127.0.0.1 (DNS rebinding) is none of ours: either check alone stops it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from dataclasses import dataclass
from typing import Final

ANY_HOST: Final = "*"
_AUTHORITY: Final = re.compile(r"(?:\[[^\[\]]*\]|[^:\[\]]*)(?::\d*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may call. An empty `token` lets everybody in.

    `hosts` are names that a request may address beside those of this machine's loopback, and `*`
    among them stands for all. `addresses`: whether any IP address will do, as it must where the
    service listens to others.
    """

    token: str = ""
    hosts: frozenset[str] = frozenset()
    addresses: bool = False

    def names(self, host: str) -> bool:
        """Return whether a `Host` header names this service."""
        if not _AUTHORITY.fullmatch(host):
            return False
        name = without_port(host).lower()
        if name == "localhost" or name in self.hosts or ANY_HOST in self.hosts:
            return True
        try:
            return ipaddress.ip_address(name).is_loopback or self.addresses
        except ValueError:
            return False

    def bears(self, authorization: bytes) -> bool:
        """Return whether an `Authorization` header carries the token, if one is needed."""
        scheme, _, given = authorization.partition(b" ")
        return not self.token or (
            # Names of schemes are the same in any case (RFC 9110, 11.1).
            scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self.token.encode())
        )


def without_port(host: str) -> str:
    """Return the name or address of `name:port`, `[address]:port`, or of either without a port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]
