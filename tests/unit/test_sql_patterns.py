"""MATCH_RECOGNIZE: what is refused, with place and remedy, and what a search gives up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernel.errors import InvalidRequest
from projections.run import matcher
from projections.run.matcher import Matcher
from projections.sql.explain import page
from projections.sql.formulas import Operation, Pick, Take, Taken, Value
from projections.sql.patterns import Choice, Repeated, Sequel, Variable
from projections.sql.plan import Strategy
from tests.support.oracles.sql_world import planned

QUERY = (
    "CREATE PROJECTION q WITH (key = 'p') AS SELECT p FROM STREAM events.flight.departed e "
    "MATCH_RECOGNIZE (PARTITION BY flight ORDER BY occurred_at MEASURES A.position AS p "
    "PATTERN (A B+) WITHIN INTERVAL 1 HOUR DEFINE A AS delay > 0) m"
)
FURTHER = "delay > 0, B AS "
REFUSED = [
    ("PATTERN (A B+)", "PATTERN (A? B*)", "the pattern may match no row at all"),
    ("PATTERN (A B+)", "PATTERN (A (B?)+)", "what may match no row at all is repeated"),
    ("PATTERN (A B+)", "PATTERN (A B{3,2})", "a part is repeated 3 to 2 times"),
    ("PATTERN (A B+)", "PATTERN (A B{1,101})", "a part is repeated 1 to 101 times"),
    ("PATTERN (A B+)", "PATTERN (A B", "a bracket is not closed"),
    ("PATTERN (A B+)", "PATTERN (A B) PATTERN (A)", "PATTERN stands there twice"),
    ("A AS delay > 0", "C AS delay > 0", "C is not in the pattern; there is A, B"),
    ("A AS delay > 0", "A AS delay > 0, A AS true", "A is defined twice"),
    ("A AS delay > 0", "A AS delay", "the condition of A is a number, neither true nor false"),
    ("delay > 0", f"{FURTHER}B.delay > A.origin", "> does not go with a number and text"),
    ("delay > 0", f"{FURTHER}B.occurred_at > A.occurred_at + 5", "+ does not go with a time and a"),
    ("delay > 0", f"{FURTHER}upper(A.origin) = B.origin", "UPPER is not computed over several"),
    ("delay > 0", "dely > 0", "no input has a column dely; did you mean delay"),
    ("delay > 0", "delay > SUM(A.delay + B.delay)", "columns of one variable"),
    ("delay > 0", "PREV(delay, 0) > 0", "PREV takes an expression and a number of rows"),
    ("delay > 0", "rand() > 0", "gives another value at every run"),
    ("A.position AS p", "COUNT(DISTINCT A.position) AS p", "without DISTINCT"),
    ("A.position AS p", "LAST(A.position, 1) AS p", "LAST takes one expression"),
    ("A.position AS p", "A.position", "a measure without a name"),
    ("A.position AS p", "A.position AS p, A.delay AS flight", "two columns are named flight"),
    ("ORDER BY occurred_at", "ORDER BY delay", "in the order of a time, not of INT"),
    ("ORDER BY occurred_at", "ORDER BY occurred_at DESC", "from the first to the last"),
    ("ORDER BY occurred_at", "", "MATCH_RECOGNIZE without ORDER BY"),
    ("PARTITION BY flight", "PARTITION BY upper(flight)", "rows are partitioned by columns"),
    ("INTERVAL 1 HOUR", "INTERVAL 1 MONTH", "WITHIN takes a length of time"),
    ("PATTERN", "ALL ROWS PER MATCH PATTERN", "ALL ROWS PER MATCH is not compiled"),
    ("PATTERN", "AFTER MATCH SKIP TO FIRST A PATTERN", "SKIP TO FIRST A is not compiled"),
    ("PATTERN", "SUBSET U = (A) PATTERN", "SUBSET is not compiled"),
    ("departed e", "departed a", "a is what is read, and a variable of the pattern"),
    ("FROM STREAM events.flight.departed e", "", "MATCH_RECOGNIZE follows what it reads"),
]


@pytest.mark.parametrize(("part", "other", "said"), REFUSED, ids=[each[1] for each in REFUSED])
def test_what_a_pattern_lacks_is_refused_at_its_place(part: str, other: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        planned(QUERY.replace(part, other))
    assert said in refused.value.message
    assert refused.value.message.startswith("<sql>:4:")
    assert refused.value.remedy


@pytest.mark.parametrize("other", [") m", ")", ") AS m"])
def test_a_pattern_is_kept_by_regions_under_any_alias(other: str) -> None:
    made = planned(QUERY.replace(") m", other))
    assert made.strategy is Strategy.REGIONS
    assert "matches of a pattern within 1 hour | region: the rest of the partition" in page(made)


def test_a_pattern_without_a_bound_says_what_it_costs() -> None:
    made = page(planned(QUERY.replace("WITHIN INTERVAL 1 HOUR", "")))
    assert "a pattern without WITHIN searches whole partitions at every change" in made


LOOPING = Sequel(
    (Repeated(Choice((Variable("A"), Variable("B"))), 1, None, reluctant=False), Variable("C"))
)


def _matcher(pattern: Sequel, condition: Operation) -> Matcher:
    pick = Pick(name="n", taken=Taken(Take.COUNT, None, None), kind="", type="BIGINT")
    return Matcher(
        pattern=pattern,
        conditions=(("A", condition),),
        time="t",
        within_us=None,
        overlapping=False,
        picks=(pick,),
        taken=("_time", "_seq_hi", "_seq_lo", "t"),
        given=None,
    )


def test_a_search_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """((A | B)+) C with a condition that looks back can be tried in as many ways as there are."""
    monkeypatch.setattr(matcher, "MOST_STEPS", 10_000)
    looks_back = Operation(">", (Taken(Take.COUNT, None, None), Value(0)))
    never = Operation("<", (Value(1), Value(0)))
    rows = [{"_time": n, "_seq_hi": n, "_seq_lo": 0, "t": n} for n in range(40)]
    endless = replace(_matcher(LOOPING, looks_back), conditions=(("A", looks_back), ("C", never)))
    with pytest.raises(InvalidRequest, match="in more than 10000 ways"):
        endless.matches(rows)


def test_a_search_that_does_not_look_back_tries_each_place_once() -> None:
    """The same with conditions over single rows takes no time, however many rows there are."""
    rows = [{"_time": n, "_seq_hi": n, "_seq_lo": 0, "t": n} for n in range(300)]
    plain = _matcher(LOOPING, Operation("is null", (Value(1),)))
    (match,) = plain.matches(rows)
    assert match[-1] == len(rows)
