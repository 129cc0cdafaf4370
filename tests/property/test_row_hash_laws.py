"""A table's hash depends on its rows, never on their order or on how they are cut into batches."""

from __future__ import annotations

from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.row_hash import table_hash

ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        st.one_of(st.none(), st.text(max_size=8)),
        st.one_of(st.none(), st.floats()),
    ),
    max_size=12,
)
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.float64())])

Row = tuple[int | None, str | None, float | None]


def table(rows: list[Row]) -> pa.Table:
    columns = [[row[i] for row in rows] for i in range(3)]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA)


@settings(deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_order_does_not_matter(rows: list[Row], random: Random) -> None:
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert table_hash(table(shuffled)) == table_hash(table(rows))


@settings(deadline=None)
@given(ROWS, ROWS)
def test_hashes_of_parts_add_up(one: list[Row], other: list[Row]) -> None:
    parts = [table_hash(table(rows)) for rows in (one, other)]
    halves = [sum(int(digest[at : at + 16], 16) for _, digest in parts) % 2**64 for at in (0, 16)]
    cut = pa.concat_tables([table(one), table(other)])
    assert table_hash(cut) == (len(one) + len(other), f"{halves[0]:016x}{halves[1]:016x}")


@settings(deadline=None)
@given(ROWS, ROWS)
def test_other_rows_have_another_hash(one: list[Row], other: list[Row]) -> None:
    same = sorted(map(repr, one)) == sorted(map(repr, other))
    assert (table_hash(table(one)) == table_hash(table(other))) == same
