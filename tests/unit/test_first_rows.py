"""ORDER BY with LIMIT is a choice among numbered rows."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from tests.support.oracles.sql_world import planned

FROM = "FROM STREAM events.flight.departed"
GROUPS = f"SELECT carrier, COUNT(*) AS n {FROM} GROUP BY carrier"
OVER = "ROW_NUMBER() OVER (ORDER BY {})"


def rows_sql(query: str) -> str:
    return planned(f"CREATE PROJECTION p WITH (key = 'carrier') AS {query}").rows_sql


def first(columns: str, rows: str, qualify: str) -> str:
    return f"SELECT {columns} FROM ({rows}) penstock_rows QUALIFY {qualify}"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (
            f"{GROUPS} ORDER BY n DESC, carrier LIMIT 3",
            first("carrier, n", GROUPS, f"{OVER.format('n DESC, carrier')} <= 3"),
        ),
        (
            f"{GROUPS} ORDER BY COUNT(*) DESC NULLS FIRST, 1 FETCH FIRST 3 ROWS ONLY",
            first("carrier, n", GROUPS, f"{OVER.format('n DESC NULLS FIRST, carrier')} <= 3"),
        ),
        (
            f"{GROUPS} ORDER BY n LIMIT 3 OFFSET 2",
            first("carrier, n", GROUPS, f"{OVER.format('n')} > 2 AND {OVER.format('n')} <= 5"),
        ),
        (
            f"{GROUPS} ORDER BY n / MAX(delay) LIMIT 1",
            first(
                "carrier, n",
                GROUPS.replace(" FROM", ", (COUNT(*)) / MAX(delay) AS penstock_order_0 FROM"),
                f"{OVER.format('penstock_order_0')} <= 1",
            ),
        ),
        (
            f"SELECT carrier, -delay AS delay {FROM} ORDER BY delay, occurred_at DESC LIMIT 2",
            first(
                "carrier, delay",
                f"SELECT carrier, -delay AS delay, occurred_at AS penstock_order_0 {FROM}",
                f"{OVER.format('delay, penstock_order_0 DESC')} <= 2",
            ),
        ),
        (
            f"{GROUPS} ORDER BY n FETCH FIRST ROW ONLY",
            first("carrier, n", GROUPS, f"{OVER.format('n')} <= 1"),
        ),
        (
            f"{GROUPS} ORDER BY ALL DESC LIMIT 3",
            first("carrier, n", GROUPS, f"{OVER.format('carrier DESC, n DESC')} <= 3"),
        ),
        (
            f"SELECT carrier AS `all`, carrier, delay {FROM} ORDER BY ALL LIMIT 3",
            f"SELECT carrier AS `all`, carrier, delay {FROM} ORDER BY 1 LIMIT 3",
        ),
        (
            f"SELECT carrier, SUM(delay) AS delay {FROM} GROUP BY carrier "
            "ORDER BY MAX(delay) LIMIT 3",
            first(
                "carrier, delay",
                f"SELECT carrier, SUM(delay) AS delay, MAX(delay) AS penstock_order_0 {FROM} "
                "GROUP BY carrier",
                f"{OVER.format('penstock_order_0')} <= 3",
            ),
        ),
        (
            f"SELECT carrier {FROM} UNION SELECT origin {FROM} ORDER BY carrier LIMIT 2",
            first(
                "carrier",
                f"SELECT carrier {FROM} UNION SELECT origin {FROM}",
                f"{OVER.format('carrier')} <= 2",
            ),
        ),
        (
            f"WITH g AS ({GROUPS} ORDER BY n LIMIT 9) SELECT carrier, n FROM g WHERE n > 1",
            "SELECT carrier, n FROM ("
            + first("carrier, n", GROUPS, f"{OVER.format('n')} <= 9")
            + ") g WHERE n > 1",
        ),
    ],
)
def test_limit_is_a_choice_among_numbered_rows(written: str, meant: str) -> None:
    assert rows_sql(written) == rows_sql(meant)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (f"{GROUPS} LIMIT 3", "LIMIT without ORDER BY"),
        (f"{GROUPS} ORDER BY n", "ORDER BY has no meaning"),
        (f"{GROUPS} ORDER BY n LIMIT n", "take a number"),
        (f"{GROUPS} ORDER BY 3 LIMIT 1", "ORDER BY 3: there are 2 columns"),
        (f"{GROUPS} ORDER BY ALL, n LIMIT 1", "ORDER BY with ALL"),
        (f"{GROUPS} ORDER BY n WITH FILL LIMIT 1", "ORDER BY with WITH FILL"),
        (f"{GROUPS} ORDER BY n LIMIT 3 BY carrier", "LIMIT with BY carrier"),
        (f"{GROUPS} ORDER BY n LIMIT 3 OFFSET 1 BY n", "OFFSET with BY n"),
        (f"SELECT DISTINCT carrier {FROM} ORDER BY delay LIMIT 1", "names columns that they give"),
        (f"{GROUPS} UNION ALL {GROUPS} ORDER BY n + 1 LIMIT 1", "names columns that they give"),
    ],
)
def test_limit_that_leaves_open_which_rows_is_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rows_sql(query)
    assert said in caught.value.message
    assert caught.value.remedy
