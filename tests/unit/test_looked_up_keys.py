"""A version is looked up by its whole key: no condition that only looks like one will do."""

from __future__ import annotations

import pytest

from kernel.errors import InvalidRequest
from projections.sql.plans.plan import Plan
from tests.support.oracles.sql_world import planned

FACTS = "SELECT e.flight, e.delay FROM STREAM events.flight.departed e"
AS_OF = "FOR SYSTEM_TIME AS OF e.occurred_at"
FIRST = f"LEFT JOIN weather {AS_OF} w ON w.origin = e.origin"


def made(joins: str) -> Plan:
    return planned(f"CREATE PROJECTION p WITH (key = flight) AS {FACTS} {joins}")


@pytest.mark.parametrize(
    "condition",
    [
        "CAST(w.origin AS INT) = e.delay",
        "TRY_CAST(w.origin AS INT) = e.delay",
        "CASE WHEN e.delay > 0 THEN w.origin = 'JFK' ELSE true END AND length(w.origin) = e.delay",
        "CASE WHEN e.delay > 0 THEN w.origin = 'JFK' ELSE w.wind > e.delay END"
        " AND length(w.origin) = e.delay",
        "CASE WHEN e.delay > 0 THEN w.origin = 'JFK' WHEN w.wind > 3 THEN true ELSE false END"
        " AND length(w.origin) = e.delay",
    ],
)
def test_a_key_that_is_converted_or_told_at_times_is_not_the_whole_key(condition: str) -> None:
    with pytest.raises(InvalidRequest, match=r"every key column of weather .*: origin"):
        made(f"JOIN weather {AS_OF} w ON {condition}")


@pytest.mark.parametrize(
    ("condition", "types"),
    [
        ("w.origin = 5 AND w.hour = e.occurred_at", "STRING with INT"),
        ("w.origin = e.origin AND w.hour = '2013-01-01'", "TIMESTAMP with STRING"),
        ("w.origin = e.origin AND 5 = w.hour", "TIMESTAMP with INT"),
    ],
)
def test_a_key_is_compared_with_a_constant_of_its_own_type(condition: str, types: str) -> None:
    with pytest.raises(InvalidRequest, match=f"the join compares {types}"):
        made(f"JOIN demo.public.weather {AS_OF} w ON {condition}")


def test_of_two_types_the_key_keeps_its_own() -> None:
    with pytest.raises(InvalidRequest, match="compares STRING with INT") as refused:
        made(f"JOIN weather {AS_OF} w ON w.origin = e.delay")
    assert "CAST(… AS STRING)" in str(refused.value.remedy)


@pytest.mark.parametrize("constant", ["w.origin = 'JFK'", "(w.origin) = upper('jfk')"])
def test_a_part_of_the_key_may_be_a_constant(constant: str) -> None:
    assert made(f"JOIN demo.public.weather {AS_OF} w ON {constant} AND w.hour = e.occurred_at").key


def test_a_constant_is_one_behind_conditions_too() -> None:
    assert made(
        f"JOIN demo.public.weather {AS_OF} w"
        " ON w.hour = e.occurred_at AND w.wind > 3 AND w.origin = CAST(1 / 4 AS STRING)"
    ).key


@pytest.mark.parametrize(
    "condition",
    [
        "CASE WHEN w.wind > v.wind THEN true ELSE false END",
        "CASE WHEN w.wind > v.wind THEN v.origin > 'A' ELSE false END",
        "CASE WHEN v.wind > 3 THEN v.origin > 'A' ELSE w.wind > e.delay END",
    ],
)
def test_every_part_of_a_case_is_asked_for_other_joined_tables(condition: str) -> None:
    with pytest.raises(InvalidRequest, match="this condition of v reads another joined table"):
        made(f"{FIRST} LEFT JOIN weather {AS_OF} v ON v.origin = e.origin AND {condition}")


def test_a_time_of_another_joined_table_is_told_as_such() -> None:
    with pytest.raises(InvalidRequest, match="AS OF must be a time of e"):
        made(
            f"{FIRST} LEFT JOIN weather FOR SYSTEM_TIME AS OF w.hour v"
            " ON v.origin = e.origin AND CAST(v.origin AS INT) > 3"
        )
