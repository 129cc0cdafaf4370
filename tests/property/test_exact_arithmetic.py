"""Arithmetic as the small executor writes it: the exact results, at the ends of every type."""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator
from decimal import Decimal

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlglot import parse_one

from projections.sql.rendering.certified import uncertified_in
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column

EXACT = decimal.Context(prec=200)
MOST = 38


Columns = dict[str, str]


@pytest.fixture(scope="module")
def engine() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def computed(
    engine: duckdb.DuckDBPyConnection,
    text: str,
    columns: Columns,
    rows: Iterable[tuple[object, ...]],
) -> list[object]:
    """Compute a certified expression over stored rows, of which an engine folds nothing."""
    known = tuple(Column(name=name, type=kind) for name, kind in columns.items())
    node = parse_one(text, dialect="spark")
    assert uncertified_in(node, known) is None
    engine.execute(
        f"CREATE OR REPLACE TABLE r ({', '.join(f'{n} {k}' for n, k in columns.items())})"
    )
    written = (f"({', '.join('NULL' if v is None else f'{v:f}' for v in row)})" for row in rows)
    engine.execute(f"INSERT INTO r VALUES {', '.join(written)}")
    found = engine.execute(f"SELECT {DuckText().expression(node, known)} FROM r ORDER BY rowid")
    return [value for (value,) in found.fetchall()]


def ends(size: int, scale: int) -> Iterable[Decimal]:
    most = Decimal(10**size - 1).scaleb(-scale, EXACT)
    return (most, most.copy_negate(), Decimal(1).scaleb(-scale, EXACT), Decimal(0))


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    size = draw(st.integers(1, MOST))
    return size, draw(st.integers(0, size))


@example(left=(18, 6), right=(18, 6), sign="*")
@example(left=(10, 2), right=(10, 2), sign="*")
@example(left=(18, 18), right=(18, 0), sign="*")
@example(left=(19, 2), right=(18, 2), sign="*")
@example(left=(18, 0), right=(18, 18), sign="+")
@example(left=(18, 2), right=(18, 2), sign="-")
@example(left=(19, 0), right=(19, 0), sign="*")
@given(left=sizes(), right=sizes(), sign=st.sampled_from("+-*"))
def test_decimals_have_room_for_every_result(
    engine: duckdb.DuckDBPyConnection, left: tuple[int, int], right: tuple[int, int], sign: str
) -> None:
    columns = {"a": f"DECIMAL({left[0]},{left[1]})", "b": f"DECIMAL({right[0]},{right[1]})"}
    node = parse_one(f"a {sign} b", dialect="spark")
    if not type_of(node, lambda found: columns[found.name]):
        return
    exact = {"+": EXACT.add, "-": EXACT.subtract, "*": EXACT.multiply}[sign]
    pairs = [(a, b) for a in ends(*left) for b in ends(*right)]
    found = computed(engine, f"a {sign} b", columns, pairs)
    assert found == [exact(a, b) for a, b in pairs]


@pytest.mark.parametrize("kind", ["INT", "BIGINT"])
def test_the_remainder_by_minus_one_is_zero_for_the_least_number_too(
    engine: duckdb.DuckDBPyConnection, kind: str
) -> None:
    least = Decimal(-(2 ** (31 if kind == "INT" else 63)))
    rows = [(least, Decimal(-1)), (None, Decimal(-1)), (Decimal(-7), Decimal(3))]
    assert computed(engine, "a % b", {"a": kind, "b": kind}, rows) == [0, None, -1]


@pytest.mark.parametrize(
    ("text", "certified"),
    [
        ("9223372036854775807", True),
        ("9223372036854775808", False),
        ("n < 9223372036854775808", False),
        ("-9223372036854775808", False),
        ("-2147483647", True),
        # Spark reads the sign into the number, which is an INT then.
        ("-2147483648", False),
        (f"{'9' * 38}.0", False),
        ("split_part(s, '-', 2147483647)", True),
        ("split_part(s, '-', 2147483648)", False),
    ],
)
def test_numbers_are_certified_as_far_as_their_types_reach(text: str, certified: bool) -> None:
    known = (Column(name="n", type="BIGINT"), Column(name="s", type="STRING"))
    node = parse_one(text, dialect="spark")
    ours = uncertified_in(node, known) is None and bool(
        type_of(node, lambda found: {"n": "BIGINT", "s": "STRING"}[found.name])
    )
    assert ours is certified
