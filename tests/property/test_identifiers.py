"""Odd but legal names of tables and columns reach paths and SQL unharmed."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from lake.layout import Lake, current_name
from lake.tables import Tables
from lake.writer import DELETE, OP, UPSERT, ArrowWriter, Guard
from projections.serve.lake_tables import table_names
from projections.serve.query import ask
from schemas.identifiers import duckdb_name, name_at, path_of
from tests.support.lake.handmade import HandMade

ODD = [
    "a/b",
    "a",
    "../../up",
    "50%",
    "a%2Fb",
    'say "x"',
    "back`tick",
    "it's",
    "a b",
    "x;y,z(t){u}",
    "größe",
    "表",
    "_gen",
    "_delta_log",
    ".hidden",
    "@2F",
    "k=v",
    "q?*#~\\",
    "new\nline",
    "e\u0301",
]
NAMES = st.one_of(
    st.sampled_from(ODD),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
)
TABLES = NAMES.filter(lambda name: "." not in name and len(name.encode()) <= 63)
COLUMNS = st.lists(
    st.text("abc\"'`./ %{}@ößé-", min_size=1, max_size=8), min_size=2, max_size=2, unique=True
)


@given(NAMES, NAMES)
@example("a/b", "a@2Fb")
@example("x" * 400, "x" * 200)
@example(".", "..")
def test_every_name_has_a_folder_of_its_own(one: str, other: str) -> None:
    path = path_of(one)
    assert name_at(path) == one
    assert (path == path_of(other)) == (one == other)
    for segment in path.split("/"):
        assert segment not in {"", ".", "..", "_gen/", "_delta_log/"}
        assert len(segment.encode()) < 255
        assert not set(segment) & set('%?*#~\\ "`{}=\n')


@pytest.mark.parametrize(
    "name",
    [
        "current/shop.public.orders",
        "current/_tail/shop.public.Order_Lines-2",
        "typed/events.flight." + "A" * 128,
        "log/snapshots/_gone/shop.public.größe",
        "projection/report/_gen/2",
        "log/events/0b0f7a0e-0000-4000-8000-000000000001",
        "log/_schemas",
    ],
)
def test_a_plain_name_is_its_path(name: str) -> None:
    assert Lake("/lake").path(name) == f"/lake/{name}"


def test_a_name_with_a_slash_does_not_lie_in_another_table() -> None:
    lake = Lake("/lake")
    outer, inner = (lake.path(current_name("shop", f"public.{name}")) for name in ("a", "a/b"))
    assert not inner.startswith(f"{outer}/")
    assert lake.path("current/shop.public.x/../../../etc").count("/") == 3


@settings(max_examples=8, deadline=None)
@given(TABLES, COLUMNS)
@example("a/b", ['i"d', "it's"])
def test_rows_under_any_name_are_merged_and_read_by_name(table: str, columns: list[str]) -> None:
    key, value = columns
    if key.lower() == value.lower():
        return
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake.at(Path(folder))
        name = current_name("shop", f"public.{table}")
        made = HandMade(lake)
        made.epoch(logs={name: _rows(key, value, (1, "a"), (2, "b"), (3, "c")).drop_columns([OP])})
        changed = _rows(key, value, (1, "z"), (4, "d"), (2, None))
        ArrowWriter(made.tables).merge(
            lake.path(name), changed, Guard(name, Epoch(2)), keys=[key], newer=[key]
        )
        expected = [(1, "z"), (3, "c"), (4, "d")]

        stored = Tables().read(lake.path(name))
        assert stored is not None
        assert sorted((row[key], row[value]) for row in stored.to_pylist()) == expected
        made.epoch(logs={name: stored.schema.empty_table()})
        assert table_names(lake) == [name, "epochs"]
        sql = f"SELECT {duckdb_name(key)} AS k, {duckdb_name(value)} AS v FROM "
        sql += f"current.{duckdb_name(f'shop.public.{table}')} ORDER BY k"
        answered = ask(lake, sql).rows
        assert [(row["k"], row["v"]) for row in answered.to_pylist()] == expected


def _rows(key: str, value: str, *rows: tuple[int, str | None]) -> pa.Table:
    return pa.table(
        {
            key: pa.array([row[0] for row in rows], pa.int64()),
            value: pa.array([row[1] for row in rows], pa.string()),
            OP: [DELETE if row[1] is None else UPSERT for row in rows],
        }
    )
