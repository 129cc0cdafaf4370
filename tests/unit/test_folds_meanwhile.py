"""A fold of the tail that ends while ingest reads last known rows: base and tail make one state."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lake.layout import Lake
from lake.tables import Tables
from pipeline.current.fold_policy import FoldPolicy
from tests.support.lake.bulk import NAME, HandLake, some
from tests.support.lake.folding import SOURCE, TABLE, Done


def test_p4_a_fold_between_two_reads_hides_no_row(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = FoldPolicy(direct_bytes=0, freshness_s=1e9, eager_bytes=2**60)
    hand = HandLake(lake, policy=policy)
    hand.copy(*some(0, 1))
    hand.source.commit()
    hand.epoch()
    hand.source.commit(Done("c", 7, name="large", size=1), Done("u", 1, name="larger", size=1))
    hand.epoch()
    read, folded = Tables.read, []

    def folding(tables: Tables, path: str, **how: object) -> pa.Table | None:
        rows = read(tables, path, **how)
        if path == lake.path(NAME) and tables is hand.tables and not folded:
            folded.append(path)
            hand.current.settle(SOURCE, TABLE)
        return rows

    monkeypatch.setattr(Tables, "read", folding)
    hand.source.commit(Done("u", 7, name=None, size=2), Done("u", 1, name=None, size=2))
    hand.epoch()
    assert folded, "what the updates left alone was looked up"
    assert hand.state() == hand.source.state
    hand.current.close()
