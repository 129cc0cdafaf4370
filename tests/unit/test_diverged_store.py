"""A store that diverged: its epoch is made without its events, and a restart comes to the same."""

from __future__ import annotations

import pyarrow as pa
import pytest

from kernel import failpoints
from kernel.errors import StoreDiverged
from lake.layout import Lake
from lake.table_columns import DECODED
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound
from tests.support.lake.bulk import ENDS, ROWS, HandLake, HandSource
from tests.support.lake.folding import AT, SOURCE, Done
from tests.support.lake.poisoned import GOODS, ITEMS, PoisonedShop, topic_of

EVENTS_TOPIC = "events.order"
EVENT = {
    "kind": "event",
    "topic": EVENTS_TOPIC,
    "partition": 0,
    "source": "store",
    "table": "order",
    "position": 1,
    "stream": "order-1",
    "version": 0,
    "type": "placed",
    "event_time": AT,
    "recorded_at": AT,
}


def test_p9_a_diverged_store_is_left_out_and_sources_go_on(lake: Lake) -> None:
    source = HandSource()
    made = HandLake(lake, source)
    first = EVENT | {"offset": 0, "event_id": "a"}
    start = {ROWS: {"0": 0}, ENDS: {"0": 0}, EVENTS_TOPIC: {"0": 0}}
    bound = Bound(
        epoch=made.ingest.next_epoch,
        run_id="t",
        batch_id=0,
        start=start,
        end=start | {EVENTS_TOPIC: {"0": 1}},
    )
    made.ingest.run_epoch(bound, lambda: pa.Table.from_pylist([first], schema=DECODED))

    source.commit(Done("c", id=1))
    other = EVENT | {"offset": 1, "event_id": "b"}
    bound = Bound(
        epoch=made.ingest.next_epoch,
        run_id="t",
        batch_id=1,
        start=bound.end,
        end={ROWS: {"0": 1}, ENDS: {"0": 1}, EVENTS_TOPIC: {"0": 2}},
    )
    rows = [*source.rows, *source.ends]
    with pytest.raises(StoreDiverged):
        made.ingest.run_epoch(bound, lambda: pa.Table.from_pylist([*rows, other], schema=DECODED))

    made.restart()
    bound_before = made.manifest.unfinished()
    assert bound_before is not None
    done = made.ingest.run_epoch(
        bound_before, lambda: pa.Table.from_pylist(rows, schema=DECODED), without=[EVENTS_TOPIC]
    )
    assert done.end == bound.end | {EVENTS_TOPIC: {"0": 1}}, "the store's events stay unread"
    assert done.counts["changes"] == 1
    assert SOURCE in done.cuts
    assert made.manifest.unfinished() is None


@pytest.mark.parametrize("order", [1, -1])
def test_p5_topics_left_out_before_a_crash_stay_out_and_no_refused_record_is_lost(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, order: int
) -> None:
    shop = PoisonedShop(lake)
    read = Manifest._rows
    # A compaction puts rows into an order of its own.
    monkeypatch.setattr(Manifest, "_rows", lambda *which: read(*which)[::order])
    shop.commit(
        {ITEMS: [Done("c", id=1)], GOODS: [Done("c", id=2)]}, spoil=[(ITEMS, 0), (GOODS, 0)]
    )
    failpoints.arm(failpoints.EPOCH_AFTER_BIND)
    with pytest.raises(failpoints.Crash):
        shop.epoch()
    shop.restart()
    failpoints.arm(failpoints.EPOCH_AFTER_LOG)
    with pytest.raises(failpoints.Crash):
        shop.finish(without=[topic_of(GOODS)])

    done = shop.finish()
    left = done.end[topic_of(GOODS)]
    assert left == {"0": 0}, "a process that knows nothing of it leaves it out, too"
    shop.delivered.pop(topic_of(GOODS), None)
    shop.epoch()
    assert shop.waiting() == {(topic_of(ITEMS), 0), (topic_of(GOODS), 0)}
