"""Formats of times: which ones the small executor writes, and that Spark gets them as written."""

from __future__ import annotations

import duckdb
import pytest
from sqlglot import exp

from projections.sql.rendering.certified import uncertified_in
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.values.expressions import render
from projections.sql.words.catalog import Column
from projections.sql.words.places import Script
from projections.sql.words.tokens import parsed, tokenized

COLUMNS = (Column(name="t", type="TIMESTAMP"),)


def read(text: str) -> exp.Expr:
    script = Script(origin="<sql>", text=f"SELECT {text}")
    select = parsed(script, tokenized(script))
    found: exp.Expr = select.expressions[0]
    return found


@pytest.mark.parametrize("form", ["yyyy", "HH:mm:ss", "yyyyMMdd", "yyyy-MM yyyy", "mmMM"])
def test_fields_of_one_width_are_written_by_the_small_executor(form: str) -> None:
    assert uncertified_in(read(f"date_format(t, '{form}')"), COLUMNS) is None


@pytest.mark.parametrize(
    "form",
    ["yyyyy", "yyyyyyyy", "y", "yyy", "Y", "YYYY", "uuuu", "MMMM", "d", "ss.SSS", "%Y", "''"],
)
def test_other_formats_are_left_to_spark_as_they_are_written(form: str) -> None:
    node = read(f'date_format(t, "{form}")')
    written = form.replace("'", "\\'")
    assert render(node) == f"DATE_FORMAT(t, '{written}')"
    assert uncertified_in(node, COLUMNS) == render(node)


@pytest.mark.parametrize("form", ["y", "yyyyy", "dd.MM.yyyy", "%d"])
def test_dates_are_read_by_the_format_that_is_written(form: str) -> None:
    assert render(read(f"to_date(s, '{form}')")) == f"TO_DATE(s, '{form}')"


@pytest.mark.parametrize(
    ("moment", "year"),
    [
        ("0001-07-02", "0001-07"),
        ("0001-07-02 (BC)", "0000-07"),
        ("0002-07-02 (BC)", "-0001-07"),
        ("20001-07-02 (BC)", "-20000-07"),
        ("9999-07-02", "9999-07"),
        ("10000-07-02", "+10000-07"),
    ],
)
def test_years_have_four_digits_and_a_sign_where_these_do_not_say_it(
    moment: str, year: str
) -> None:
    text = DuckText().expression(read("date_format(t, 'yyyy-MM')"), COLUMNS)
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT {text} FROM (SELECT TIMESTAMP '{moment}' AS t)")
        assert found.fetchone() == (year,)
