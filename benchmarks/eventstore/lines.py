"""What is measured: the lines of the table, the work of each, and the goals."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from typing import Literal

EVENT_BYTES = 200
"""Size of an event's data as JSON."""
BATCH = 500
READERS = 1
DELIVERY_CLIENTS = 32


def event_data() -> dict[str, object]:
    """Return the data of the events: `EVENT_BYTES` of JSON."""
    data: dict[str, object] = {
        "order": "o-2013-000417",
        "customer": "c-88231",
        "total": 1249.5,
        "currency": "EUR",
        "lines": 3,
        "express": True,
        "note": "",
    }
    short = EVENT_BYTES - len(json.dumps(data))
    return data | {"note": "x" * short}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: `clients` in closed loops, or appends at `rate` per second."""

    name: str
    kind: Literal["append", "read", "deliver"]
    what: str
    clients: int = 1
    batch: int = 1
    rate: float = 0.0


LINES = (
    Line(name="append_1", kind="append", what="single-event appends, 1 client"),
    Line(name="append_16", kind="append", what="single-event appends, 16 clients", clients=16),
    Line(name="append_64", kind="append", what="single-event appends, 64 clients", clients=64),
    Line(
        name="batch_500", kind="append", what="appends of 500 events, 16", clients=16, batch=BATCH
    ),
    Line(name="read_all", kind="read", what="read of all events, 1 reader", clients=READERS),
    Line(
        name="deliver_idle",
        kind="deliver",
        what="append acknowledged to subscriber, 20 appends/s",
        clients=DELIVERY_CLIENTS,
        rate=20,
    ),
    Line(
        name="deliver_2000",
        kind="deliver",
        what="append acknowledged to subscriber, 2,000 appends/s",
        clients=DELIVERY_CLIENTS,
        rate=2_000,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a figure of one line should reach: `figure` is a name within the line.

    `at_least` and `aim` bound it from below, or from above where `lower` is true.
    """

    line: str
    product: str
    figure: str
    at_least: float
    aim: float | None
    lower: bool = False


GOALS = (
    Goal(
        line="append_64",
        product="penstock_http",
        figure="events_per_s",
        at_least=8_000,
        aim=15_000,
    ),
    Goal(line="append_64", product="penstock_http", figure="times_emmett", at_least=3, aim=None),
    Goal(
        line="append_64",
        product="penstock_http",
        figure="times_eventsourcing",
        at_least=8,
        aim=None,
    ),
    Goal(line="append_64", product="penstock_http", figure="times_umadb", at_least=0, aim=1),
    Goal(
        line="append_64", product="penstock_inprocess", figure="times_umadb", at_least=2, aim=None
    ),
    Goal(
        line="batch_500",
        product="penstock_http",
        figure="events_per_s",
        at_least=50_000,
        aim=100_000,
    ),
    Goal(
        line="read_all",
        product="penstock_http",
        figure="events_per_s",
        at_least=150_000,
        aim=300_000,
    ),
    *(
        Goal(
            line=line,
            product="penstock_http",
            figure="p99_ms",
            at_least=20,
            aim=5,
            lower=True,
        )
        for line in ("deliver_idle", "deliver_2000")
    ),
    Goal(
        line="append_1",
        product="penstock_inprocess",
        figure="p50_times_bare_insert",
        at_least=2,
        aim=1.3,
        lower=True,
    ),
    Goal(
        line="append_1",
        product="penstock_http",
        figure="p50_times_bare_insert",
        at_least=4,
        aim=2,
        lower=True,
    ),
)
GROWTH_AT_MOST, GROWTH_AIM = 1.5, 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How long, how much, and which part of the table."""

    seconds: float
    warm_s: float
    preload: int
    lines: tuple[Line, ...]
    products: frozenset[str] | None

    @staticmethod
    def of(options: Namespace) -> Scale:
        """Read the options of the command line (see `benchmarks.eventstore.add_options`)."""
        quick = bool(getattr(options, "quick", False))
        seconds = getattr(options, "seconds", None) or (1.0 if quick else 5.0)
        wanted = _names(getattr(options, "lines", None))
        return Scale(
            seconds=seconds,
            warm_s=min(1.0, seconds / 3),
            preload=getattr(options, "preload", 0) or 0,
            lines=tuple(line for line in LINES if wanted is None or line.name in wanted),
            products=_names(getattr(options, "products", None)),
        )


def _names(text: str | None) -> frozenset[str] | None:
    return None if not text else frozenset(text.split(","))
