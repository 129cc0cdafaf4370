"""Forms of a query that mean the same have the same plan."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from tests.support.oracles.sql_world import planned

STREAM = "STREAM events.flight.departed"
FROM = f"FROM {STREAM}"
BY_CARRIER = f"COUNT(*) AS n {FROM} GROUP BY carrier"
OVER = "OVER (ORDER BY {} DESC)"


def rows_sql(query: str, key: str) -> str:
    return planned(f"CREATE PROJECTION p WITH (key = '{key}') AS {query}").rows_sql


def around(groups: str, items: str, qualify: str) -> str:
    return f"SELECT {items} FROM ({groups}) penstock_groups QUALIFY {qualify}"


@pytest.mark.parametrize(
    ("written", "groups", "items", "qualify"),
    [
        (
            f"SELECT carrier, {BY_CARRIER} QUALIFY ROW_NUMBER() {OVER.format('n')} = 1",
            f"SELECT carrier, {BY_CARRIER}",
            "carrier, n",
            f"ROW_NUMBER() {OVER.format('n')} = 1",
        ),
        (
            f"SELECT carrier, {BY_CARRIER} HAVING n > 1 QUALIFY n > 2 AND carrier <> 'x'",
            f"SELECT carrier, {BY_CARRIER} HAVING n > 1",
            "carrier, n",
            "n > 2 AND carrier <> 'x'",
        ),
        (
            f"SELECT carrier {FROM} GROUP BY carrier "
            f"QUALIFY RANK() {OVER.format('MAX(delay) + 1')} <= 3",
            f"SELECT carrier, MAX(delay) AS penstock_group_0 {FROM} GROUP BY carrier",
            "carrier",
            f"RANK() {OVER.format('penstock_group_0 + 1')} <= 3",
        ),
        (
            f"SELECT carrier, SUM(delay) AS late {FROM} GROUP BY carrier, lower(origin) "
            "QUALIFY SUM(COUNT(*)) OVER (PARTITION BY lower(origin)) > 2",
            "SELECT carrier, SUM(delay) AS late, COUNT(*) AS penstock_group_0, "
            f"lower(origin) AS penstock_group_1 {FROM} GROUP BY carrier, lower(origin)",
            "carrier, late",
            "SUM(penstock_group_0) OVER (PARTITION BY penstock_group_1) > 2",
        ),
        (
            f"SELECT carrier {FROM} GROUP BY ROLLUP (carrier) "
            f"QUALIFY GROUPING(carrier) = 0 AND RANK() {OVER.format('COUNT(*)')} = 1",
            "SELECT carrier, GROUPING(carrier) AS penstock_group_0, "
            f"COUNT(*) AS penstock_group_1 {FROM} GROUP BY ROLLUP (carrier)",
            "carrier",
            f"penstock_group_0 = 0 AND RANK() {OVER.format('penstock_group_1')} = 1",
        ),
        (
            f"SELECT carrier, window_start, COUNT(*) AS n {FROM} "
            "GROUP BY carrier, TUMBLE(occurred_at, '1 hour') "
            "QUALIFY ROW_NUMBER() OVER (PARTITION BY window_end ORDER BY n DESC) = 1",
            f"SELECT carrier, window_start, COUNT(*) AS n, window_end AS penstock_group_0 {FROM} "
            "GROUP BY carrier, TUMBLE(occurred_at, '1 hour')",
            "carrier, window_start, n",
            "ROW_NUMBER() OVER (PARTITION BY penstock_group_0 ORDER BY n DESC) = 1",
        ),
    ],
)
def test_qualify_of_groups_stands_around_them(
    written: str, groups: str, items: str, qualify: str
) -> None:
    assert rows_sql(written, "carrier") == rows_sql(around(groups, items, qualify), "carrier")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        (
            f"SELECT carrier, MAX(delay) AS delay {FROM} GROUP BY carrier "
            "QUALIFY ROW_NUMBER() OVER (ORDER BY delay DESC) = 1",
            "delay in QUALIFY is a column of the input and a name given by AS",
        ),
        (
            f"SELECT carrier, RANK() OVER (ORDER BY COUNT(*)) AS r {FROM} GROUP BY carrier "
            "QUALIFY r = 1",
            "OVER beside GROUP BY is not compiled",
        ),
    ],
)
def test_qualify_of_groups_that_could_mean_two_things_is_refused(query: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as caught:
        rows_sql(query, "carrier")
    assert caught.value.remedy == "Group in a subquery, and write OVER in the query around it."
