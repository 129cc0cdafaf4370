"""Three queries of a disturbed topic by Pathway: `drive_disturbed.py BROKER TOPIC STATE`.

It runs until it is ended, keeps its state in the folder STATE, and goes on from there when it is
started again. Changes of each query go to the topic `TOPIC.<query>`: its Delta tables want a key
that one registers for. A change is JSON with the columns of its row, `time` and `diff`.
"""

from __future__ import annotations

import sys

import pathway as pw

WINDOW_MS = 10_000
COMMIT_MS = 100
"""As often input becomes a step of the computation: the freshness that the other side is told."""

SNAPSHOT_MS = 1_000


class Record(pw.Schema):
    """The columns of a record. Its event time is a number, which costs no parsing of texts."""

    number: int
    item: str
    at: int
    amount: int


def main(broker: str, topic: str, state: str) -> None:
    """Build the three queries and run them."""
    settings = {"bootstrap.servers": broker}
    reading = settings | {
        "group.id": f"pathway-{topic}",
        "auto.offset.reset": "earliest",
        "session.timeout.ms": "6000",
    }
    writing = settings | {"linger.ms": "5"}
    records = pw.io.kafka.read(
        reading,
        topic=topic,
        schema=Record,
        format="json",
        autocommit_duration_ms=COMMIT_MS,
        name="records",
    )
    # The first of an id is taken, each further one refused.
    facts = records.deduplicate(
        value=pw.this.number,
        instance=pw.this.number,
        acceptor=lambda new, old: False,
        name="facts",
    )
    totals = facts.groupby(facts.item).reduce(
        facts.item, n=pw.reducers.count(), amount=pw.reducers.sum(facts.amount)
    )
    windows = facts.windowby(
        facts.at, window=pw.temporal.tumbling(duration=WINDOW_MS, origin=0), instance=facts.item
    ).reduce(
        item=pw.this._pw_instance,
        window_start=pw.this._pw_window_start,
        n=pw.reducers.count(),
        amount=pw.reducers.sum(pw.this.amount),
    )
    last = facts.groupby(facts.item).reduce(row=pw.reducers.argmax(facts.at))
    row = facts.ix(last.row)
    newest = last.select(row.item, row.number, row.amount, row.at)
    for name, table in (("totals", totals), ("windows", windows), ("newest", newest)):
        pw.io.kafka.write(table, writing, f"{topic}.{name}", format="json", name=name)
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(
            pw.persistence.Backend.filesystem(state), snapshot_interval_ms=SNAPSHOT_MS
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
