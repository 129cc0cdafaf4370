"""MATCH_RECOGNIZE: what is refused, with place and remedy, and what a search gives up."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from kernel.errors import ContractViolation, InvalidRequest
from projections.run import matcher
from projections.run.dataflow import Dataflow
from projections.run.matcher import Matcher
from projections.sql.operators.formulas import FormulaOperation, Pick, Take, Taken, Value
from projections.sql.operators.patterns import Choice, MatchSkip, Repeated, Sequel, Variable
from projections.sql.operators.tree import scans
from projections.sql.plans.explain import page
from projections.sql.plans.plan import Strategy, plan
from projections.sql.rendering.certified import uncertified
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation
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
    ("A.position AS p", "LAST(A.position, delay) AS p", "LAST takes an expression and a number"),
    ("delay > 0", "FINAL LAST(delay) > 0", "FINAL in a condition: the match is not whole there"),
    ("PATTERN (A B+)", "PATTERN (PERMUTE(A, B, C, D, E, F))", "PERMUTE of 6 parts"),
    ("A.position AS p", "A.position", "a measure without a name"),
    ("A.position AS p", "A.position AS p, A.delay AS flight", "two columns are named flight"),
    ("ORDER BY occurred_at", "ORDER BY delay", "in the order of a time, not of INT"),
    ("ORDER BY occurred_at", "ORDER BY occurred_at DESC", "from the first to the last"),
    ("ORDER BY occurred_at", "", "MATCH_RECOGNIZE without ORDER BY"),
    ("PARTITION BY flight", "PARTITION BY upper(flight)", "rows are partitioned by columns"),
    ("INTERVAL 1 HOUR", "INTERVAL 1 MONTH", "WITHIN takes a length of time"),
    ("PATTERN", "ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN", "UNMATCHED ROWS is not compiled"),
    ("PATTERN", "AFTER MATCH SKIP TO A B PATTERN", "SKIP TO A B is not compiled"),
    ("PATTERN", "AFTER MATCH SKIP TO C PATTERN", "SKIP TO C: not every match has a C; there is A"),
    ("PATTERN (A B+)", "AFTER MATCH SKIP TO B PATTERN (A C B?)", "not every match has a B"),
    ("PATTERN", "SUBSET U = (A) PATTERN", "SUBSET is not compiled"),
    ("departed e", "departed a", "a is what is read, and a variable of the pattern"),
    ("FROM STREAM events.flight.departed e", "", "MATCH_RECOGNIZE follows what it reads"),
    ("departed e", "departed LATERAL VIEW explode(array(1)) t AS x", "reads one input, and no"),
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


def _matcher(pattern: Sequel, condition: FormulaOperation) -> Matcher:
    pick = Pick(name="n", taken=Taken(Take.COUNT, None, None), kind="", type="BIGINT")
    return Matcher(
        pattern=pattern,
        conditions=(("A", condition),),
        time="t",
        within_us=None,
        skip=MatchSkip.PAST_LAST_ROW,
        skip_to=None,
        each_row=False,
        picks=(pick,),
        taken=("_time", "_seq_hi", "_seq_lo", "t"),
        given=None,
    )


def test_a_search_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """((A | B)+) C with a condition that looks back can be tried in as many ways as there are."""
    monkeypatch.setattr(matcher, "MOST_STEPS", 10_000)
    looks_back = FormulaOperation(">", (Taken(Take.COUNT, None, None), Value(0)))
    never = FormulaOperation("<", (Value(1), Value(0)))
    rows = [{"_time": n, "_seq_hi": n, "_seq_lo": 0, "t": n} for n in range(40)]
    endless = replace(_matcher(LOOPING, looks_back), conditions=(("A", looks_back), ("C", never)))
    with pytest.raises(InvalidRequest, match="in more than 10000 ways"):
        endless.matches(rows)


def test_a_search_that_does_not_look_back_tries_each_place_once() -> None:
    """The same with conditions over single rows takes no time, however many rows there are."""
    rows = [{"_time": n, "_seq_hi": n, "_seq_lo": 0, "t": n} for n in range(300)]
    plain = _matcher(LOOPING, FormulaOperation("is null", (Value(1),)))
    (match,) = plain.matches(rows)
    assert match[-1] == len(rows)


def test_rows_of_many_partitions_are_no_objects_at_the_same_time() -> None:
    """Spark hands over a batch of keys, each with all of its rows: memory does not follow them."""
    never = FormulaOperation("<", (Value(1), Value(0)))
    columns = ("_time", "_seq_hi", "_seq_lo", "t")
    row = pa.struct([(f"f{i}", pa.int64()) for i in range(len(columns))])
    given = pa.list_(pa.struct([(f"g{i}", pa.int64()) for i in range(6)]))
    plain = replace(_matcher(Sequel((Variable("A"),)), never), given=given)

    def most(partitions: int) -> int:
        rows = [{f"f{i}": n for i in range(len(columns))} for n in range(40)]
        lists = pa.array([None, [], *[rows] * partitions], pa.list_(row))
        tracemalloc.start()
        try:
            found = plain(lists)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert found.to_pylist() == [[]] * (partitions + 2)

    few = matcher.ROWS_AT_ONCE // 40
    assert most(8 * few) < 2 * most(few)


PRICED = {
    "item": ("STRING", pa.string()),
    "n": ("BIGINT", pa.int64()),
    "price": ("DECIMAL(38,18)", pa.decimal128(38, 18)),
    "ratio": ("DOUBLE", pa.float64()),
    "word": ("STRING", pa.string()),
    "occurred_at": ("TIMESTAMP", pa.timestamp("us", "UTC")),
}
LONG, LONGER = "12345678901234567890.123456789012345678", "12345678901234567890.123456789012345679"
NUMBERS = [
    # A literal without exponent is a decimal: what is written is what is compared.
    ("B.price >= A.price * 1.1", ("1.00", "1.10"), True),
    ("B.price > A.price * 1.1", ("1.00", "1.10"), False),
    ("B.price = A.price + 0.1", ("0.20", "0.30"), True),
    ("B.price - A.price = 0.1", ("0.20", "0.30"), True),
    ("B.price / A.price = 1.1", ("0.30", "0.33"), True),
    ("AVG(price) = 0.15 AND B.n > A.n", ("0.10", "0.20"), True),
    # No digit is lost, of the 38 that a decimal has and the more that a product has.
    ("B.price = A.price + 0.000000000000000001", (LONG, LONGER), True),
    ("B.price > A.price * 1", (LONG, LONG), False),
    ("B.price > -(-A.price)", (LONG, LONG), False),
    ("abs(A.price) < B.price", (LONG, LONGER), True),
    ("SUM(A.price) < B.price", (LONG, LONGER), True),
    # With an exponent it is a double, and so is all that is computed or compared with one.
    ("B.price = A.price * 3e0", ("0.1", "0.3"), False),
    ("B.ratio = A.ratio * 3.0", ("0.1", "0.3"), False),
    ("B.ratio = A.price", ("0.1", "0.1"), True),
    ("A.ratio + 0.2 > B.ratio", ("0.1", "0.3"), True),
    ("A.ratio * 1.0 = 0.1 AND B.n > A.n", ("0.1", "0.3"), True),
    # What a part decides is not asked of the next one: not over several rows, nor of one alone.
    ("A.n <> 0 AND B.n / A.n > 1", ("1", "2"), False),
    ("A.n = 0 OR B.n / A.n > 1", ("1", "2"), True),
    ("coalesce(A.price, B.n / A.n) = 1", ("1", "2"), True),
    ("NOT (A.price > 1 AND B.n / A.n > 1)", ("1", "2"), True),
    ("A.n BETWEEN 1 AND B.n / A.n", ("1", "2"), False),
    ("A.n >= 0 AND B.n <> 0 AND 10 / B.n > A.n", ("1", "2"), True),
    ("B.n <> 0 AND A.n >= 0 AND 10 / B.n > A.n", ("1", "2"), True),
    ("B.n <> 0 AND (A.n > 5 OR 10 / B.n > A.n)", ("1", "2"), True),
    ("A.n > 5 OR B.n = 0 OR 10 / B.n > A.n", ("1", "2"), True),
    ("coalesce(B.n, A.n, 10 / B.n) = 1", ("1", "2"), True),
    ("B.n <> 0 AND 10 / B.n > 20 AND A.n >= 0", ("1", "2"), False),
    # Unknown decides nothing.
    ("NOT (nullif(B.n, 1) > 0 AND A.n > B.n - 1)", ("1", "2"), True),
    ("nullif(B.n, 1) > 0 OR A.n = B.n - 1", ("1", "2"), True),
]


@pytest.mark.parametrize(("condition", "prices", "holds"), NUMBERS, ids=[n[0] for n in NUMBERS])
def test_numbers_of_a_pattern_are_the_ones_of_sql(
    condition: str, prices: Sequence[str], holds: bool
) -> None:
    pattern = f"PATTERN (A B) WITHIN INTERVAL 1 HOUR DEFINE B AS {condition}"
    made = _matched("A.n AS n", pattern, prices)
    assert made["n"].to_pylist() == ([0] if holds else [])


@pytest.mark.parametrize(
    ("prices", "mean"),
    [
        (("0.01", "0.01", "0.02"), "0.013333"),
        (("0.02", "0.02", "0.01"), "0.016667"),
        (("-0.02", "-0.02", "-0.01"), "-0.016667"),
    ],
)
def test_an_average_of_decimals_has_as_many_digits_as_its_type(
    prices: Sequence[str], mean: str
) -> None:
    value = "AVG(CAST(B.price AS DECIMAL(10,2))) AS n"
    made = _matched(value, "PATTERN (B B B) DEFINE B AS B.n >= 0", prices)
    assert made["n"].to_pylist() == [Decimal(mean)]


@pytest.mark.parametrize(
    ("measure", "define", "value"),
    [
        # Of the rows with the numbers 0, 1 and 2 the first one never is an A.
        ("CAST(SUM(10 / A.n) AS INT) AS n", "A AS A.n <> 0", 15),
        ("CAST(SUM(10 / A.n) AS INT) AS n", "A AS A.n > X.n", 15),
        ("CAST(LAST(10 / (A.n - 1)) AS INT) AS n", "A AS A.n > X.n", 10),
        ("COUNT(8 / A.n / A.n) AS n", "A AS A.n > X.n", 2),
        ("SUM(7 % A.n) AS n", "A AS A.n > X.n", 1),
        ("SUM(10.0 / CAST(A.price AS DECIMAL(9,2))) AS n", "A AS A.n > X.n", Decimal(15)),
        ("SUM(CAST(nullif(A.word, '1') AS INT)) AS n", "A AS A.n > X.n", 2),
        ("MAX(A.n) AS n", "A AS A.n > X.n AND SUM(2 / A.n) > 1", 2),
    ],
)
def test_what_an_aggregate_is_over_is_asked_of_the_rows_of_its_variable(
    measure: str, define: str, value: int | Decimal
) -> None:
    made = _matched(measure, f"PATTERN (X A A) DEFINE {define}", ("0", "1", "2"))
    assert made["n"].to_pylist() == [value]


@pytest.mark.parametrize("value", ["10 / A.n", "10 % A.n", "CAST(A.word AS INT)"])
def test_an_error_in_a_row_that_an_aggregate_takes_is_raised(value: str) -> None:
    with pytest.raises(
        ContractViolation, match="a division by zero, a number that is too large, or"
    ):
        _matched(
            f"CAST(SUM({value}) AS INT) AS n", "PATTERN (A A) DEFINE A AS A.n >= 0", ("0", "1")
        )


ASKED = [
    "10 / A.n > 1",
    "A.word <> 'x' AND 10 / A.n > 1",
    "A.n > 5 OR 10 / A.n > 1",
    "NOT (10 % A.n > 1)",
    "CASE WHEN A.ratio < 5 THEN 10 / A.n > 1 END",
    "CASE A.word WHEN 'x' THEN false ELSE 10 DIV A.n > 1 END",
    "CASE WHEN 10 / A.n > 20 THEN false ELSE true END",
    "if(A.n < 5, 10 / A.n, 0) > 1",
    "nvl2(A.word, 10 / A.n, 0) > 1",
    "coalesce(nullif(A.word, 'none') = 'x', 10 / A.n > 1, true) IS NOT NULL AND 10 / A.n > 1",
    "A.n BETWEEN 0 AND 10 DIV A.n",
    "CAST(A.word AS INT) > 0",
    "A.n - 2 - 9223372036854775807 < 0",
    "2147483645 + (3 - CAST(A.n AS INT)) > 0",
    "(A.n - 3) * 4611686018427387904 < 0",
    "(CAST(A.n AS INT) - 3) * 1073741824 < 0",
    "-(A.n - 1 - 9223372036854775807) > 0",
    "abs(A.n - 1 - 9223372036854775807) > 0",
    "CAST(2147483648 - A.n AS INT) > 0",
    "CAST(128 - A.n AS TINYINT) IS NOT NULL",
    "CAST(2147483648e0 - A.ratio AS INT) > 0",
    "CAST(10 - CAST(A.price AS DECIMAL(3,0)) AS DECIMAL(1,0)) > 0",
    "A.n IN (2, 10 DIV A.n, 1)",
    "CAST(A.n AS TINYINT) + CAST(A.n AS TINYINT) - CAST(100 AS TINYINT) - CAST(29 AS TINYINT) < 0",
    "CAST(32767 AS SMALLINT) + CAST(1 - A.n AS SMALLINT) > 0",
    "A.n = 2 OR NEXT(10 / A.n) > 1",
]


@pytest.mark.parametrize("condition", ASKED)
def test_a_condition_is_an_error_in_rows_that_the_pattern_asks_for_alone(condition: str) -> None:
    """Of the rows with the numbers 0, 1 and 2 the first one is never asked whether it is an A."""
    pattern = f"PATTERN (X A A) DEFINE X AS X.n = 0, A AS {condition}"
    assert _matched("COUNT(A.*) AS n", pattern, ("0", "1", "2"))["n"].to_pylist() == [2]
    if "NEXT" not in condition:
        with pytest.raises(ContractViolation, match="or a value that a cast cannot read, in a pat"):
            _matched("COUNT(A.*) AS n", f"PATTERN (A) DEFINE A AS {condition}", ("0", "1", "2"))


@pytest.mark.parametrize(
    "condition",
    [
        "A.n <> 0 AND 10 / A.n > 1",
        "A.n = 5 OR (A.n > 0 AND A.n - 2 - 9223372036854775807 < 0)",
        "coalesce(A.word = 'none', 10 / A.n > 1) = false OR A.n = 2 OR 10 / nullif(A.n, 0) > 9",
        "CASE WHEN A.n = 0 THEN false ELSE 10 / A.n > 1 END",
        "A.n NOT IN (0, 10 DIV A.n)",
        "A.n IN (2, 1, 10 DIV (A.n - 1))",
        "CASE A.n WHEN 0 THEN false WHEN 10 DIV A.n THEN false ELSE true END",
    ],
)
def test_what_a_part_before_decides_is_no_error_in_a_row_that_is_asked(condition: str) -> None:
    made = _matched("COUNT(A.*) AS n", f"PATTERN (A A) DEFINE A AS {condition}", ("0", "1", "2"))
    assert made["n"].to_pylist() == [2]


def test_an_error_beside_a_row_is_one_of_the_row_that_asks_for_it() -> None:
    pattern = "PATTERN (X A) DEFINE A AS PREV(10 / A.n) > 1"
    with pytest.raises(ContractViolation, match="in a pattern"):
        _matched("COUNT(A.*) AS n", pattern, ("0", "1", "2"))


ACME = (
    "PATTERN (S DOWN+ UP) DEFINE DOWN AS (LAST(DOWN.price, 1) IS NULL AND DOWN.price < S.price) "
    "OR DOWN.price < LAST(DOWN.price, 1), UP AS UP.price > LAST(DOWN.price, 1)"
)
FALLEN = ("12", "17", "19", "21", "25", "18", "15", "14", "24", "25", "19")
AVERAGED = ("12", "17", "13", "16", "25", "2", "4", "10", "15", "25", "25", "30")
SUMMED = ("7", "9", "10", "5", "17", "14")


@pytest.mark.parametrize(
    ("measure", "pattern", "prices", "values"),
    [
        ("S.n AS n", f"AFTER MATCH SKIP TO LAST UP {ACME}", FALLEN, [4]),
        ("LAST(DOWN.n) AS n", f"AFTER MATCH SKIP TO LAST UP {ACME}", FALLEN, [7]),
        ("LAST(UP.n) AS n", f"AFTER MATCH SKIP TO LAST UP {ACME}", FALLEN, [8]),
        ("FIRST(A.n) AS n", "PATTERN (A+ B) DEFINE A AS AVG(A.price) < 15", AVERAGED, [0, 5]),
        ("LAST(A.n) AS n", "PATTERN (A+ B) DEFINE A AS AVG(A.price) < 15", AVERAGED, [3, 10]),
        *(
            (
                "CAST(SUM(A.price) AS INT) AS n",
                f"AFTER MATCH SKIP {skip} PATTERN (A+ C) DEFINE A AS SUM(A.price) < 30",
                SUMMED,
                sums,
            )
            for skip, sums in (
                ("PAST LAST ROW", [26, 17]),
                ("TO NEXT ROW", [26, 24, 15, 22, 17]),
                ("TO LAST A", [26, 15, 22, 17]),
                ("TO A", [26, 15, 22, 17]),
                ("TO FIRST A", [26, 24, 15, 22, 17]),
                ("TO FIRST C", [26, 22]),
            )
        ),
    ],
)
def test_examples_of_others_give_what_they_say(
    measure: str, pattern: str, prices: Sequence[str], values: list[int]
) -> None:
    """The tickers of Flink's pages on pattern recognition, and the results that stand there."""
    assert sorted(_matched(measure, pattern, prices)["n"].to_pylist()) == sorted(values)


def _matched(measures: str, pattern: str, prices: Sequence[str]) -> pa.Table:
    """Return what a pattern over rows of these prices gives, one row for each minute."""
    stream = Relation(
        name="events.shop.priced",
        columns=tuple(Column(name=name, type=kind) for name, (kind, _) in PRICED.items()),
        key=(),
        event_time="occurred_at",
    )
    script = parse_script(
        "CREATE PROJECTION q WITH (key = 'n') AS SELECT n FROM STREAM events.shop.priced "
        f"MATCH_RECOGNIZE (PARTITION BY item ORDER BY occurred_at MEASURES {measures} {pattern}) m"
    )
    tree = plan(script.projections[0], MemoryCatalog(streams={stream.name: stream})).tree
    assert tree is not None
    assert uncertified(tree) is None
    facts = []
    for n, price in enumerate(map(Decimal, prices)):
        at = datetime(2013, 1, 1, 5, n, tzinfo=UTC)
        word = "none" if n == 0 else str(n)
        fact = {"item": "i", "n": n, "price": price, "ratio": float(price), "word": word}
        facts.append(fact | {"occurred_at": at, "_time": at, "_seq_hi": n, "_seq_lo": 0})
    shape = {name: kind for name, (_, kind) in PRICED.items()}
    shape |= {"_time": shape["occurred_at"], "_seq_hi": pa.int64(), "_seq_lo": pa.int64()}
    dataflow = Dataflow(tree)
    try:
        for scan in scans(tree):
            dataflow.add(scan, [pa.Table.from_pylist(facts, pa.schema(shape))])
        return dataflow.round()
    finally:
        dataflow.close()
