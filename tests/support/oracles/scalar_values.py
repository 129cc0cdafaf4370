"""Values at which engines differ, and the calls that the small executor computes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

Row = dict[str, object]

KINDS = {
    "k": "BIGINT",
    "i": "INT",
    "j": "INT",
    "n": "BIGINT",
    "m": "BIGINT",
    "x": "DOUBLE",
    "y": "DOUBLE",
    "s": "STRING",
    "u": "STRING",
    "z": "STRING",
    "f": "STRING",
    "b": "BOOLEAN",
    "t": "TIMESTAMP",
    "v": "TIMESTAMP",
    "w": "TIMESTAMP",
    "d": "DATE",
    "e": "DATE",
    "p": "DECIMAL(10,2)",
    "q": "DECIMAL(12,8)",
    "o": "DECIMAL(38,10)",
    "h": "DECIMAL(20,4)",
}
TEXTS: Sequence[str | None] = (
    *(
        None,
        "",
        " ",
        "a",
        "A",
        "ab",
        "abc",
        "aXbXc",
        "ß",
        "ẞ",
        "Σ",
        "\u0391Σ",
        "\u0391Σ \u0392",
        "ǆ",
        "İ",
        "\u0131",
    ),
    *(
        "i\u0307",
        "é",
        "e\u0301",
        "\U0001f6eb",
        "z\U0001f6eba",
        " a ",
        "\ta\n",
        "  x  ",
        "a-b-c",
        "-a-",
    ),
    *("--", "hello world", "Hello", "100%", "a_b", "a\nb", "\u00a0x\u00a0", "\u3000x", "abcabc"),
    *("aaa", "baac", "x\r\n", "x\n", "x\r", "line\u2028", "日本語", "ﬁ", "ŉ", "a\\b", "$1", "12ab"),
    *("\u019b", "\ua7dc", "\u1c89", "123"),
)
NUMBERS: Sequence[str | None] = (
    *(None, "", " ", "0", "-0", "+5", "  7 ", "1.5", "1.", "1e3", ".5", "-.5e-3", "2147483647"),
    *("2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"),
    *("-9223372036854775808", "99999999999999999999", "NaN", "nan", "Infinity", "-Infinity", "inf"),
    *("-inf", "+infinity", "1d", "1f", "1D", "0x1p3", "0x1.8p1", "1e400", "-1e400", "1e-400"),
    *("0.1", "123456.785", "1.005", "0.005", "-0.005", "12345678.995", "99999999.994"),
    *("99999999.995", "abc", "--5", "+-5", "1_000", "1,000", "\u0661\u0662", "\u00a05", "\x005"),
    *("true", "TRUE", "t", "yes", "no", "f", "0 ", "y", "n", "128", "-129", "32768", "5e-324"),
    *("2.2250738585072011e-308", "9007199254740993", "1E5", "1e+5", "+.5", "-", "+", ".", "e5"),
    *("1e", "0x10", "1 2"),
)
_DAY = "2020-01-01"
TIMES: Sequence[str | None] = (
    *(None, "", _DAY, "2020-1-1", "2020-02-30", "2020-02-29", "2021-02-29", "2020", "2020-1"),
    *("20200101", f"{_DAY} ", f"{_DAY}T", f"{_DAY} foo", f"{_DAY}Tfoo", f"{_DAY}x", "-0001-01-01"),
    *("+2020-01-01", "+12345-01-01", "12345-01-01", "1234567-01-01", "0000-01-01", "9999-12-31"),
    *("999-01-01", f" {_DAY}", f"\t{_DAY}\n", "2020-13-01", "2020-00-01", "2020-01-00", "now"),
    *("2020-01-001", "2020-001-01", "2020/01/01", "1582-10-10", "epoch", f"{_DAY}-", "2020-"),
    *(f"{_DAY} 12", f"{_DAY} 12:3", f"{_DAY} 12:30", f"{_DAY} 1:2:3", f"{_DAY} 12:30:45.1"),
    *(f"{_DAY} 12:30:45.123456789", f"{_DAY} 24:00:00", f"{_DAY} 23:59:60", f"{_DAY} 12:60:00"),
    *(f"{_DAY} 12:", f"{_DAY}  12:30:45", f"{_DAY}t00:00:00", f"{_DAY}T12:30Z", f"{_DAY}T12Z"),
    *(f"{_DAY} 012:30:45", f"{_DAY} 12:30:045", "12345678901234", "1969-12-31 23:59:59.999999"),
    *("+123456-01-01 00:00:00", "-0044-03-15 10:00:00", "2020-1-2T3:4:5.6Z", f"{_DAY} 12:30:45."),
    *(
        f"{_DAY}T12:30:45{zone}"
        for zone in (
            *("Z", ".5Z", "+02:00", "+2:00", "+0200", "+02", "+2", "-18:00", "+18:01", "+02:3"),
            *(" +02:00", " Z", " UTC", "UTC", " UTC+1", " GMT+01:00", " UT", "z", ".123 Z", "+19"),
            *("+02:00:30", "+020030", ".5.5", " +2", "-0", " X", "+", "+2:3", "+02:60"),
            *(" UTC+01:00:00", ".123456789+05:30"),
        )
    ),
)
_NAN, _INF = float("nan"), float("inf")
_DOUBLES = (
    *(None, 0.0, -0.0, 0.1, 0.5, 1.5, 2.5, -0.5, -1.5, 1.005, 2.675, 1e15 + 0.5, 1e16, -1e300),
    *(1e300, _NAN, _INF, -_INF, 5e-324, 123456.785, 1e-7, 2**53 + 1.0, 9.3e18, -9.3e18, 0.285),
)

EXPRESSIONS = r"""
upper(s); lower(s); trim(s); ltrim(s); rtrim(s); btrim(s); trim(BOTH 'x' FROM s); btrim(s, u)
trim(BOTH u FROM s); trim(LEADING 'ax' FROM s); trim(TRAILING 'cX' FROM s); reverse(s)
substring(s, 2, 3); substring(s, 0, 2); substring(s, -2, 1); substring(s, -5, 3); substr(s, 2)
substring(s, i, j); substring(s, j, i); left(s, 2); left(s, i); right(s, 2); right(s, i)
translate(s, 'abX', 'xy'); translate(s, u, 'q'); lpad(s, 5, 'xy'); rpad(s, 5, 'xy'); lpad(s, 4)
rpad(s, j, '-'); lpad(s, 5, u); instr(s, u); instr(s, ''); locate('a', s, 2); locate('', s, 3)
locate('a', s, 0); repeat(s, j); concat_ws('-', s, u); concat_ws(s, u, u); md5(s); sha1(s)
sha2(s, 256); sha2(s, 0); sha2(s, 512); sha2(s, 224); crc32(s); hex(s); octet_length(s)
substring_index(s, '-', 1); substring_index(s, '-', -1); substring_index(s, 'a', -2)
substring_index(s, u, j); s LIKE 'a%'; s LIKE '%b%'; s LIKE '_'; s NOT LIKE 'a%'; s LIKE ''
s LIKE '%ß%'; s RLIKE '^a'; s RLIKE 'x$'; s RLIKE '^.$'; s RLIKE 'a.b'; s RLIKE '[a-c]{2,}'
s RLIKE '^[^a]'; s RLIKE '(ab|bc)+'; s RLIKE '\\d'; s RLIKE '^\\w+$'; s RLIKE '\\s'; s RLIKE 'a|'
regexp_replace(s, '[ab]+', '<$0>'); regexp_replace(s, '(a)(b)?', '$2-$1')
regexp_replace(s, '(.)', '$1$1'); regexp_replace(s, '-', '\\$'); regexp_replace(s, '\\s+$', '')
regexp_extract(s, '(a)(b)', 2); regexp_extract(s, '(a)|(b)', 2); regexp_extract(s, 'a+', 0)
regexp_extract(s, '()()()()()()()()()(a)', 10)
floor(x); ceil(x); floor(i); ceil(n); floor(p); ceil(q); round(x); round(x, 2); round(x, 5)
round(i); round(p); round(p, 1); round(q, 3); round(q, 9); sqrt(x); sqrt(i); sign(x); sign(i)
pmod(i, 3); pmod(n, 7); pmod(n, m); isnan(x); nanvl(x, y); nvl(x, 0); nvl(p, 0); coalesce(n, i, 0)
coalesce(p, h); greatest(i, n); least(x, i); greatest(p, q); nvl2(i, 1, 2); nvl2(s, 'y', 'n')
nvl2(b, i, n); zeroifnull(x); isnull(i); isnotnull(s); abs(p); -p; nullif(p, 0)
CASE WHEN b THEN p ELSE 0 END; if(b, i, n); if(b, p, h); CASE WHEN b THEN x ELSE i END
p / nullif(q, 0); p / 3; p / j; h / nullif(p, 0); 3 / nullif(p, 0); p * 2; p + 1; p - 10; q * p
CAST(h AS DECIMAL(32, 4)) * CAST(p AS DECIMAL(16, 2)); CAST(h AS DECIMAL(38, 4)) - p
CAST(h AS DECIMAL(38, 4)) / nullif(CAST(p AS DECIMAL(38, 4)), 0); h * p / nullif(q, 0)
h / nullif(CAST(q AS DECIMAL(38, 8)), 0); CAST(h AS DECIMAL(38, 4)) > o
CAST(h AS DECIMAL(38, 2)) > CAST(h AS DECIMAL(38, 4)); o = CAST(p AS DECIMAL(38, 2)); o < h
e + INTERVAL '1' MONTH; e - INTERVAL 2 YEARS; e + INTERVAL '3' DAY; e - INTERVAL 2 WEEKS
w + INTERVAL 1 MONTH; w - INTERVAL '1' YEAR
x * p; p + x; x / nullif(p, 0); x - o; round(p * 1.19, 2); coalesce(p, 0) * 2
CAST(t AS DATE); CAST(d AS TIMESTAMP); CAST(t AS STRING); CAST(d AS STRING); to_date(t)
date_add(e, 3); date_sub(e, 3); date_add(w, j); datediff(d, e); datediff(t, e); dayofweek(d)
weekday(t); dayofyear(t); weekofyear(d); quarter(t); last_day(e); last_day(w); add_months(e, 1)
add_months(e, -13); add_months(w, j); date_trunc('MONTH', t); date_trunc('year', t)
date_trunc('QUARTER', w); date_trunc('week', w); trunc(e, 'MM'); trunc(e, 'week'); year(d)
second(t); extract(DOW FROM t); extract(DOY FROM t); extract(WEEK FROM d)
extract(DAYOFWEEK_ISO FROM d)
date_part('month', t); date_part('minute', t); unix_seconds(t); unix_millis(t)
timestamp_seconds(i); timestamp_millis(n % 100000000000); timestamp_micros(n % 1000000000000000)
timestampdiff(SECOND, t, v); timestampdiff(DAY, t, v); timestampdiff(WEEK, t, v)
TIMESTAMP '2020-01-01 10:00:00.25'; DATE '2020-02-29'; d = DATE '2020-01-01'
CAST(t AS BIGINT); CAST(t AS DOUBLE); CAST(i % 1000 AS SMALLINT); CAST(b AS INT); CAST(b AS DOUBLE)
CAST(p AS DOUBLE); CAST(o AS DOUBLE); CAST(h AS DOUBLE); CAST(p AS STRING); CAST(q AS STRING)
CAST(p AS INT); CAST(q AS BIGINT); CAST(p AS DECIMAL(10,1)); CAST(p AS DECIMAL(12,4))
CAST(q AS DECIMAL(12,3)); CAST(i AS DECIMAL(12,2)); CAST(y AS INT)
TRY_CAST(z AS INT); TRY_CAST(z AS BIGINT); TRY_CAST(z AS TINYINT); TRY_CAST(z AS DOUBLE)
TRY_CAST(z AS BOOLEAN); TRY_CAST(z AS DECIMAL(10,2)); TRY_CAST(z AS DECIMAL(38,10))
TRY_CAST(z AS DECIMAL(5,0)); TRY_CAST(f AS DATE); TRY_CAST(f AS TIMESTAMP)
TRY_CAST(n AS INT); TRY_CAST(n AS TINYINT); TRY_CAST(i AS BIGINT); TRY_CAST(p AS INT)
TRY_CAST(o AS BIGINT); TRY_CAST(q AS DECIMAL(5,4)); TRY_CAST(n AS DECIMAL(12,2))
TRY_CAST(CAST(n AS DECIMAL(19,0)) + CAST(m AS DECIMAL(19,0)) AS BIGINT)
CAST(n AS DECIMAL(19,0)) * CAST(m AS DECIMAL(19,0))
o / nullif(h, 0); o / nullif(q, 0); 3 / nullif(o, 0); CAST(j AS TINYINT) + CAST(3 AS TINYINT)
CAST(i % 100 AS SMALLINT) * 3; CAST(j AS TINYINT) < i; CAST(j AS SMALLINT) IN (1, n)
CAST(j AS TINYINT) % CAST(3 AS TINYINT); CAST(j AS SMALLINT) div 2; abs(CAST(j AS SMALLINT))
-CAST(j AS TINYINT); CAST(j AS TINYINT) = y; CAST(j AS TINYINT) / 2; CAST(j AS TINYINT) - x
"""

PLAIN_EXPRESSIONS = r"""
i + j; n - m; x * y; x - y; i * j; x / nullif(y, 0); i / nullif(j, 0); n % nullif(m, 0)
i div nullif(j, 0); -i; -x; -n; abs(i); abs(x); abs(n); i = j; x < y; s <= u; p > q; d = e
t >= v; i IN (1, 2, n); s IN ('a', u); x BETWEEN y AND 3; p BETWEEN 0 AND 1; b AND i > 0
b OR x > 1; NOT b; s || u; concat(s, u); length(s); date_format(t, 'yyyy-MM-dd HH:mm')
split_part(s, '-', 2); replace(s, 'a', 'bb'); startswith(s, u); endswith(s, u); contains(s, u)
date_trunc('HOUR', t); date_trunc('DAY', t); unix_micros(t); t + INTERVAL 1 DAY
w - INTERVAL '2' HOUR; i IS NULL; s <=> u; x <=> y; coalesce(s, u); coalesce(x, y)
greatest(s, u); least(d, e); greatest(x, y); nullif(s, u); nullif(x, y); nullif(i, j)
CASE s WHEN 'a' THEN 1 WHEN u THEN 2 ELSE 3 END; CASE x WHEN y THEN 'same' END; if(b, s, u)
x = y; x > 0; n > i; p = 0; n IS NOT NULL; CAST(i AS BIGINT)
CAST(i % 100 AS TINYINT) + CAST(j AS TINYINT); CAST(j AS TINYINT) = i; CAST(i % 50 AS TINYINT)
CAST(i AS DOUBLE); CAST(n AS DOUBLE); CAST(n AS STRING); CAST(i AS STRING); CAST(b AS STRING)
CAST(s AS STRING); TRY_CAST(s AS INT); TRY_CAST(s AS DOUBLE)
"""
"""What both engines have by the same words, and what stands in other functions as an argument."""


def written(text: str) -> Iterator[str]:
    """Yield the expressions of a text, which are on lines or between semicolons."""
    for line in text.splitlines():
        yield from (part.strip() for part in line.split(";") if part.strip())


def rows(count: int = 600) -> list[Row]:
    """Return rows of `KINDS` in which every value stands at least once, decimals as text."""
    draw = random.Random(11)
    moments = [None, *_moments(draw, 1, 9999)]
    middle = [None, *_moments(draw, 1500, 3000)]
    return [_row(draw, k, moments, middle) for k in range(count)]


def _moments(draw: random.Random, first: int, last: int) -> list[datetime]:
    drawn = [
        datetime(draw.randint(first, last), draw.randint(1, 12), draw.randint(1, 28), tzinfo=UTC)
        + timedelta(
            seconds=draw.randint(0, 86399), microseconds=draw.choice([0, 1, 500000, 123000])
        )
        for _ in range(60)
    ]
    start = datetime(1970, 1, 1, tzinfo=UTC)
    edges = [start, start - timedelta(microseconds=1), datetime(2024, 1, 31, tzinfo=UTC)]
    return [*drawn, *edges, datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC)]


def _row(
    draw: random.Random,
    k: int,
    moments: Sequence[datetime | None],
    middle: Sequence[datetime | None],
) -> Row:
    day, other = moments[k * 7 % len(moments)], middle[k * 5 % len(middle)]
    wide = draw.gauss(0, 1) * 10 ** draw.randint(-5, 12)
    return {
        "k": k,
        "i": draw.choice([None, 0, 1, 2, 3, -1, -3, 7, 30_000, 2**31 - 1, -(2**31)]),
        "j": draw.choice([None, 1, 2, -2, 7, -7]),
        "n": draw.choice([None, 0, -1, 2**53 + 1, 10**17, 2**63 - 1, -(2**63), 1_700_000_000]),
        "m": draw.choice([None, 1, -1, 3, -3, 2**40]),
        "x": draw.choice(_DOUBLES) if k % 2 else draw.choice([round(draw.uniform(-9, 9), 3), wide]),
        "y": draw.choice([one for one in _DOUBLES if one is None or abs(one) < 1e9]),
        "s": TEXTS[k % len(TEXTS)],
        "u": draw.choice(TEXTS),
        "z": NUMBERS[k % len(NUMBERS)],
        "f": TIMES[k % len(TIMES)],
        "b": draw.choice([None, True, False]),
        "t": moments[k % len(moments)],
        "v": draw.choice(moments),
        "w": middle[k % len(middle)],
        "d": None if day is None else day.date(),
        "e": None if other is None else other.date(),
        "p": {1: "99999999.99", 2: "-0.05", 3: "0.00"}.get(k, _decimal(draw, k % 9, 10**8, 2)),
        "q": _decimal(draw, k % 8, 10**4, 8),
        "o": _decimal(draw, k % 7, 10**27, 10),
        "h": _decimal(draw, k % 6, 10**15, 4),
    }


def _decimal(draw: random.Random, null: int, most: int, scale: int) -> str | None:
    whole, part = draw.randrange(-most + 1, most), draw.randrange(10**scale)
    return f"{whole}.{part:0{scale}}" if null else None
