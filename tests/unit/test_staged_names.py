"""Rows of a table whose columns were renamed in letter case alone are staged, and read back."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import ALL, Install
from pipeline.installs.staging import Staging, text_rows
from pipeline.typed.installs import TypedInstalls
from schemas.pg_types import SourceColumn

AT = datetime(2024, 1, 1, tzinfo=UTC)
ID = SourceColumn(name="id", type="int8", not_null=True)


def staged(lake: Lake, id_: str, name: str) -> Install:
    columns = (ID, SourceColumn(name=name, type="text"))
    staging = Staging(lake, id=id_, source="shop", table="public.items", columns=columns)
    staging.stage(0, 10, [pa.table({"id": ["1"], name: [id_]})])
    return Install(
        id=id_,
        source="shop",
        table="public.items",
        kind=ALL,
        low=None,
        high=None,
        lsn=10,
        columns=columns,
        keys=("id",),
        rows=1,
        read_at=AT,
        lsns=(10,),
    )


@pytest.mark.parametrize("names", [("Name", "NAME"), ("NAME", "name")])
def test_a_copy_after_a_rename_by_case_is_staged_and_read_under_its_own_names(
    lake: Lake, names: tuple[str, str]
) -> None:
    for id_, name in zip(("before", "after"), names, strict=True):
        install = staged(lake, id_, name)
        batches = text_rows(
            lake, Tables(), id=id_, source="shop", table="public.items", columns=install.columns
        )
        rows = pa.Table.from_batches(batches).to_pylist()
        assert [(row["id"], row[name]) for row in rows] == [("1", id_)]


def test_a_typed_table_goes_on_after_a_rename_by_case(lake: Lake) -> None:
    typed = TypedInstalls(lake, Tables())
    for number, (id_, name) in enumerate([("before", "Name"), ("after", "NAME")], start=1):
        typed.add(staged(lake, id_, name), Epoch(number))

    rows = Tables().read(lake.path("typed/shop.public.items"))
    assert rows is not None
    assert sorted(rows["Name"].to_pylist()) == ["after", "before"]
