"""Nexmark's queries by Pathway, in an environment of its own: one line of JSON for one query.

`drive_pathway.py LINES SINK QUERY` reads the files of lines in the folder LINES to their end, as
one batch (`mode="static"`, its fastest), and gives the result to SINK: `nothing`, or a file of JSON
lines, a change each (its Delta tables want a key that one registers for). A process runs one query;
the seconds are those of `pw.run`.
Without a query, the names of all are printed.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta

import pathway as pw

TEN_SECONDS = timedelta(seconds=10)


class Person(pw.Schema):
    """Its columns that a query reads."""

    number: int
    name: str
    city: str
    state: str
    date_time: str


class Auction(pw.Schema):
    """Likewise."""

    number: int
    item_name: str
    seller: int
    category: int
    date_time: str
    expires: str


class Bid(pw.Schema):
    """Likewise."""

    event: int
    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    extra: str
    date_time: str


Streams = Mapping[str, pw.Table]


def _time(text: pw.ColumnExpression) -> pw.ColumnExpression:
    """Read a time, where a query computes with it: the lines' own form is none that it reads."""
    return text.dt.strptime("%Y-%m-%dT%H:%M:%S%.fZ", contains_timezone=False)


def _timed(table: pw.Table) -> pw.Table:
    return table.with_columns(date_time=_time(table.date_time))


def _q0(streams: Streams) -> pw.Table:
    bid = streams["bid"]
    return bid.select(bid.event, bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra)


def _q1(streams: Streams) -> pw.Table:
    bid = streams["bid"]
    price = 0.908 * bid.price
    return bid.select(bid.event, bid.auction, bid.bidder, bid.date_time, bid.extra, price=price)


def _q2(streams: Streams) -> pw.Table:
    bid = streams["bid"]
    return bid.filter(bid.auction % 123 == 0).select(pw.this.event, pw.this.auction, pw.this.price)


def _q3(streams: Streams) -> pw.Table:
    auction, person = streams["auction"], streams["person"]
    sold = auction.filter(auction.category == 10)
    local = person.filter((person.state == "or") | (person.state == "id") | (person.state == "ca"))
    joined = sold.join(local, sold.seller == local.number)
    return joined.select(sold.number, local.name, local.city, local.state)


def _bids_while_open(streams: Streams) -> pw.Table:
    auction, bid = _timed(streams["auction"]), _timed(streams["bid"])
    joined = auction.join(bid, auction.number == bid.auction).select(
        auction.number,
        auction.item_name,
        auction.seller,
        auction.category,
        expires=_time(auction.expires),
        opened=auction.date_time,
        bidder=bid.bidder,
        price=bid.price,
        bid_at=bid.date_time,
    )
    return joined.filter((joined.bid_at >= joined.opened) & (joined.bid_at <= joined.expires))


def _q4(streams: Streams) -> pw.Table:
    found = _bids_while_open(streams)
    closed = found.groupby(found.number, found.category).reduce(
        found.category, final=pw.reducers.max(found.price)
    )
    return closed.groupby(closed.category).reduce(
        closed.category, final=pw.reducers.avg(closed.final)
    )


def _q7(streams: Streams) -> pw.Table:
    bid = _timed(streams["bid"])
    most = bid.windowby(bid.date_time, window=pw.temporal.tumbling(TEN_SECONDS)).reduce(
        maxprice=pw.reducers.max(pw.this.price), until=pw.this._pw_window_end
    )
    found = bid.join(most, bid.price == most.maxprice).select(
        bid.event, bid.auction, bid.price, bid.bidder, bid.date_time, bid.extra, most.until
    )
    return found.filter(
        (found.date_time >= found.until - TEN_SECONDS) & (found.date_time <= found.until)
    )


def _q8(streams: Streams) -> pw.Table:
    auction, person = _timed(streams["auction"]), _timed(streams["person"])
    window = pw.temporal.tumbling(TEN_SECONDS)
    came = person.windowby(person.date_time, window=window, instance=person.number).reduce(
        number=pw.this._pw_instance,
        name=pw.reducers.any(pw.this.name),
        starttime=pw.this._pw_window_start,
    )
    sold = auction.windowby(auction.date_time, window=window, instance=auction.seller).reduce(
        seller=pw.this._pw_instance, starttime=pw.this._pw_window_start
    )
    joined = came.join(sold, came.number == sold.seller, came.starttime == sold.starttime)
    return joined.select(came.number, came.name, came.starttime)


def _q9(streams: Streams) -> pw.Table:
    found = _bids_while_open(streams)
    best = found.groupby(found.number).reduce(winner=pw.reducers.argmax(found.price))
    won = found.ix(best.winner)
    return best.select(
        won.number, won.item_name, won.seller, won.category, won.bidder, won.price, won.bid_at
    )


def _q11(streams: Streams) -> pw.Table:
    bid = _timed(streams["bid"])
    window = pw.temporal.session(max_gap=TEN_SECONDS)
    return bid.windowby(bid.date_time, window=window, instance=bid.bidder).reduce(
        bidder=pw.this._pw_instance,
        bid_count=pw.reducers.count(),
        starttime=pw.this._pw_window_start,
        endtime=pw.this._pw_window_end,
    )


def _q17(streams: Streams) -> pw.Table:
    bid = streams["bid"]
    days = bid.select(
        bid.auction,
        bid.price,
        day=_time(bid.date_time).dt.strftime("%Y-%m-%d"),
        rank1=pw.cast(int, bid.price < 10_000),
        rank2=pw.cast(int, (bid.price >= 10_000) & (bid.price < 1_000_000)),
        rank3=pw.cast(int, bid.price >= 1_000_000),
    )
    return days.groupby(days.auction, days.day).reduce(
        days.auction,
        days.day,
        total_bids=pw.reducers.count(),
        rank1_bids=pw.reducers.sum(days.rank1),
        rank2_bids=pw.reducers.sum(days.rank2),
        rank3_bids=pw.reducers.sum(days.rank3),
        min_price=pw.reducers.min(days.price),
        max_price=pw.reducers.max(days.price),
        avg_price=pw.reducers.avg(days.price),
        sum_price=pw.reducers.sum(days.price),
    )


def _q18(streams: Streams) -> pw.Table:
    bid = streams["bid"]
    last = bid.groupby(bid.bidder, bid.auction).reduce(row=pw.reducers.argmax(bid.event))
    row = bid.ix(last.row)
    return last.select(
        row.auction, row.bidder, row.price, row.channel, row.url, row.date_time, row.extra
    )


def _q20(streams: Streams) -> pw.Table:
    auction, bid = streams["auction"], streams["bid"]
    sold = auction.filter(auction.category == 10)
    return bid.join(sold, bid.auction == sold.number).select(
        *(bid.event, bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.extra),
        *(sold.item_name, sold.seller, sold.category, sold.expires),
        bid_at=bid.date_time,
        opened=sold.date_time,
    )


_ALL = (_q0, _q1, _q2, _q3, _q4, _q7, _q8, _q9, _q11, _q17, _q18, _q20)
QUERIES: Mapping[str, Callable[[Streams], pw.Table]] = {
    each.__name__.removeprefix("_"): each for each in _ALL
}


def main(lines: str, sink: str, query: str | None = None) -> None:
    """Run a query to its end and print what it took."""
    if query is None:
        print(*QUERIES)
        return
    kinds = {"person": Person, "auction": Auction, "bid": Bid}
    streams = {
        name: pw.io.jsonlines.read(
            f"{lines}/{name}.json",
            schema=kind,
            mode="static",
            # What a table calls `id` is its own.
            json_field_paths={} if name == "bid" else {"number": "/id"},
        )
        for name, kind in kinds.items()
    }
    found = QUERIES[query](streams)
    if sink == "nothing":
        pw.io.null.write(found)
    else:
        pw.io.jsonlines.write(found, sink)
    began, cpu = time.perf_counter(), _cpu()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    told = {"query": query, "s": time.perf_counter() - began, "cpu_s": _cpu() - cpu}
    if sink != "nothing":
        with open(sink, "rb") as given:
            told["rows"] = sum(1 for _ in given)
    print(json.dumps(told), flush=True)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(*sys.argv[1:])
