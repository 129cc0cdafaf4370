"""An object store whose answers are lost: nothing is written twice, nothing is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest

from kernel.errors import LeaseLost, Unavailable
from kernel.positions import Epoch
from lake.tables import Tables
from lake.writer import DELETE, OP, UPSERT, ArrowWriter, Guard
from stack.object_store import ObjectStore
from tests.support.services.proxy import Proxy

COMMIT = re.compile(rb"PUT \S+/_delta_log/0\d+\.json")


class Forgetful(Proxy):
    """Loses the answer to every second commit: its writer sees a reset, after the store has done
    what was asked.
    """

    commits = lost = 0

    def asked(self, connection: list[bytes], piece: bytes) -> bool:
        if COMMIT.match(piece):
            self.commits += 1
            if self.commits % 2 == 0:
                connection.append(piece)
        return True

    def answered(self, connection: list[bytes], piece: bytes) -> bool:
        lost = bool(connection) and piece.startswith(b"HTTP/1.1 200")
        self.lost += lost
        return not lost


@pytest.fixture
def forgetful(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Forgetful]:
    with Forgetful(int(s3.url.rpartition(":")[2])) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy


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
