"""Changes that are taken in runs are sorted out as one by one, to the same rows and progress."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lake.table_columns import DECODED
from pipeline.arrive import runs
from pipeline.arrive.arrival import Arrival, sort_out
from pipeline.position.progress import Progress

NOW = datetime(2024, 1, 1, tzinfo=UTC)
START = datetime(2013, 1, 1, tzinfo=UTC)

ROW = st.tuples(
    st.sampled_from(["change"] * 8 + ["end", "ignored"]),
    st.sampled_from(["orders", "lines"]),
    st.integers(0, 1),
    st.integers(0, 6),
    st.integers(1, 4),
    st.integers(0, 40),
    st.booleans(),
)
BATCHES = st.lists(st.lists(ROW, max_size=30), min_size=1, max_size=3)


def decoded(rows: list[tuple[str, str, int, int, int, int, bool]], *, sort: bool) -> pa.Table:
    """Lay rows out; `sort` gives most of them a rising order, as a connector does."""
    if sort:
        rows = sorted(rows, key=lambda row: (row[3], row[4]))
    made = []
    for offset, (kind, table, partition, order, total, minute, snapshot) in enumerate(rows):
        end = kind == "end"
        made.append(
            {
                "kind": kind,
                "topic": "shop.transaction" if end else f"shop.public.{table}",
                "partition": 0 if end else partition,
                "offset": offset,
                "source": "shop",
                "table": None if end else f"public.{table}",
                "operation": "u",
                "transaction_id": str(order),
                "lsn": order * 10 + total,
                "commit_order": order,
                "total_order": total,
                "snapshot": snapshot and total == 4,
                "counts": json.dumps({"public.orders": 1}) if end else None,
                "event_time": START + timedelta(minutes=minute),
                "recorded_at": START,
                "schema_id": 1,
                "key": b"k",
                "value": bytes([offset % 256]),
            }
        )
    return pa.Table.from_pylist(made, schema=DECODED)


def run(batches: list[pa.Table]) -> tuple[list[Arrival], Progress]:
    progress, arrivals = Progress(), []
    for epoch, batch in enumerate(batches, start=1):
        after = progress.copy()
        arrivals.append(
            sort_out(
                batch,
                after,
                before=progress,
                epoch=epoch,
                lateness=lambda _: timedelta(minutes=5),
                partitions={"shop.public.orders": 2},
                now=NOW,
            )
        )
        progress = after
    return arrivals, progress


@given(BATCHES, st.booleans())
def test_p4_runs_change_nothing(
    rows: list[list[tuple[str, str, int, int, int, int, bool]]], sort: bool
) -> None:
    batches = [decoded(batch, sort=sort) for batch in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "FEW", 1)
        quick, after = run(batches)
        patch.setattr(runs, "FEW", 10**9)
        slow, expected = run(batches)
    assert json.loads(after.to_json()) == json.loads(expected.to_json())
    place = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    for one, other in zip(quick, slow, strict=True):
        assert one.counts == other.counts
        assert one.schema_ids == other.schema_ids
        assert {s: t.sort_by(place) for s, t in one.changes.items()} == {
            s: t.sort_by(place) for s, t in other.changes.items()
        }


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["flight", "gate"]),
        st.integers(0, 1),
        st.integers(1, 25),
        st.integers(0, 20),
        st.sampled_from(["event"] * 9 + ["ignored"]),
    ),
    max_size=30,
)


def events(rows: list[tuple[str, int, int, int, str]], *, sort: bool) -> pa.Table:
    """Lay events out; `sort` gives their positions a rising order, as an outbox does."""
    made = [
        {
            "kind": kind,
            "topic": f"events.{category}",
            "partition": partition,
            "offset": offset,
            "source": "store",
            "table": category,
            "position": position,
            "event_id": f"e{position}",
            "event_time": START + timedelta(minutes=minute),
            "recorded_at": START,
            "schema_id": 1,
            "value": bytes([position]),
        }
        for offset, (category, partition, position, minute, kind) in enumerate(
            sorted(rows, key=lambda row: row[2]) if sort else rows
        )
    ]
    return pa.Table.from_pylist(made, schema=DECODED)


@given(st.lists(EVENTS, min_size=1, max_size=3), st.booleans())
def test_p1_runs_of_events_change_nothing(
    rows: list[list[tuple[str, int, int, int, str]]], sort: bool
) -> None:
    batches = [events(batch, sort=sort) for batch in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "FEW", 1)
        quick, after = run(batches)
        patch.setattr(runs, "FEW", 10**9)
        slow, expected = run(batches)
    assert json.loads(after.to_json()) == json.loads(expected.to_json())
    for one, other in zip(quick, slow, strict=True):
        assert one.counts == other.counts
        assert one.events == other.events
        assert one.repeated == other.repeated


def test_a_connectors_ordinary_batch_is_one_run() -> None:
    rows = [("change", "orders", 0, n // 3, n % 3 + 1, 0, False) for n in range(40)]
    found = list(runs.runs_of(decoded(rows, sort=False), Progress()))
    assert [(each.first, each.last) for each in found] == [(0, 40)]
