"""Choose ports: the wanted one, or where that is taken the next free one of the same rank."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping

from kernel.errors import Misconfigured

DEFAULT_BASE = 7070
NAMES = (
    "service",
    "pipeline",
    "postgres",
    "kafka",
    "kafka_controller",
    "registry",
    "connect",
)
"""Every port of a stack, in its place after the base port."""

_LAST = 65535
MIN_BASE, MAX_BASE = 1024, _LAST - len(NAMES) + 1
"""Base ports from which every place is a port that anybody may listen on."""
_STRIDE = 10
_TRIES = 200


def choose(base: int, wanted: Mapping[str, int], names: tuple[str, ...]) -> dict[str, int]:
    """Return a free port for each of `names`.

    First choice is `wanted`, else the base port plus the name's rank; then every tenth port after
    it. Raises `Misconfigured` when all are taken.
    """
    chosen: dict[str, int] = {}
    for name in names:
        first = wanted.get(name) or base + NAMES.index(name)
        chosen[name] = _free_from(name, first, set(chosen.values()))
    return chosen


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port of the loopback interface now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of an earlier run that still wind down are no hindrance.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _free_from(name: str, first: int, taken: set[int]) -> int:
    if not 0 < first <= _LAST:
        raise Misconfigured(
            f"{first} is no port for {name}: they go from 1 to {_LAST}",
            remedy=f"Set {name}.port, or choose all: penstock up --port-base {DEFAULT_BASE}",
        )
    tried = range(first, min(first + _STRIDE * _TRIES, _LAST + 1), _STRIDE)
    for port in tried:
        if port not in taken and is_free(port):
            return port
    raise Misconfigured(
        f"no free port for {name}: tried every tenth port from {first} to {tried[-1]}",
        remedy=f"Choose another range: penstock up --port-base {DEFAULT_BASE + 1000}",
    )
