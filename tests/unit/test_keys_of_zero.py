"""Zero has two signs, and both are one key: PostgreSQL tells of a change as of any other key's."""

from __future__ import annotations

import pytest

from lake.layers import read_whole
from lake.layout import Lake, current_name
from lake.tables import Tables
from pipeline.current.fold_policy import FoldPolicy
from schemas.pg_types import SourceColumn
from tests.support.sources import ddl_rows
from tests.support.sources.ddl_rows import SOURCE, TABLE, Column, Folding, Item

MERGED = FoldPolicy(direct_bytes=2**40)
TAILED = FoldPolicy(direct_bytes=-1, freshness_s=1e9, longest_s=1e9, share=1e9)


@pytest.mark.parametrize("policy", [MERGED, TAILED], ids=["merged", "tail"])
@pytest.mark.parametrize("apart", [False, True])
def test_a_key_of_zero_that_changes_its_sign_is_one_row_of_its_table(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, policy: FoldPolicy, apart: bool
) -> None:
    monkeypatch.setitem(ddl_rows.TYPES, "float8", (SourceColumn(name="", type="float8"), "double"))
    item = Item(columns=[Column(1, "x", "float8")])
    for operation, key in (("c", 0.0), ("c", 1.0), ("d", 0.0), ("c", -0.0)):
        item.write(operation, key)
    folding = Folding(lake, item, policy)
    for part in [item.log[:2], item.log[2:]] if apart else [item.log]:
        folding.run(part)
    found = read_whole(lake, Tables(), current_name(SOURCE, TABLE), at=folding.at)
    assert found is not None
    assert sorted(map(str, found["x"].to_pylist())) == ["-0.0", "1.0"]
    folding.current.close()
