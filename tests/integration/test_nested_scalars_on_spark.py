"""Functions of functions that the small executor computes: the bits and the types of Spark.

Each column of a certified expression may be another one of its type. What is an error in a row is
one for all rows beside it: such rows are left out. To Spark NULL plus what is an error is NULL.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlglot import exp

from projections.run.dataflow import arrow_type
from projections.run.spark_scalars import register_scalars
from projections.sql.rendering.certified import uncertified_in
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.values.expressions import render
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column
from tests.integration.test_scalars_on_spark import parsed, plain, table
from tests.support.oracles.scalar_values import (
    EXPRESSIONS,
    KINDS,
    PLAIN_EXPRESSIONS,
    rows,
    written,
)

COLUMNS = tuple(Column(name=name, type=kind) for name, kind in KINDS.items())
_ROWS, _AT_ONCE, _FEWEST = 120, 40, 8
_GROWING = ("repeat(", "pad(")
"""Functions whose numbers are lengths of texts: any number would be too long a text."""


def _type(node: exp.Expr) -> str:
    return type_of(node, lambda found: KINDS[found.name])


@dataclass(frozen=True, slots=True)
class _Asked:
    """An expression, and what the small executor makes of it in rows of these numbers."""

    node: exp.Expr
    places: tuple[int, ...]
    values: tuple[object, ...]

    @property
    def text(self) -> str:
        text = render(self.node)
        if len(self.places) == _ROWS:
            return text
        numbers = ", ".join(map(str, self.places)) or "NULL"
        return f"CASE WHEN k IN ({numbers}) THEN {text} END"


class _Search:
    """Draws expressions in expressions, and compares what two engines make of them."""

    def __init__(self, spark: SparkSession, small: duckdb.DuckDBPyConnection, seed: int) -> None:
        self._spark = spark
        self._small = small
        self._draw = random.Random(seed)
        texts = [*written(EXPRESSIONS), *written(PLAIN_EXPRESSIONS)]
        self._forms = [parsed(text) for text in texts]
        self._by_type: dict[str, list[exp.Expr]] = defaultdict(list)
        for form in self._forms:
            self._by_type[_type(form)].append(form)
        self._rows = table(KINDS, rows())
        register_scalars(small)

    def compare(self, count: int) -> None:
        """Compare `count` expressions, each over some of the rows."""
        drawn = [self._nested(self._draw.choice(self._forms)) for _ in range(count)]
        for begin in range(0, count, _AT_ONCE):
            self._take_rows()
            self._compare(
                [
                    asked
                    for node in drawn[begin : begin + _AT_ONCE]
                    if uncertified_in(node, COLUMNS) is None
                    for asked in [self._asked(node)]
                ]
            )

    def _nested(self, form: exp.Expr) -> exp.Expr:
        made = form.copy()
        long = any(word in render(form).lower() for word in _GROWING)
        for column in [*made.find_all(exp.Column)]:
            kind = KINDS[column.name]
            if self._draw.random() < 0.6 and not (long and kind == "INT"):
                chosen = self._draw.choice(self._by_type[kind] or [column])
                column.replace(exp.Paren(this=chosen.copy()))
        return made

    def _take_rows(self) -> None:
        places = sorted(self._draw.sample(range(self._rows.num_rows), _ROWS))
        taken = self._rows.take(places)
        taken = taken.set_column(0, "k", pa.array(range(_ROWS), pa.int64()))
        self._spark.createDataFrame(taken).coalesce(1).createOrReplaceTempView("nested_rows")
        moments = {"TIMESTAMP": pa.timestamp("us")}
        fields = [f.with_type(moments.get(KINDS[f.name], f.type)) for f in taken.schema]
        self._small.register("taken", taken.cast(pa.schema(fields)))
        self._small.execute("CREATE OR REPLACE TABLE nested_rows AS FROM taken ORDER BY k")

    def _asked(self, node: exp.Expr) -> _Asked:
        found = [*self._computed(DuckText().expression(node, COLUMNS), 0, _ROWS)]
        kind = arrow_type(Column(name="v", type=_type(node)))
        values = [one for _, part in found for one in plain(part.cast(kind))]
        return _Asked(node, tuple(place for places, _ in found for place in places), tuple(values))

    def _computed(self, words: str, first: int, end: int) -> Iterator[tuple[range, pa.Array]]:
        rows = f"SELECT * FROM nested_rows WHERE k >= {first} AND k < {end} ORDER BY k"
        try:
            found = self._small.sql(f"SELECT {words} AS v FROM ({rows})").to_arrow_table()
        except duckdb.Error:
            if end - first > _FEWEST:
                middle = (first + end) // 2
                yield from self._computed(words, first, middle)
                yield from self._computed(words, middle, end)
            return
        yield range(first, end), found["v"]

    def _compare(self, asked: Sequence[_Asked]) -> None:
        items = ", ".join(f"{each.text} AS v{place}" for place, each in enumerate(asked))
        theirs = self._spark.sql(f"SELECT {items} FROM nested_rows ORDER BY k").toArrow()
        for place, each in enumerate(asked):
            column, text = theirs[f"v{place}"], render(each.node)
            assert arrow_type(Column(name="v", type=_type(each.node))) == column.type, text
            known = plain(column)
            assert [*each.values] == [known[number] for number in each.places], text
        whole = sum(len(each.places) == _ROWS for each in asked)
        assert whole > len(asked) / 2, "most have a value for all rows"


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 80), *(pytest.param(n, 400, marks=pytest.mark.matrix) for n in (2, 3))]
)
def test_functions_of_functions_give_the_bits_of_spark(
    spark: SparkSession, seed: int, count: int
) -> None:
    with duckdb.connect() as small:
        _Search(spark.newSession(), small, seed).compare(count)
