"""WINDOW: what it names is what OVER would say by itself."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.statements.parse import parse_script
from tests.support.oracles.sql_world import planned

FROM = "FROM STREAM events.flight.departed"
BY = "PARTITION BY carrier"
ORDER = "ORDER BY occurred_at"
ROWS = "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW"


def rows_sql(query: str) -> str:
    return planned(f"CREATE PROJECTION p WITH (key = 'position') AS {query}").rows_sql


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (
            f"SELECT position, SUM(delay) OVER w AS s, RANK() OVER (w) AS r {FROM} "
            f"WINDOW w AS ({BY} {ORDER})",
            f"SELECT position, SUM(delay) OVER ({BY} {ORDER}) AS s, RANK() OVER ({BY} {ORDER}) AS "
            f"r {FROM}",
        ),
        (
            f"SELECT position, COUNT(*) OVER (w {ROWS}) AS n, MAX(delay) OVER (v {ORDER}) AS m "
            f"{FROM} WINDOW v AS ({BY}), w AS (v {ORDER})",
            f"SELECT position, COUNT(*) OVER ({BY} {ORDER} {ROWS}) AS n, MAX(delay) OVER ({BY} "
            f"{ORDER}) AS m {FROM}",
        ),
        (
            f"SELECT position {FROM} QUALIFY ROW_NUMBER() OVER W = 1 WINDOW w AS ({BY} {ORDER})",
            f"SELECT position {FROM} QUALIFY ROW_NUMBER() OVER ({BY} {ORDER}) = 1",
        ),
        (
            f"SELECT position, n, SUM(n) OVER w AS s FROM (SELECT position, COUNT(*) OVER w AS n "
            f"{FROM} WINDOW w AS ({BY})) x WINDOW w AS (ORDER BY n)",
            f"SELECT position, n, SUM(n) OVER (ORDER BY n) AS s FROM (SELECT position, COUNT(*) "
            f"OVER ({BY}) AS n {FROM}) x",
        ),
        (
            f"SELECT MAX(position) AS position, RANK() OVER w AS r {FROM} GROUP BY carrier "
            "WINDOW w AS (ORDER BY COUNT(*) DESC)",
            "SELECT MAX(position) AS position, RANK() OVER (ORDER BY COUNT(*) DESC) AS r "
            f"{FROM} GROUP BY carrier",
        ),
    ],
)
def test_a_named_window_is_the_one_that_is_written_out(written: str, meant: str) -> None:
    assert rows_sql(written) == rows_sql(meant)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"SELECT position, COUNT(*) OVER w AS n {FROM}", "OVER w: no WINDOW has this name"),
        (f"SELECT position, COUNT(*) OVER (w) AS n {FROM}", "OVER w: no WINDOW has this name"),
        (
            f"SELECT position, COUNT(*) OVER u AS n {FROM} WINDOW w AS ({BY})",
            "OVER u: no WINDOW has this name; there is w",
        ),
        (
            f"SELECT position, n FROM (SELECT position, COUNT(*) OVER w AS n {FROM}) x "
            f"WINDOW w AS ({BY})",
            "OVER w: no WINDOW has this name",
        ),
        (
            f"SELECT position, COUNT(*) OVER (w {ORDER}) AS n {FROM} WINDOW w AS ({BY} {ORDER})",
            "changes the window that it names",
        ),
        (
            f"SELECT position, COUNT(*) OVER (w {BY}) AS n {FROM} WINDOW w AS ({ORDER})",
            "changes the window that it names",
        ),
        (
            f"SELECT position, COUNT(*) OVER w AS n {FROM} WINDOW w AS ({BY}), w AS ({ORDER})",
            "two windows are named w",
        ),
    ],
)
def test_a_name_that_no_window_has_is_refused_at_its_place(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rows_sql(query)
    assert said in caught.value.message
    assert caught.value.remedy


def test_a_text_with_a_name_that_no_window_has_is_read() -> None:
    """It may be deployed: whoever opens the catalog reads it."""
    text = f"SELECT position, COUNT(*) OVER w AS n {FROM}"
    (decl,) = parse_script(f"CREATE PROJECTION p WITH (key = 'position') AS {text}").projections
    assert decl.name == "p"
