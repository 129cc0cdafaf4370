"""Rows in memory pass the same conditions as rows of files do."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from lake.ranges import Among, Condition, Range, Spans, filter_of, rows_within
from tests.support.services.tier import examples

MOMENT = pa.timestamp("us", "UTC")
COLUMNS = {"n": pa.int64(), "at": MOMENT, "word": pa.string()}
START = datetime(2013, 1, 1, tzinfo=UTC)
MOMENTS = st.integers(-3, 3).map(lambda hours: START + timedelta(hours=hours))
VALUES = {"n": st.integers(-3, 3), "at": MOMENTS, "word": st.sampled_from("abc")}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}),
    max_size=12,
)


def bounds(name: str) -> st.SearchStrategy[tuple[object, object]]:
    one = st.none() | VALUES[name]
    return st.tuples(one, one)


def conditions() -> st.SearchStrategy[list[Condition]]:
    return st.lists(
        st.one_of(
            *(
                st.builds(
                    lambda ends, name=name: Range(column=name, lower=ends[0], upper=ends[1]),
                    bounds(name),
                )
                for name in ("n", "at")
            ),
            *(
                st.builds(
                    lambda spans, name=name: Spans(column=name, spans=tuple(spans)),
                    st.lists(bounds(name), max_size=3),
                )
                for name in ("n", "at")
            ),
            *(
                st.builds(
                    lambda values, name=name: Among(
                        column=name, values=pa.array(values, COLUMNS[name])
                    ),
                    st.lists(st.none() | VALUES[name], max_size=3),
                )
                for name in COLUMNS
            ),
            # A condition whose values are of another type is not compared.
            st.just(Range(column="at", lower=1, upper=None)),
            st.just(Among(column="n", values=pa.array(["a"]))),
        ),
        max_size=3,
    )


def sorted_rows(table: pa.Table) -> Sequence[str]:
    return sorted(map(repr, table.to_pylist()))


@settings(max_examples=examples(60, matrix=300))
@given(ROWS, conditions())
def test_rows_in_memory_pass_as_they_would_in_files(
    rows: list[dict[str, object]], asked: list[Condition]
) -> None:
    table = pa.Table.from_pylist(rows, pa.schema(list(COLUMNS.items())))
    with TemporaryDirectory() as folder:
        write_deltalake(str(Path(folder, "t")), table.slice(0, 0))
        where = filter_of(DeltaTable(str(Path(folder, "t"))), asked)
    assert where is not None, "the table has the columns"
    assert sorted_rows(rows_within(table, asked)) == sorted_rows(table.filter(where))
