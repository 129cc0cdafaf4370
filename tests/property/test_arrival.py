"""Any duplicated, split or shuffled input gives the rows of the clean one."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lake.table_columns import DECODED
from pipeline.arrive.arrival import Arrival, sort_out
from pipeline.position.progress import Progress

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = datetime(2013, 1, 1, tzinfo=UTC)


def event(position: int, *, partition: int, offset: int, minute: int = 0) -> dict[str, object]:
    return {
        "kind": "event",
        "topic": "events.flight",
        "partition": partition,
        "offset": offset,
        "source": "store",
        "table": "flight",
        "position": position,
        "event_id": f"e{position}",
        "type": "departed",
        "event_time": DAY + timedelta(minutes=minute),
        "schema_id": 1,
        "value": b"x",
    }


def change(order: tuple[int, int], *, offset: int) -> dict[str, object]:
    return {
        "kind": "change",
        "topic": "shop.public.orders",
        "partition": 0,
        "offset": offset,
        "source": "shop",
        "table": "public.orders",
        "operation": "u",
        "transaction_id": f"t{order[0]}",
        "lsn": order[0],
        "commit_order": order[0],
        "total_order": order[1],
        "snapshot": False,
        "event_time": NOW,
        "schema_id": 2,
        "key_schema_id": 3,
    }


def run(batches: list[list[dict[str, object]]]) -> tuple[list[Arrival], Progress]:
    progress = Progress()
    arrivals = []
    for epoch, rows in enumerate(batches, start=1):
        after = progress.copy()
        decoded = pa.Table.from_pylist(rows, schema=DECODED)
        arrivals.append(
            sort_out(
                decoded,
                after,
                before=progress,
                epoch=epoch,
                lateness=lambda _: timedelta(minutes=10),
                partitions={"events.flight": 2},
                now=NOW,
            )
        )
        progress = Progress.from_json(after.to_json())
    return arrivals, progress


def split(rows: list[dict[str, object]], sizes: list[int]) -> list[list[dict[str, object]]]:
    batches, rest = [], list(rows)
    for size in sizes:
        batches.append(rest[:size])
        rest = rest[size:]
    return [*batches, rest]


@given(
    st.lists(st.integers(1, 15), max_size=40),
    st.lists(st.integers(0, 10), max_size=5),
    st.randoms(use_true_random=False),
)
def test_p1_events_arrive_once_whatever_is_sent_again(
    positions: list[int], sizes: list[int], random: object
) -> None:
    rows = [event(p, partition=p % 2, offset=i) for i, p in enumerate(positions)]
    arrivals, progress = run(split(rows, sizes))
    logged = [
        position
        for arrival in arrivals
        for table in arrival.events.values()
        for position in table["position"].to_pylist()
    ]
    assert sorted(logged) == sorted(set(positions))
    assert sum(a.counts["duplicates"] for a in arrivals) == len(positions) - len(set(positions))
    head = 0
    while head + 1 in set(positions):
        head += 1
    assert progress.head("store") == head


@given(st.lists(st.integers(0, 20), max_size=40), st.lists(st.integers(0, 10), max_size=5))
def test_p4_changes_sent_again_after_a_crash_are_dropped_by_the_mark(
    resume_points: list[int], sizes: list[int]
) -> None:
    stream = [(order, row) for order in range(1, 8) for row in range(1, 4)]
    sent = list(stream)
    for point in resume_points:
        # The connector goes back and sends everything from there again.
        sent += stream[point:]
    rows = [change(order, offset=i) for i, order in enumerate(sent)]
    arrivals, _ = run(split(rows, sizes))
    logged = [
        (row["commit_order"], row["total_order"])
        for arrival in arrivals
        for table in arrival.changes.values()
        for row in table.to_pylist()
    ]
    assert sorted(logged) == stream


def test_p8_lateness_is_judged_by_the_epoch_before_and_by_the_slowest_partition() -> None:
    ahead = [event(1, partition=0, offset=0, minute=600)]
    behind = [event(2, partition=1, offset=0, minute=5)]
    third = [
        event(3, partition=0, offset=1, minute=0),
        event(4, partition=1, offset=1, minute=700),
    ]
    fourth = [
        event(5, partition=0, offset=2, minute=589),
        event(6, partition=1, offset=2, minute=590),
    ]
    arrivals, progress = run([ahead, behind, third, fourth])
    verdicts = [t["closed_late"].to_pylist() for a in arrivals for t in a.events.values()]
    # Nothing is late while a partition has not been heard of; then the watermark is minute 5, and
    # minute 0 is within ten minutes of it; then it is minute 600, and only 589 is too late.
    assert verdicts == [[False], [False], [False, False], [True, False]]
    assert progress.watermarks.of("events.flight") is not None


def test_p8_a_rejected_record_that_names_its_position_is_no_hole() -> None:
    headers = json.dumps({"store_id": b"store".hex(), "position": b"2".hex()})
    rejected = {
        "kind": "rejected",
        "topic": "events.flight",
        "partition": 0,
        "offset": 1,
        "stage": "decode",
        "reason": "broken",
        "value": b"?",
        "metadata": headers,
    }
    rows = [
        event(1, partition=0, offset=0),
        rejected,
        event(3, partition=0, offset=2),
    ]
    arrivals, progress = run([rows])
    assert arrivals[0].quarantined["value"].to_pylist() == [b"?"]
    assert arrivals[0].counts["quarantined"] == 1
    assert progress.head("store") == 3


def message(order: tuple[int, int], table: str, *, offset: int) -> dict[str, object]:
    row = change(order, offset=offset)
    return row | {"kind": "message", "topic": "shop.message", "table": table, "operation": "m"}


def test_p5_a_transaction_waits_for_its_messages_and_the_log_keeps_ddl_alone() -> None:
    end = {
        **change((1, 0), offset=0),
        "kind": "end",
        "topic": "shop.transaction",
        "table": None,
        "lsn": 100,
        "counts": json.dumps({"public.orders": 1, "_messages": 2}),
    }
    first = [change((1, 1), offset=0), message((1, 2), "_schema", offset=0), end]
    progress = Progress()
    progress.cut("shop").snapshot_done = True
    # Sent twice, the last one in a later epoch: the same three facts.
    later = [message((1, 2), "_schema", offset=1), message((1, 3), "_messages", offset=2)]
    logged = []
    advanced = []
    for epoch, rows in enumerate([first, later], 1):
        arrival = sort_out(
            pa.Table.from_pylist(rows, schema=DECODED),
            progress,
            before=progress.copy(),
            epoch=epoch,
            lateness=lambda _: timedelta(minutes=10),
            partitions={},
            now=NOW,
        )
        logged += [t for rows in arrival.changes.values() for t in rows["table"].to_pylist()]
        advanced.append(progress.cut("shop").advance().transactions)
        assert arrival.schema_changes == ({"shop"} if epoch == 1 else set())
    assert sorted(logged) == ["_schema", "_transactions", "public.orders"]
    assert advanced == [(), ("t1",)]
