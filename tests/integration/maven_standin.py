"""A Maven repository on the loopback interface: plain, with TLS, or behind an opening proxy."""

from __future__ import annotations

import base64
import hashlib
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from stack.lock import Artifact


@dataclass
class Repository:
    """Files by path, and every request that came. `broken` paths answer 500."""

    files: dict[str, bytes] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    tunnels: list[str] = field(default_factory=list)
    credentials: str | None = None
    inner_tls: ssl.SSLContext | None = None

    def offer(self, name: str, content: bytes, *, pinned: bytes | None = None) -> Artifact:
        """Serve a jar; the lock pins `pinned` instead of what is served, if given."""
        artifact = Artifact(
            group="spark",
            organisation="org.test",
            name=name,
            revision="1.0",
            classifier="",
            extension="jar",
            size_bytes=len(content),
            sha256=hashlib.sha256(pinned or content).hexdigest(),
        )
        self.files[path_of(artifact)] = content
        return artifact

    def downloads(self, artifact: Artifact) -> int:
        """Return how often the file itself was sent."""
        return self.requests.count(f"GET {path_of(artifact)}")


def path_of(artifact: Artifact) -> str:
    folder = artifact.organisation.replace(".", "/")
    return f"/{folder}/{artifact.name}/{artifact.revision}/{artifact.file_name}"


@contextmanager
def serving(repository: Repository, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve on a free port, which is returned."""

    class Handler(_Handler):
        served = repository

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    served: Repository

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_CONNECT(self) -> None:
        """Open a tunnel and sit in the middle of it, as the proxy of a company does."""
        given = self.headers.get("Proxy-Authorization")
        wanted = self.served.credentials
        if wanted and given != f"Basic {base64.b64encode(wanted.encode()).decode()}":
            self.send_response(407)
            self.send_header("Proxy-Authenticate", 'Basic realm="company"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.served.tunnels.append(self.path)
        assert self.served.inner_tls is not None
        self.send_response(200)
        self.end_headers()
        try:
            self.connection = self.served.inner_tls.wrap_socket(self.connection, server_side=True)
        except ssl.SSLError:
            # The other side does not trust our certificate.
            self.close_connection = True
            return
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self.handle_one_request()
        self.rfile.close()
        self.wfile.close()
        self.connection.close()
        self.close_connection = True

    def _answer(self, *, with_body: bool) -> None:
        self.served.requests.append(f"{self.command} {self.path}")
        content = self.served.files.get(self.path)
        if self.path in self.served.broken:
            self.send_error(500)
        elif content is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
