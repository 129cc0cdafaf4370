"""Random values of PostgreSQL's types, as the text that PostgreSQL reads.

A `Kind` is a type with a strategy for its literals. Arrays are written here, with every item in
quotes, so that PostgreSQL's own way to write them is never taken from the code under test.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st

SETUP = """
CREATE EXTENSION IF NOT EXISTS hstore;
CREATE EXTENSION IF NOT EXISTS citext;
CREATE EXTENSION IF NOT EXISTS ltree;
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TYPE mood AS ENUM ('sad', 'o k', 'HAPPY,"quoted"');
CREATE TYPE place AS (street text, number int, at timestamptz, spans interval, share float8);
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN price AS numeric(10, 2);
CREATE DOMAIN finite AS interval CHECK (isfinite(value));
CREATE DOMAIN clock AS timetz;
CREATE DOMAIN marks AS int[];
CREATE DOMAIN dear AS price CHECK (value IS NULL OR value <> 0.01);
CREATE DOMAIN grid AS int[][];
CREATE DOMAIN feeling AS mood;
"""

Text = st.SearchStrategy[str]


@dataclass(frozen=True, slots=True)
class Kind:
    """A type as a column has it, and literals of its values."""

    sql: str
    literals: Text


def _ints(bits: int) -> Text:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(str)


def _joined(template: str, *parts: Text) -> Text:
    return st.tuples(*parts).map(lambda values: template.format(*values))


def _scaled(digits: int, scale: int) -> Text:
    limit = 10**digits - 1
    return st.integers(-limit, limit).map(lambda n: f"{n}e-{scale}")


def _padded(low: int, high: int, width: int = 2) -> Text:
    return st.integers(low, high).map(lambda n: f"{n:0{width}d}")


def _texts(max_size: int = 12) -> Text:
    odd = st.sampled_from(
        ["", "N", "NULL", "null", "\\", '"', "{}", "a,b", "\n", "\t\r", "\\N", "é😀"]
    )
    plain = st.text(
        st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=max_size
    )
    return st.one_of(odd, plain)


def _days(last: int) -> Text:
    after = _joined("{}-{}-{}", _padded(1, last, 4), _padded(1, 12), _padded(1, 28))
    before = _joined("{}-{}-{} BC", _padded(1, 4712, 4), _padded(1, 12), _padded(1, 28))
    common = st.dates().map(str)
    edges = st.sampled_from(
        [
            *("infinity", "-infinity", "0001-01-01", "9999-12-31", "10000-01-01"),
            *("1582-10-10", "1500-02-28", "0005-02-29 BC", "2000-02-29", "0001-12-31 BC"),
            f"{last}-12-31",
        ]
    )
    return st.one_of(common, after, before, edges)


CLOCK = st.one_of(
    _joined("{}:{}:{}.{}", _padded(0, 23), _padded(0, 59), _padded(0, 59), _padded(0, 999999, 6)),
    _joined("{}:{}:{}", _padded(0, 23), _padded(0, 59), _padded(0, 59)),
)
OFFSET = _joined("{}{}:{}", st.sampled_from("+-"), _padded(0, 14), _padded(0, 59))


def _moment(day: str, clock: str) -> str:
    if "infinity" in day:
        return day
    date, _, era = day.partition(" ")
    return f"{date} {clock} {era}".strip()


MOMENTS = st.builds(_moment, _days(294275), CLOCK)
ZONED = st.one_of(MOMENTS, _joined("{} {}{}", st.dates().map(str), CLOCK, OFFSET))
FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([0.0, -0.0, 1e15, 1e14, 123456789012345.6, 1e-4, 1e-5, 1e16, -1e22, 5e-324]),
).map(repr)
FLOATS_4 = st.floats(width=32).map(repr)
SMALL = st.floats(-1e6, 1e6, allow_nan=False).map(repr)
POINT = _joined("({},{})", FLOATS, FLOATS)
SMALL_POINT = _joined("({},{})", SMALL, SMALL)
INTERVALS = st.one_of(
    _joined(
        "{} years {} mons {} days {} hours {} mins {} secs {} us",
        *(st.integers(-n, n).map(str) for n in (999, 11, 40000, 99999, 59, 59, 999999)),
    ),
    st.sampled_from(["0", "-00:00:01", "00:00:00.000001", "-1 mon +1 day -00:00:00.5"]),
    st.sampled_from(["1 day -00:00:01", "178000000 years", "-178000000 years", "1193046:59:59"]),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
).map(json.dumps)
JSON_SAFE = JSON.filter(lambda text: "\\u0000" not in text and "\\ud" not in text.lower())
WORDS = st.text(string.ascii_letters, min_size=1, max_size=6)
BITS = st.text("01", max_size=12)
ADDRESS = st.one_of(
    st.ip_addresses().map(str),
    _joined("{}/{}", st.ip_addresses(v=4).map(str), st.integers(0, 32).map(str)),
    _joined("{}/{}", st.ip_addresses(v=6).map(str), st.integers(0, 128).map(str)),
)
NETWORK = st.one_of(
    st.integers(0, 255).map(lambda n: f"{n}.0.0.0/8"), st.just("2001:db8::/32"), st.just("::1/128")
)
HEX = string.digits + "abcdef"


def _bytes_of(length: int) -> Text:
    pairs = st.lists(st.text(HEX, min_size=2, max_size=2), min_size=length, max_size=length)
    return pairs.map(":".join)


def _range(low: int, high: int, show: Callable[[int], str] = str) -> Text:
    def text(ends: tuple[int | None, int | None], marks: tuple[str, str]) -> str:
        first, last = ends
        if first is not None and last is not None and first > last:
            first, last = last, first
        shown = ["" if end is None else f'"{show(end)}"' for end in (first, last)]
        return f"{marks[0]}{shown[0]},{shown[1]}{marks[1]}"

    end = st.one_of(st.none(), st.integers(low, high))
    marks = st.tuples(st.sampled_from("[("), st.sampled_from("])"))
    return st.one_of(st.just("empty"), st.builds(text, st.tuples(end, end), marks))


def _multi(one: Text) -> Text:
    ranges = st.lists(one.filter(lambda text: text != "empty"), max_size=3)
    return ranges.map(lambda found: "{" + ",".join(found) + "}")


def _month(n: int) -> str:
    return f"{1990 + n // 12}-{n % 12 + 1:02d}-01"


def _quoted(text: str | None) -> str:
    if text is None:
        return "NULL"
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _composite(values: Sequence[str | None]) -> str:
    return "(" + ",".join("" if v is None else _quoted(v) for v in values) + ")"


def _hstore(pairs: dict[str, str | None]) -> str:
    return ", ".join(f"{_quoted(key)}=>{_quoted(value)}" for key, value in pairs.items())


def drawn(literals: Text, rows: int, *, seed: int | None = None) -> list[str | None]:
    """Draw a column of values, nulls among them; of some columns the most colourful one.

    With a `seed` they are the same each time.
    """
    found: list[str | None] = []

    @settings(
        max_examples=6,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.one_of(st.none(), literals), min_size=rows, max_size=rows))
    def draw(values: list[str | None]) -> None:
        # The first example is always the simplest: all the same.
        if len(set(values)) > len(set(found)):
            found[:] = values

    (draw if seed is None else with_seed(seed)(draw))()
    return found


def array_of(items: Text, *, dimensions: int = 1, delimiter: str = ",") -> Text:
    """Return array literals with nulls among the items, now and then an empty one."""
    row = st.lists(st.one_of(st.none(), items), min_size=1, max_size=4)
    if dimensions == 1:
        full = row.map(lambda values: array_text(values, delimiter))
    else:
        full = st.lists(row, min_size=1, max_size=3).map(lambda rows: _rectangle(rows, delimiter))
    return st.one_of(st.just("{}"), full, full)


def array_text(values: Sequence[str | None], delimiter: str = ",") -> str:
    """Write an array of one dimension, every item in quotes."""
    return "{" + delimiter.join(map(_quoted, values)) + "}"


def _rectangle(rows: list[list[str | None]], delimiter: str) -> str:
    width = min(map(len, rows))
    inner = [array_text(row[:width], delimiter) for row in rows]
    return "{" + delimiter.join(inner) + "}"


KINDS: dict[str, Kind] = {
    "bool": Kind("boolean", st.sampled_from("tf")),
    "int2": Kind("smallint", _ints(16)),
    "int4": Kind("integer", _ints(32)),
    "int8": Kind("bigint", _ints(64)),
    "oid": Kind("oid", st.integers(0, 2**32 - 1).map(str)),
    "float4": Kind("real", FLOATS_4),
    "float8": Kind("double precision", FLOATS),
    "decimal": Kind("numeric(10, 2)", st.one_of(_scaled(10, 2), st.just("NaN"))),
    "decimal_38": Kind("numeric(38, 10)", _scaled(38, 10)),
    "decimal_tens": Kind("numeric(5, -2)", _ints(23)),
    "decimal_tens_40": Kind("numeric(30, -10)", st.one_of(_scaled(39, 0), st.just("NaN"))),
    "decimal_small": Kind("numeric(2, 5)", _scaled(2, 5)),
    "numeric": Kind(
        "numeric",
        st.one_of(
            _scaled(60, 30), st.sampled_from(["NaN", "Infinity", "-Infinity", "1e-20", "1e30"])
        ),
    ),
    "numeric_60": Kind("numeric(60, 10)", st.one_of(_scaled(60, 10), st.just("NaN"))),
    "money": Kind("money", st.integers(-(10**17), 10**17).map(lambda n: f"{n / 100:.2f}")),
    "text": Kind("text", _texts()),
    "varchar": Kind("varchar(8)", _texts(8)),
    "char": Kind("char(5)", _texts(5).map(lambda text: text[:5])),
    "char_1": Kind(
        '"char"', st.one_of(st.characters(max_codepoint=127, min_codepoint=1), st.just("\\351"))
    ),
    "name": Kind("name", _texts(10)),
    "citext": Kind("citext", _texts()),
    "bytea": Kind("bytea", st.binary(max_size=12).map(lambda raw: "\\x" + raw.hex())),
    "date": Kind("date", _days(5874897)),
    "time": Kind("time", st.one_of(CLOCK, st.just("24:00:00"))),
    "timetz": Kind(
        "timetz", st.one_of(_joined("{}{}", CLOCK, OFFSET), st.just("24:00:00+05:30:15"))
    ),
    "timestamp": Kind("timestamp", MOMENTS),
    "timestamp_3": Kind("timestamp(3)", MOMENTS),
    "timestamptz": Kind("timestamptz", ZONED),
    "timestamptz_0": Kind("timestamptz(0)", ZONED),
    "interval": Kind("finite", INTERVALS),
    "uuid": Kind("uuid", st.uuids().map(str)),
    "json": Kind("json", JSON),
    "jsonb": Kind("jsonb", JSON_SAFE),
    "jsonpath": Kind("jsonpath", WORDS.map(lambda word: f"$.{word}[*] ? (@ > 1)")),
    "mood": Kind("mood", st.sampled_from(["sad", "o k", 'HAPPY,"quoted"'])),
    "place": Kind(
        "place",
        st.tuples(
            *(
                st.one_of(st.none(), part)
                for part in (_texts(), _ints(32), ZONED, INTERVALS, FLOATS)
            )
        ).map(_composite),
    ),
    "hstore": Kind(
        "hstore",
        st.dictionaries(_texts(4), st.one_of(st.none(), _texts(4)), max_size=4).map(_hstore),
    ),
    "bit_1": Kind("bit(1)", st.sampled_from("01")),
    "bit_7": Kind("bit(7)", st.text("01", min_size=7, max_size=7)),
    "varbit": Kind("bit varying(20)", BITS),
    "inet": Kind("inet", ADDRESS),
    "cidr": Kind("cidr", NETWORK),
    "macaddr": Kind("macaddr", _bytes_of(6)),
    "macaddr8": Kind("macaddr8", _bytes_of(8)),
    "int4range": Kind("int4range", _range(-(2**31), 2**31 - 2)),
    "int8range": Kind("int8range", _range(-(2**63), 2**63 - 2)),
    "numrange": Kind("numrange", _range(-(10**20), 10**20, lambda n: f"{n}e-5")),
    "tsrange": Kind("tsrange", _range(0, 900, lambda n: f"{_month(n)} 12:00")),
    "tstzrange": Kind("tstzrange", _range(0, 900, lambda n: f"{_month(n)} 12:00+05:30")),
    "daterange": Kind("daterange", _range(0, 900, _month)),
    "int4multirange": Kind("int4multirange", _multi(_range(-999, 999))),
    "tstzmultirange": Kind(
        "tstzmultirange", _multi(_range(0, 900, lambda n: f"{_month(n)} 12:00+02"))
    ),
    "point": Kind("point", POINT),
    "line": Kind("line", _joined("{{{},{},{}}}", SMALL, st.floats(1, 9).map(repr), SMALL)),
    "lseg": Kind("lseg", _joined("[{},{}]", POINT, POINT)),
    "box": Kind("box", _joined("{},{}", SMALL_POINT, SMALL_POINT)),
    "path": Kind(
        "path", st.one_of(_joined("[{},{}]", POINT, POINT), _joined("({},{})", POINT, POINT))
    ),
    "polygon": Kind("polygon", _joined("({},{},{})", SMALL_POINT, SMALL_POINT, SMALL_POINT)),
    "circle": Kind("circle", _joined("<{},{}>", SMALL_POINT, st.floats(0, 1e9).map(repr))),
    "tsvector": Kind(
        "tsvector", st.lists(WORDS, max_size=4).map(lambda w: " ".join(f"'{x}':1A,2" for x in w))
    ),
    "tsquery": Kind("tsquery", _joined("{} & !{}", WORDS, WORDS)),
    "ltree": Kind("ltree", st.lists(WORDS, max_size=4).map(".".join)),
    "vector": Kind(
        "vector(3)",
        st.lists(st.integers(-99, 99), min_size=3, max_size=3).map(
            lambda v: str([n / 8 for n in v])
        ),
    ),
    "pg_lsn": Kind(
        "pg_lsn", st.integers(0, 2**64 - 1).map(lambda n: f"{n >> 32:X}/{n & 0xFFFFFFFF:X}")
    ),
    "xid8": Kind("xid8", st.integers(0, 2**64 - 1).map(str)),
    "int2vector": Kind("int2vector", st.lists(_ints(16), max_size=4).map(" ".join)),
    "positive": Kind("positive", st.integers(1, 2**31 - 1).map(str)),
    "price": Kind("price", st.one_of(_scaled(10, 2), st.just("NaN"))),
    "clock": Kind("clock", _joined("{}{}", CLOCK, OFFSET)),
    "marks": Kind("marks", array_of(_ints(32))),
    "dear": Kind("dear", _scaled(10, 2).filter(lambda text: text != "1e-2")),
    "grid": Kind("grid", array_of(_ints(32), dimensions=2)),
    "feeling": Kind("feeling", st.sampled_from(["sad", "o k"])),
}
NO_ARRAY = ("int2vector",)
DELIMITERS = {"box": ";"}
