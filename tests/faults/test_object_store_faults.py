"""An object store whose answers are lost: nothing is written twice, nothing is missing."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kernel.errors import LeaseLost, Unavailable
from kernel.positions import Epoch
from projections.log.tables import Tables
from projections.log.writer import DELETE, OP, UPSERT, ArrowWriter, Guard
from stack.object_store import ObjectStore

COMMIT = re.compile(rb"PUT \S+/_delta_log/0\d+\.json")
RESET = struct.pack("ii", 1, 0)


class Forgetful:
    """Passes on what it is sent, and loses the answer to every second commit: the reader sees a
    reset, after the store has done what was asked.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.commits = self.lost = 0
        self._open: list[socket.socket] = []

    def start(self) -> None:
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += [near, far]
                losing = threading.Event()
                for pump in (self._ask, self._answer):
                    threading.Thread(target=pump, args=(near, far, losing), daemon=True).start()

    def _ask(self, near: socket.socket, far: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := near.recv(65_536):
                if COMMIT.match(piece):
                    self.commits += 1
                    if self.commits % 2 == 0:
                        losing.set()
                far.sendall(piece)
            far.shutdown(socket.SHUT_WR)

    def _answer(self, near: socket.socket, far: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while piece := far.recv(65_536):
                if losing.is_set() and piece.startswith(b"HTTP/1.1 200"):
                    self.lost += 1
                    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    break
                near.sendall(piece)
            near.shutdown(socket.SHUT_RDWR)
            near.close()


@pytest.fixture
def forgetful(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forgetful]:
    proxy = Forgetful(int(s3.url.rpartition(":")[2]))
    proxy.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    yield proxy
    proxy.stop()


def test_p1_an_answer_that_is_lost_doubles_nothing(bucket_lake: str, forgetful: Forgetful) -> None:
    tables = Tables()
    writer, path = ArrowWriter(tables), f"{bucket_lake}/log"
    for epoch in range(1, 13):
        guard = Guard("log", Epoch(epoch))
        keys = pa.array([epoch, 100 + epoch])
        for _ in range(5):
            try:
                if epoch % 3:
                    writer.append(path, pa.table({"id": keys}), guard)
                else:
                    removed = pa.table({"id": [epoch - 1, epoch], OP: [DELETE, UPSERT]})
                    writer.merge(path, removed, guard, keys=["id"])
                break
            except (LeaseLost, Unavailable):
                # As the pipeline does: it begins anew, and finds what it has done.
                tables.forget_all()
        else:
            pytest.fail(f"epoch {epoch} was never told to be written")
    assert forgetful.lost >= 3, "the proxy lost nothing"
    table = tables.open(path)
    assert table is not None
    assert table.transaction_version("log") == 12
    rows = tables.read(path)
    assert rows is not None
    wanted = [e for e in range(1, 13) if e % 3 != 2] + [100 + e for e in range(1, 13) if e % 3]
    assert sorted(rows["id"].to_pylist()) == sorted(wanted)
