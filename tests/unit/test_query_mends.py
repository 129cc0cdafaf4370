"""A build goes on with another query only where both give the rows that are there."""

from __future__ import annotations

import pytest

from projections.sql.statements.parse import parse_script
from replay.mends import gives_the_same


def query(expression: str, *, options: str = "key = 'k'") -> str:
    return (
        f"CREATE PROJECTION p WITH ({options}) AS "
        f"SELECT k, {expression} AS x FROM STREAM events.thing.told WHERE a > 1 GROUP BY k"
    )


def same(old: str, new: str) -> bool:
    first, second = (parse_script(text).projections[0] for text in (old, new))
    return gives_the_same(first, second)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SUM(a / b)", "SUM(a / b)"),
        ("SUM(a / b)", "sum(( a /  b )) -- a comment\n"),
        ("SUM(a / b)", "SUM(try_divide(a, b))"),
        ("SUM(a / b)", "SUM(a / NULLIF(b, 0))"),
        ("SUM(a / b)", "SUM(CASE WHEN b = 0 THEN NULL ELSE a / b END)"),
        ("SUM(a / b)", "SUM(IF(b = 0, NULL, a / b))"),
        ("SUM(a % b)", "SUM(a % NULLIF(b, 0))"),
        ("SUM(a % b)", "SUM(try_mod(a, b))"),
        ("SUM(a + b * c)", "try_sum(try_add(a, try_multiply(b, c)))"),
        ("AVG(a - b * c)", "try_avg(try_subtract(a, b * c))"),
        ("SUM(CAST(a AS INT) / (b - 1))", "SUM(try_divide(TRY_CAST(a AS INT), (b - 1)))"),
        ("MAX(element_at(a, 1))", "MAX(try_element_at(a, 1))"),
        ("MAX(to_timestamp(a))", "MAX(try_to_timestamp(a))"),
        ("MAX(CASE WHEN a > 1 THEN a / b END)", "MAX(CASE WHEN a > 1 THEN try_divide(a, b) END)"),
    ],
)
def test_what_differs_only_where_the_first_one_fails_goes_on(old: str, new: str) -> None:
    assert same(query(old), query(new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("SUM(a / b)", "SUM(try_divide(b, a))"),
        ("SUM(a / b)", "SUM(a / NULLIF(b, 1))"),
        ("SUM(a / b)", "SUM(a / NULLIF(c, 0))"),
        ("SUM(a / b)", "SUM(NULLIF(a, 0) / b)"),
        # NULL / NULL is NULL, and the fallback is something else then.
        ("SUM(a / b)", "SUM(CASE WHEN b <> 0 THEN a / b ELSE 0 END)"),
        # A fallback may widen the type of what was computed.
        ("SUM(a / b)", "SUM(CASE WHEN b = 0 THEN 0 ELSE a / b END)"),
        ("SUM(a / b)", "SUM(CASE b WHEN 0 THEN NULL ELSE a / b END)"),
        ("SUM(a / b)", "SUM(CASE WHEN c = 0 THEN NULL ELSE a / b END)"),
        ("SUM(a / b)", "SUM(CASE WHEN b = 0 THEN NULL WHEN a = 1 THEN 2 ELSE a / b END)"),
        ("SUM(a / b)", "COALESCE(SUM(try_divide(a, b)), 0)"),
        ("SUM(a / b)", "SUM(try_divide(a, b) + 1)"),
        # The other way round a row may fail that was there.
        ("SUM(try_divide(a, b))", "SUM(a / b)"),
        ("MAX(TRY_CAST(a AS INT))", "MAX(CAST(a AS INT))"),
        ("MAX(try_element_at(a, 1))", "MAX(element_at(a, 1))"),
        ("MAX(CAST(a AS INT))", "MAX(TRY_CAST(a AS BIGINT))"),
        ("MAX(element_at(a, 1))", "MAX(try_element_at(a, 2))"),
        ("SUM(a / b)", "AVG(a / b)"),
        ("MAX(a)", "MAX(DISTINCT a)"),
    ],
)
def test_what_may_give_other_rows_does_not(old: str, new: str) -> None:
    assert not same(query(old), query(new))


@pytest.mark.parametrize(
    "options", ["key = 'x'", "key = 'k', emit = 'final'", "key = 'k', sink = 'topic:t'"]
)
def test_other_options_are_another_projection(options: str) -> None:
    assert not same(query("SUM(a)"), query("SUM(a)", options=options))


def test_another_filter_is_another_query() -> None:
    assert not same(query("SUM(a)"), query("SUM(a)").replace("a > 1", "a > 2"))
    assert not same(query("SUM(a)"), query("SUM(a)").replace("WHERE a > 1 ", ""))
