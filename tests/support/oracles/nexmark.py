"""The answers of Nexmark's queries in SQLite, over facts alone: nothing of the compiler is used.

Times are microseconds since 1970 there, and prices in euros thousandths.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

Row = dict[str, object]
SOURCES = ("person", "auction", "bid")
_BEGUN = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY = "strftime('%Y-%m-%d', date_time / 1000000, 'unixepoch')"
_MINUTE = "strftime('%H:%M', date_time / 1000000, 'unixepoch')"
_TEN = 10_000_000
_TIMES = (
    *("date_time", "starttime", "endtime", "bid_date_time", "bid_at"),
    *("opened", "expires", "ingested_at"),
)
_RUNS = "b.auction = a.id AND b.date_time BETWEEN a.date_time AND a.expires"
_COUNTS = """count(*) AS total_bids, sum(price < 10000) AS rank1_bids,
  sum(price >= 10000 AND price < 1000000) AS rank2_bids, sum(price >= 1000000) AS rank3_bids"""
_OF = {
    "total": "",
    "rank1": "price < 10000",
    "rank2": "price >= 10000 AND price < 1000000",
    "rank3": "price >= 1000000",
}
_DISTINCTS = ", ".join(
    f"count(DISTINCT {'CASE WHEN ' + when + ' THEN ' if when else ''}{what}"
    f"{' END' if when else ''}) AS {name}_{what}s"
    for what in ("bidder", "auction")
    for name, when in _OF.items()
)
_CHANNEL = "instr(url, 'channel_id=')"


@dataclass(frozen=True, slots=True)
class Query:
    """One answer. `stateless`: each row follows from one fact, so that late ones take part too."""

    sql: str
    stateless: bool = False


def _tumbled(time: str) -> str:
    return f"({time} - {time} % {_TEN})"


_HOPS = """SELECT auction, count(*) AS num, starttime FROM (
  SELECT auction, date_time - date_time % 2000000 - i.column1 * 2000000 AS starttime
  FROM bid, (VALUES (0), (1), (2), (3), (4)) AS i) GROUP BY auction, starttime"""
_CLOSED = f"""SELECT a.id AS auction, a.seller, b.price AS final, b.date_time,
  row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.event) AS place
  FROM auction a, bid b WHERE {_RUNS}"""

QUERIES = {
    "q0": Query("SELECT event, auction, bidder, price, date_time, extra FROM bid", True),
    "q1": Query(
        "SELECT event, auction, bidder, 908 * price AS euros, date_time, extra FROM bid", True
    ),
    "q2": Query("SELECT event, auction, price FROM bid WHERE auction % 123 = 0", True),
    "q3": Query(
        """SELECT a.id, p.name, p.city, p.state FROM auction a, person p
        WHERE a.seller = p.id AND a.category = 10 AND p.state IN ('or', 'id', 'ca')"""
    ),
    "q4": Query(
        f"""SELECT category, avg(final) AS final FROM (
        SELECT a.category, max(b.price) AS final FROM auction a, bid b WHERE {_RUNS} GROUP BY a.id)
        GROUP BY category"""
    ),
    "q5": Query(
        f"""SELECT auction, num, starttime FROM (
        SELECT *, max(num) OVER (PARTITION BY starttime) AS most FROM ({_HOPS})) WHERE num = most"""
    ),
    "q6": Query(
        f"""SELECT auction, seller, avg(final) OVER (PARTITION BY seller
        ORDER BY date_time, auction ROWS 9 PRECEDING) AS average FROM ({_CLOSED}) WHERE place = 1"""
    ),
    "q7": Query(
        f"""SELECT DISTINCT b.event, b.auction, b.price, b.bidder, b.date_time, b.extra
        FROM bid b, (SELECT max(price) AS most, {_tumbled("date_time")} AS s FROM bid GROUP BY s) m
        WHERE b.price = m.most AND b.date_time BETWEEN m.s AND m.s + {_TEN}"""
    ),
    "q8": Query(
        f"""SELECT DISTINCT p.id, p.name, {_tumbled("p.date_time")} AS starttime
        FROM person p, auction a
        WHERE p.id = a.seller AND {_tumbled("p.date_time")} = {_tumbled("a.date_time")}"""
    ),
    "q9": Query(
        f"""SELECT id, item_name, description, initial_bid, reserve, opened, expires, seller,
        category, extra, auction, bidder, price, bid_date_time, bid_extra FROM (
        SELECT a.id, a.item_name, a.description, a.initial_bid, a.reserve, a.date_time AS opened,
        a.expires, a.seller, a.category, a.extra, b.auction, b.bidder, b.price,
        b.date_time AS bid_date_time, b.extra AS bid_extra,
        row_number() OVER (PARTITION BY a.id ORDER BY b.price DESC, b.date_time, b.event) AS place
        FROM auction a, bid b WHERE {_RUNS}) WHERE place = 1"""
    ),
    "q10": Query(
        f"""SELECT event, auction, bidder, price, date_time, extra, {_DAY} AS day,
        {_MINUTE} AS minute FROM bid""",
        True,
    ),
    "q11": Query(
        f"""SELECT bidder, count(*) AS bid_count, min(date_time) AS starttime,
        max(date_time) + {_TEN} AS endtime FROM (
        SELECT *, sum(opens) OVER (PARTITION BY bidder ORDER BY date_time) AS number FROM (
        SELECT *, coalesce(date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
        >= {_TEN}, 1) AS opens FROM bid)) GROUP BY bidder, number"""
    ),
    "q12": Query(
        f"""SELECT bidder, count(*) AS bid_count, {_tumbled("ingested_at")} AS starttime,
        {_tumbled("ingested_at")} + {_TEN} AS endtime FROM bid GROUP BY bidder, starttime"""
    ),
    "q13": Query(
        """SELECT b.event, b.auction, b.bidder, b.price, b.date_time, s.value
        FROM bid b, side_input s WHERE b.auction % 10000 = s.key""",
        True,
    ),
    "q14": Query(
        """SELECT event, auction, bidder, 908 * price AS euros, CASE
        WHEN date_time / 3600000000 % 24 BETWEEN 8 AND 18 THEN 'dayTime'
        WHEN date_time / 3600000000 % 24 IN (7, 19) THEN 'otherTime' ELSE 'nightTime' END
        AS bid_time_type, date_time, extra,
        length(extra) - length(replace(extra, 'c', '')) AS c_counts
        FROM bid WHERE 908 * price > 1000000000 AND 908 * price < 50000000000""",
        True,
    ),
    "q15": Query(f"SELECT {_DAY} AS day, {_COUNTS}, {_DISTINCTS} FROM bid GROUP BY 1"),
    "q16": Query(
        f"""SELECT channel, {_DAY} AS day, max({_MINUTE}) AS minute, {_COUNTS}, {_DISTINCTS}
        FROM bid GROUP BY 1, 2"""
    ),
    "q17": Query(
        f"""SELECT auction, {_DAY} AS day, {_COUNTS}, min(price) AS min_price,
        max(price) AS max_price, avg(price) AS avg_price, sum(price) AS sum_price
        FROM bid GROUP BY 1, 2"""
    ),
    "q18": Query(
        """SELECT auction, bidder, price, channel, url, date_time, extra FROM bid b
        WHERE NOT EXISTS (SELECT 1 FROM bid o WHERE o.auction = b.auction AND o.bidder = b.bidder
        AND (o.date_time, o.event) > (b.date_time, b.event))"""
    ),
    "q19": Query(
        """SELECT auction, bidder, price, channel, url, date_time, extra, place FROM (
        SELECT b.*, (SELECT count(*) FROM bid o WHERE o.auction = b.auction
        AND (-o.price, o.event) <= (-b.price, b.event)) AS place FROM bid b) WHERE place <= 10"""
    ),
    "q20": Query(
        """SELECT b.event, b.auction, b.bidder, b.price, b.channel, b.url, b.date_time AS bid_at,
        b.extra AS bid_extra, a.item_name, a.description, a.initial_bid, a.reserve,
        a.date_time AS opened, a.expires, a.seller, a.category, a.extra AS auction_extra
        FROM bid b, auction a WHERE b.auction = a.id AND a.category = 10"""
    ),
    "q21": Query(
        f"""SELECT event, auction, bidder, price, channel, CASE channel WHEN 'Apple' THEN '0'
        WHEN 'Google' THEN '1' WHEN 'Facebook' THEN '2' WHEN 'Baidu' THEN '3'
        ELSE substr(url, {_CHANNEL} + 11) END AS channel_id FROM bid""",
        True,
    ),
    "q22": Query(
        """SELECT event, auction, bidder, price, channel, json_extract(parts, '$[3]') AS dir1,
        json_extract(parts, '$[4]') AS dir2, json_extract(parts, '$[5]') AS dir3
        FROM (SELECT *, '["' || replace(url, '/', '","') || '"]' AS parts FROM bid)""",
        True,
    ),
}


@dataclass(frozen=True, slots=True)
class Fact:
    """One event that came. `late`: too late for results of several facts."""

    source: str
    values: Mapping[str, object]
    ingested_at: datetime
    late: bool


def answer(name: str, facts: Iterable[Fact], side_input: Mapping[int, str]) -> list[Row]:
    """Return the rows of a query over all facts at once."""
    query = QUERIES[name]
    taken = [fact for fact in facts if query.stateless or not fact.late]
    with sqlite3.connect(":memory:") as database:
        for source in SOURCES:
            own = [fact for fact in taken if fact.source == source]
            _load(database, source, own)
        database.execute("CREATE TABLE side_input (key, value)")
        database.executemany("INSERT INTO side_input VALUES (?, ?)", side_input.items())
        found = database.execute(query.sql)
        names = [each[0] for each in found.description]
        return [_row(names, values) for values in found.fetchall()]


_COLUMNS = {
    "person": "event id name email_address credit_card city state date_time extra",
    "auction": "event id item_name description initial_bid reserve date_time expires seller "
    "category extra",
    "bid": "event auction bidder price channel url date_time extra",
}


def _load(database: sqlite3.Connection, source: str, facts: Sequence[Fact]) -> None:
    names = _COLUMNS[source].split()
    database.execute(f"CREATE TABLE {source} ({', '.join(names)}, ingested_at)")
    rows = [[*map(_plain, (f.values[n] for n in names)), _plain(f.ingested_at)] for f in facts]
    marks = ", ".join("?" * (len(names) + 1))
    database.executemany(f"INSERT INTO {source} VALUES ({marks})", rows)


def _plain(value: object) -> object:
    return (value - _BEGUN) // _MICROSECOND if isinstance(value, datetime) else value


def _row(names: Sequence[str], values: Sequence[object]) -> Row:
    row: Row = {}
    for name, value in zip(names, values, strict=True):
        if name == "euros":
            row["price"] = Decimal(str(value)).scaleb(-3)
        elif name in _TIMES and isinstance(value, int):
            row[name] = _BEGUN.replace(tzinfo=None) + value * _MICROSECOND
        else:
            row[name] = value
    return row
