"""A TCP proxy that can break every connection that goes through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Passes bytes on to a port of this machine, until `break_all`."""

    def __init__(self, target_port: int) -> None:
        self._target = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.connections = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A listener that is only closed goes on accepting in the thread that waits on it.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.break_all()

    def break_all(self) -> None:
        """Reset all connections, as a crash or a firewall does."""
        with self._lock:
            broken, self._open = self._open, []
        for each in broken:
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._target))
            for each in (near, far):
                # Else a small piece behind another waits until that is acknowledged: 40 ms.
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open += [near, far]
                self.connections += 1
            told: list[bytes] = []
            for source, sink, seen in ((near, far, self.asked), (far, near, self.answered)):
                arguments = (source, sink, partial(seen, told))
                threading.Thread(target=_pass, args=arguments, daemon=True).start()

    def asked(self, connection: list[bytes], piece: bytes) -> bool:
        """Say whether to pass on what a client sent; `connection` keeps what is known of it."""
        return True

    def answered(self, connection: list[bytes], piece: bytes) -> bool:
        """Say whether to pass on an answer; one that is not is a reset to the client."""
        return True


def _pass(source: socket.socket, sink: socket.socket, passes: Callable[[bytes], bool]) -> None:
    try:
        while piece := source.recv(65_536):
            if not passes(piece):
                sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                # The other thread still waits on it: closed alone, it would stay open until then.
                sink.shutdown(socket.SHUT_RDWR)
                sink.close()
                return
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return
