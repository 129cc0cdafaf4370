"""A source without input makes no epochs and no files; what it says later is not lost."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa

from lake.layout import Lake
from lake.table_columns import DECODED, IGNORED
from pipeline.commit.manifest_rows import Bound
from pipeline.installs.install_book import hold
from tests.support.lake.bulk import HandLake, some
from tests.support.lake.folding import SOURCE

SIGNALS = "shop.message"


def heartbeats(*offsets: int) -> pa.Table:
    rows = [{"kind": IGNORED, "topic": SIGNALS, "partition": 0, "offset": n} for n in offsets]
    return pa.Table.from_pylist(rows, DECODED)


def bound(hand: HandLake, end: int) -> Bound:
    epoch = hand.ingest.next_epoch
    at = {SIGNALS: {"0": end}}
    return Bound(epoch=epoch, run_id="t", batch_id=0, start={SIGNALS: {"0": 0}}, end=at)


def files(lake: Lake) -> set[Path]:
    return {path for path in Path(lake.root).rglob("*") if path.is_file()}


def begun(lake: Lake) -> HandLake:
    hand = HandLake(lake)
    hand.copy(*some(1, 2))
    hand.source.commit(*some(3))
    hand.epoch()
    assert hand.state() == hand.source.state
    return hand


def test_heartbeats_alone_write_nothing(lake: Lake) -> None:
    hand = begun(lake)
    before, last = files(lake), hand.ingest.last
    for end in range(1, 20):
        assert hand.ingest.pass_by(bound(hand, end), heartbeats(end - 1))
        assert hand.ingest.pass_by(bound(hand, end), DECODED.empty_table())
    assert files(lake) == before
    assert hand.ingest.last == last

    hand.source.commit(*some(4))
    done = hand.epoch()
    assert last is not None
    assert done.epoch == last.epoch + 1
    assert hand.state() == hand.source.state


def test_a_batch_with_input_is_an_epoch(lake: Lake) -> None:
    hand = begun(lake)
    message = [*heartbeats(0).to_pylist(), {"kind": "begin", "source": SOURCE}]
    assert not hand.ingest.pass_by(bound(hand, 2), pa.Table.from_pylist(message, DECODED))


def test_who_waits_for_an_epoch_gets_one(lake: Lake) -> None:
    hand = begun(lake)
    hold(hand.lake, hand.tables, SOURCE)
    assert not hand.ingest.pass_by(bound(hand, 1), heartbeats(0))


def test_a_transaction_that_is_not_complete_is_looked_at_in_epochs(lake: Lake) -> None:
    hand = begun(lake)
    hand.source.commit(*some(5, 6))
    hand.epoch(rows=1)
    assert hand.ingest.waiting_for()
    assert not hand.ingest.pass_by(bound(hand, 1), heartbeats(0))


def test_the_first_epoch_and_one_after_a_rest_are_made(lake: Lake) -> None:
    hand = HandLake(lake)
    assert not hand.ingest.pass_by(bound(hand, 1), heartbeats(0))

    hand = begun(lake)
    assert hand.ingest.pass_by(bound(hand, 1), heartbeats(0))
    rested = HandLake(lake, source=hand.source, rest=timedelta(0))
    assert not rested.ingest.pass_by(bound(rested, 1), heartbeats(0))
