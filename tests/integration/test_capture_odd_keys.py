"""Rows whose keys are numbers and moments of the edge: each is one row, and its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from lake.layout import Lake
from tests.support.sources.mirroring import Mirror, mirrored

ENDS = ("'infinity'", "'-infinity'", "'2020-02-02'")
KEYS = {
    "bare": ("numeric", ("1.0", "2.00", "'NaN'", "'Infinity'", "'-Infinity'", "-0", "1e-20")),
    "fixed": ("numeric(10, 2)", ("1.0", "2.00", "'NaN'", "0", "-99999999.99")),
    "double": ("float8", ("'NaN'", "'-0'", "'Infinity'", "'-Infinity'", "5e-324")),
    "day": ("date", ENDS),
    "moment": ("timestamp", ENDS),
    "zoned": ("timestamptz", ENDS),
    "early": ("date", ("'2020-02-02'", "'0044-03-15 BC'", "'0045-03-15 BC'")),
}
"""By table: the type of its key, and the values; each is in another column as well."""
HELD = "public.early"


@pytest.fixture
def edges(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    new_source: Callable[[str], str],
) -> Iterator[Mirror]:
    made = "".join(
        f"CREATE TABLE {name} (id {kind} PRIMARY KEY, n int, same {kind});"
        + "".join(f"INSERT INTO {name} VALUES ({v}, {i}, {v});" for i, v in enumerate(values))
        for name, (kind, values) in KEYS.items()
    )
    tables = [f"public.{name}" for name in KEYS]
    with mirrored(stack, spark, lake, prefix, new_source(made), tables) as mirror:
        yield mirror


def numbers(edges: Mirror, table: str) -> list[int]:
    return sorted(edges.current(table)["n"].to_pylist())


@pytest.mark.matrix
def test_p4_keys_at_the_edge_of_their_types_are_rows_of_their_own(edges: Mirror) -> None:
    """A key's NaN is told in other words than a row's, and the lake has no room for the BC."""
    followed = [f"public.{name}" for name in KEYS if f"public.{name}" != HELD]
    edges.catch_up()
    assert {table: edges.differing(table) for table in followed} == {key: [] for key in followed}
    for name in KEYS:
        edges.execute(f"UPDATE {name} SET n = n + 100", f"DELETE FROM {name} WHERE n % 2 = 0")
    # Equal numbers are one key, however they are written.
    edges.execute("INSERT INTO bare VALUES (77.0, 1)", "UPDATE bare SET id = 77.000 WHERE id = 77")
    edges.catch_up()
    assert {table: edges.differing(table) for table in followed} == {key: [] for key in followed}
    assert numbers(edges, "public.bare") == [1, 101, 103, 105]
    assert numbers(edges, "public.fixed") == [101, 103]
    assert numbers(edges, "public.zoned") == [101]
    assert edges.held().keys() == {HELD}
    assert "which the lake cannot tell from others" in edges.held()[HELD].reason
    with edges.following():
        reports = edges.compare(*followed, ranges=3)
    assert {table: report.differing_ranges for table, report in reports.items()} == dict.fromkeys(
        followed, ()
    )
    # Two keys that are one moment in the lake: one may follow the other, not stand beside it.
    edges.execute("UPDATE moment SET id = '0001-01-01', same = id WHERE id = '-infinity'")
    edges.execute("INSERT INTO day VALUES ('0001-01-01', 50)")
    edges.execute("DELETE FROM day WHERE id = '0001-01-01'")
    edges.catch_up()
    assert edges.differing("public.moment") == []
    assert set(edges.held()) == {HELD, "public.day"}
    assert (
        "(id = -infinity) and (id = 0001-01-01) side by side" in edges.held()["public.day"].reason
    )
    assert numbers(edges, "public.day") == [101]
