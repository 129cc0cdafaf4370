"""Statements that mean the same to Spark itself, over values at which engines differ."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

Row = dict[str, object]

STATEMENT_KINDS = {
    "k": "BIGINT",
    "g": "STRING",
    "i": "INT",
    "n": "BIGINT",
    "x": "DOUBLE",
    "s": "STRING",
    "b": "BOOLEAN",
    "t": "TIMESTAMP",
    "d": "DATE",
    "p": "DECIMAL(10,2)",
    "o": "DECIMAL(38,10)",
    "h": "DECIMAL(28,4)",
}
VALUES = [name for name in STATEMENT_KINDS if name not in "kg"]
NUMBERS = [name for name in VALUES if name in "inxpoh"]
_TIMES: Sequence[datetime] = (
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1582, 10, 10, 1, 2, 3, 4, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2024, 2, 29, tzinfo=UTC),
    datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
    datetime(2024, 3, 31, 2, 30, 0, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
)
_NAN, _INF = float("nan"), float("inf")
_CHOICES: dict[str, Sequence[object]] = {
    "g": ("a", "b", "c", None),
    "i": (None, 0, 1, -1, 2, 3, 100, 2**31 - 1, -(2**31)),
    "n": (None, 0, 1, 5, -7, 2**40, 2**53 + 1, -(2**62)),
    "x": (None, 0.0, -0.0, _NAN, _INF, -_INF, 1.5, -2.5, 1e300, 5e-324, 0.1, 0.2, 0.3, 1e16),
    "s": (None, "", "a", "A", "ab", "a ", "é", "e\u0301", "\U0001f6eb", "\uffff", "Z", "ß", "  a"),
    "b": (None, True, False),
    "t": (None, *_TIMES),
    "d": (None, *(each.date() for each in _TIMES)),
    "p": (None, "0.00", "1.10", "-99999999.99", "99999999.99", "0.01"),
    "o": (None, "0.0000000000", "1.1000000000", f"{10**28 - 1}.9999999999", "-1.0000000001"),
    "h": (None, "1.0000", "-1.0000", "123456789012345678901234.5678", "0.0001"),
}


def statement_rows(count: int = 60) -> list[Row]:
    """Return rows, decimals as text; the last two have no value but their key and group."""
    draw = random.Random(3)
    nothing: Row = dict.fromkeys(STATEMENT_KINDS)
    drawn: list[Row] = [
        {"k": k, **{name: draw.choice(values) for name, values in _CHOICES.items()}}
        for k in range(count)
    ]
    return [*drawn, *(nothing | {"k": k, "g": "nothing"} for k in (count, count + 1))]


def aggregates(c: str) -> Iterator[str]:
    """Yield aggregates of the values of a column."""
    one = _with_one_zero(c)
    yield from (f"COUNT({c})", f"COUNT(DISTINCT {c})", f"MAX_BY({c}, k)", f"MIN_BY({c}, k)")
    yield from (f"MIN({one})", f"MAX({one})", f"MAX({one}) FILTER (WHERE i > 0)")
    yield from (f"COUNT(DISTINCT {c}) FILTER (WHERE b)", f"MODE() WITHIN GROUP (ORDER BY {one})")
    if c in NUMBERS:
        within = f"WITHIN GROUP (ORDER BY {one})"
        yield from (f"PERCENTILE_DISC(0.5) {within}", f"PERCENTILE_DISC(0.07) {within}")
        yield from (f"percentile_approx({one}, 0.5)", f"PERCENTILE_DISC(0.3) {within[:-1]} DESC)")
    if c in "iph":
        yield from (f"AVG({c})", f"AVG(DISTINCT {c})", f"SUM({c})", f"TRY_SUM({c})")
        yield from (
            f"SUM(DISTINCT {c})",
            f"SUM({c}) FILTER (WHERE b)",
            f"AVG({c}) FILTER (WHERE b)",
        )
    match c:
        case "i":
            yield from ("BIT_AND(i)", "BIT_XOR(CAST(i % 100 AS SMALLINT))", "SUM(i) / 3")
            yield from ("SUM(CAST(i % 100 AS TINYINT))", "AVG(CAST(i % 100 AS SMALLINT))")
            yield from ("SUM(i) FILTER (WHERE k < 0)", "COUNT(i) FILTER (WHERE k < 0)")
            yield from ("COUNT(DISTINCT i, s)", "COUNT_IF(i > 1)")
        case "n":
            yield from ("BIT_OR(n)", "BIT_XOR(n)")
        case "b":
            yield from ("BOOL_AND(b)", "EVERY(b)", "BOOL_OR(b)", "SOME(b)")
        case "x":
            yield from ("COUNT_IF(x > 1)", "COUNT(i, x)", "COUNT(*)")
        case "p":
            yield from ("TRY_AVG(p)", "AVG(p * p)", "round(AVG(p), 3)", "SUM(1.5)")
        case "s":
            yield "LISTAGG(s, '|') WITHIN GROUP (ORDER BY s)"


def percentiles(c: str) -> Iterator[str]:
    """Yield percentiles between the values of a column."""
    one = _with_one_zero(c)
    yield from (f"MEDIAN({one})", f"PERCENTILE({one}, 0.25)")
    yield f"PERCENTILE_CONT(0.9) WITHIN GROUP (ORDER BY {one})"
    for part in (0.1, 0.3, 0.95):
        yield f"PERCENTILE_CONT({part}) WITHIN GROUP (ORDER BY {one} DESC)"


def _with_one_zero(c: str) -> str:
    """Write a value without the sign of a zero, of which Spark has whichever it met."""
    return "x + 0" if c == "x" else c


ORDERED_FRAMES = (
    "ORDER BY k ROWS BETWEEN 2 PRECEDING AND CURRENT ROW",
    "ORDER BY k DESC ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "ORDER BY k ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING",
)
"""Frames that are told by a key."""
_TIED_FRAMES = (
    *(
        "ORDER BY i",
        "ORDER BY x DESC",
        "ORDER BY s RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    ),
    "ORDER BY i % 100 RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "ORDER BY n DESC RANGE BETWEEN 5 PRECEDING AND CURRENT ROW",
    "ORDER BY d RANGE BETWEEN INTERVAL 3 DAYS PRECEDING AND CURRENT ROW",
    "ORDER BY t RANGE BETWEEN INTERVAL 1 HOUR PRECEDING AND INTERVAL 1 HOUR FOLLOWING",
    "ORDER BY i % 100 NULLS LAST RANGE BETWEEN 1 FOLLOWING AND 100 FOLLOWING",
)
FRAMES = ("PARTITION BY g", *(f"PARTITION BY g {one}" for one in (*ORDERED_FRAMES, *_TIED_FRAMES)))


def frames(around: str) -> Iterator[str]:
    """Yield aggregates and values over the rows of a frame."""
    calls = [f"{word}({c})" for word in ("SUM", "AVG") for c in "iph"]
    calls += [f"{word}({_with_one_zero(c)})" for word in ("MIN", "MAX") for c in VALUES]
    calls += ["COUNT(*)", "COUNT(x)", "BOOL_AND(b)", "COUNT_IF(x > 1)", "BIT_XOR(n)"]
    calls += ["SUM(i) FILTER (WHERE b)", "AVG(p) FILTER (WHERE b)"]
    if "ROWS" in around:
        calls += [f"{word}({c})" for word in ("FIRST_VALUE", "LAST_VALUE") for c in "xsp"]
        calls += ["NTH_VALUE(i, 2)", "FIRST_VALUE(i) IGNORE NULLS", "LAST_VALUE(o) IGNORE NULLS"]
    if "ORDER" not in around:
        calls += ["MEDIAN(i)", "PERCENTILE_CONT(0.3) WITHIN GROUP (ORDER BY p)"]
    yield from (f"{call} OVER ({around})" for call in calls)


def ranks(c: str) -> Iterator[str]:
    """Yield functions that tell rows apart by a column, and its values in their neighbours."""
    for order in (c, f"{c} DESC", f"{c} NULLS LAST", f"{c} DESC NULLS FIRST"):
        yield f"ROW_NUMBER() OVER (PARTITION BY g ORDER BY {order}, k)"
    for function in ("RANK()", "DENSE_RANK()", "PERCENT_RANK()", "CUME_DIST()"):
        yield f"{function} OVER (PARTITION BY g ORDER BY {c})"
    for function in (f"LAG({c})", f"LEAD({c}, 2)", f"FIRST_VALUE({c})", f"NTH_VALUE({c}, 2)"):
        yield f"{function} OVER (PARTITION BY g ORDER BY k)"
    yield f"LAST_VALUE({c}) IGNORE NULLS OVER (PARTITION BY g ORDER BY k)"


def choices(c: str) -> Iterator[tuple[str, str]]:
    """Yield keys and statements that compare, choose and join rows by the values of a column."""
    # Behind NOT IN, and nowhere else, Spark tells 0.0 from -0.0.
    known = f"{c} IS NOT NULL" + " AND x <> 0" * (c == "x")
    yield (
        "n",
        f"SELECT n, COUNT(*) AS m FROM (SELECT {c}, COUNT(*) AS n {{r}} GROUP BY {c}) z GROUP BY n",
    )
    for rest in (f"SELECT DISTINCT {c} {{r}}", *_of_both(c)):
        yield "a", f"SELECT 'a' AS a, COUNT(*) AS v FROM ({rest}) z GROUP BY 'a'"
    yield (
        "l, m",
        f"SELECT a.k AS l, b.k AS m, a.{c} AS v {{r}} a JOIN {{j}} b "
        f"ON a.{c} = b.{c} AND a.k < b.k",
    )
    yield (
        "k",
        f"SELECT a.k, COUNT(b.k) AS n {{r}} a LEFT JOIN {{j}} b "
        f"ON a.{c} < b.{c} AND b.k < 30 GROUP BY a.k",
    )
    yield "k", f"SELECT k {{r}} WHERE {c} IN (SELECT {c} {{r}} WHERE k < 30)"
    yield "k", f"SELECT k {{r}} WHERE {c} NOT IN (SELECT {c} {{r}} WHERE k < 9 AND {known})"
    yield (
        "k",
        f"SELECT k {{r}} a WHERE NOT EXISTS (SELECT 1 {{r}} b WHERE b.{c} = a.{c} AND b.k < 20)",
    )
    yield "k", f"SELECT k {{r}} WHERE {c} = (SELECT MAX({c}) {{r}})"
    yield "k", f"SELECT k {{r}} ORDER BY {c} DESC NULLS LAST, k LIMIT 7"
    yield "k", f"SELECT k {{r}} ORDER BY {c}, k LIMIT 7"
    yield "k", f"SELECT a.k, (SELECT COUNT(*) {{r}} b WHERE b.{c} = a.{c}) AS v {{r}} a"


def _of_both(c: str) -> Iterator[str]:
    for word in ("INTERSECT", "EXCEPT", "UNION"):
        yield f"SELECT {c} {{r}} WHERE k < 40 {word} SELECT {c} {{r}} WHERE k >= 20"
