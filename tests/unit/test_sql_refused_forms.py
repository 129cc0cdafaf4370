"""Forms that are near to what the dialect has: each is refused with its cause and a form."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from tests.support.oracles.sql_world import planned

STREAM = "STREAM events.flight.departed"
FROM = f"FROM {STREAM} e"
HOUR = "RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND CURRENT ROW"
REFUSED = [
    (
        f"first_value(delay) OVER (ORDER BY occurred_at DESC {HOUR}) AS r {FROM}",
        "FIRST_VALUE needs a frame of ROWS",
        "ROWS BETWEEN",
    ),
    (
        f"last_value(delay) OVER (ORDER BY distance) AS r {FROM}",
        "LAST_VALUE needs a frame of ROWS",
        "ROWS BETWEEN",
    ),
    (
        f"lag(delay, 0) IGNORE NULLS OVER (ORDER BY occurred_at) AS r {FROM}",
        "the offset is a number, 1 or more",
        "",
    ),
    (
        f"string_agg(DISTINCT carrier, ',' ORDER BY delay) AS r {FROM} GROUP BY flight",
        "distinct values in the order of others",
        "ORDER BY x DESC",
    ),
    (
        f"string_agg(carrier, ',' ORDER BY delay) OVER (PARTITION BY origin) AS r {FROM}",
        "in an order of its own before OVER",
        "ascending",
    ),
    (
        f"sum(delay ORDER BY delay) AS r {FROM} GROUP BY flight",
        "ORDER BY in a call that lists no values",
        "STRING_AGG(x, ', ' ORDER BY y DESC)",
    ),
    (
        f"try_sum(CAST(delay AS DECIMAL(30, 2))) AS r {FROM} GROUP BY flight",
        "TRY_SUM of DECIMAL(30,2)",
        "DECIMAL(28, 2)",
    ),
    ("v.n AS r FROM (VALUES ('a', 1)) v(flight, n)", "VALUES behind FROM", "FROM x [LEFT] JOIN"),
    (
        f"t.v {FROM} CROSS JOIN LATERAL (VALUES (e.delay), (e.origin)) t(v)",
        "the values of v have no one type",
        "CAST(",
    ),
    (
        f"what, v FROM (SELECT flight, delay, origin {FROM}) q "
        "UNPIVOT (v FOR what IN (delay, origin))",
        "the values of v have no one type",
        "CAST(",
    ),
    (f"delay {FROM.removesuffix(' e')} TABLESAMPLE (10 PERCENT)", "at every run", "pmod("),
    (
        f"delay * 2 AS twice {FROM} WHERE twice > 2",
        "no input has a column twice",
        "known in later results of the same SELECT",
    ),
    (
        f"t.v {FROM} CROSS JOIN (VALUES (e.delay)) t(v)",
        "VALUES reads a column",
        "LATERAL (VALUES",
    ),
    (
        f"b.delay AS r {FROM}, {STREAM} b RIGHT JOIN {STREAM} c ON c.flight = b.flight",
        "RIGHT JOIN behind a comma joins what stands",
        "CROSS JOIN a",
    ),
    (f"carrier SIMILAR TO origin AS r {FROM}", "a pattern that is written out", "a(b|c)%"),
    (f"carrier SIMILAR TO '[[:alpha:]]' AS r {FROM}", "a pattern that is written", "RLIKE"),
    # Java would refuse these when rows are computed.
    *(
        (f"carrier SIMILAR TO '{pattern}' AS r {FROM}", "a pattern that is written", "RLIKE")
        for pattern in ("a{b", "{abc}", "a{,3}", "a{2,1}", "a{99999999999}")
    ),
    (f"JSON_QUERY(origin, carrier) AS r {FROM}", "JSON_QUERY(…) is not", "'$.a.b[0]'"),
    (f"PROCTIME() AS r {FROM}", "PROCTIME(…) is not", "ingested_at"),
    (f"COLLECT(delay) AS r {FROM} GROUP BY flight", "COLLECT(…) is not", "ARRAY_AGG(x)"),
    (
        f"sum(delay) OVER (ORDER BY occurred_at GROUPS 1 PRECEDING) AS r {FROM}",
        "a frame of GROUPS is not compiled",
        "DENSE_RANK()",
    ),
]


@pytest.mark.parametrize(("query", "cause", "form"), REFUSED, ids=[each[1] for each in REFUSED])
def test_what_is_near_is_refused_with_its_cause(query: str, cause: str, form: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        planned(f"CREATE PROJECTION p WITH (key = 'flight') AS SELECT flight, {query}")
    assert cause in caught.value.message
    assert form in caught.value.remedy


def test_columns_of_totals_are_not_taken_for_those_of_the_query_around() -> None:
    with pytest.raises(InvalidRequest, match="aggregate in delay without GROUP BY"):
        planned(
            f"CREATE PROJECTION p WITH (key = 'flight') AS WITH b AS (SELECT MAX(delay) AS delay "
            f"{FROM}) SELECT flight, (SELECT b.delay - e.delay FROM b) AS r {FROM}"
        )


@pytest.mark.parametrize("name", ["*", "", "a?", "it''s"])
def test_fields_that_no_path_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        planned(
            f"CREATE PROJECTION p WITH (key = 'flight') AS SELECT flight, t.a {FROM} "
            f"LATERAL VIEW json_tuple(flight, '{name}') t AS a"
        )
    assert "a field's name, is none" in caught.value.message
    assert "json_tuple(" in caught.value.remedy
