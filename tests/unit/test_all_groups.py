"""GROUP BY ALL is GROUP BY with the results that are no aggregates."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from tests.support.oracles.sql_world import planned

FROM = "FROM STREAM events.flight.departed"


def rows_sql(query: str) -> str:
    return planned(f"CREATE PROJECTION p WITH (key = 'carrier, o') AS {query}").rows_sql


@pytest.mark.parametrize(
    ("results", "groups"),
    [
        ("carrier, lower(origin) AS o, COUNT(*) AS n", "carrier, lower(origin)"),
        ("carrier, origin AS o, 'x' AS k, MAX(delay) + 1 AS m", "carrier, origin"),
        ("carrier, RANK() OVER (ORDER BY COUNT(*)) AS r, origin AS o", "carrier, origin"),
    ],
)
def test_all_are_the_results_that_are_no_aggregates(results: str, groups: str) -> None:
    written, meant = (f"SELECT {results} {FROM} GROUP BY {by}" for by in ("ALL", groups))
    assert rows_sql(written) == rows_sql(meant)


def test_all_where_there_is_nothing_to_group_by_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="GROUP BY ALL is not compiled"):
        rows_sql(f"SELECT 'x' AS carrier, 'y' AS o, COUNT(*) AS n {FROM} GROUP BY ALL")
