"""An S3 store for trying out, in memory: `python -m stack.object_store PORT`.

It is moto's server (the package's group `demo`) with every write under one lock: without it, of
several conditional puts of one object more than one would win, which a lake's commits rely on.
"""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kernel.errors import Unavailable

_WRITES = ("PUT", "POST", "DELETE")
_START_S = 180.0

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """A store that runs in a process of its own. What it holds is gone when it stops."""

    process: subprocess.Popen[bytes]
    url: str
    bucket: str

    def stop(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()


def environment(port: int) -> Mapping[str, str]:
    """Return what deltalake, PyArrow and Spark must find in theirs to use the store on a port."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local-only",
    }


def start(port: int, bucket: str) -> ObjectStore:
    """Start a store with an empty bucket on a port of loopback, and wait until it answers.

    Raises `Unavailable` when it does not.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "stack.object_store", str(port)], env={**os.environ}
    )
    store = ObjectStore(process=process, url=f"http://127.0.0.1:{port}", bucket=bucket)
    made = urllib.request.Request(f"{store.url}/{bucket}", method="PUT")
    limit = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < limit:
        try:
            with urllib.request.urlopen(made, timeout=5):
                return store
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    store.stop()
    raise Unavailable(
        f"the object store on port {port} does not answer",
        remedy="See its complaint above; it needs the package's group `demo`.",
    )


def one_writer_at_a_time(application: Application) -> Application:
    """Run an application's writes one after the other, each with its whole body read before."""
    lock = threading.Lock()

    def locked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] not in _WRITES:
            return application(environ, start_response)
        source, length = environ["wsgi.input"], int(environ.get("CONTENT_LENGTH") or 0)
        body = source.read() if environ.get("wsgi.input_terminated") else source.read(length)
        environ["wsgi.input"] = io.BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        with lock:
            return list(application(environ, start_response))

    return locked


def main() -> None:
    """Serve until stopped."""
    from moto.moto_server.werkzeug_app import create_backend_app
    from werkzeug.serving import WSGIRequestHandler, run_simple

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # Clients keep their connections.
    WSGIRequestHandler.protocol_version = "HTTP/1.1"
    application = one_writer_at_a_time(create_backend_app("s3"))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True)


if __name__ == "__main__":
    main()
