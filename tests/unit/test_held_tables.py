"""A table that stands still has no later epoch, says so, and lets others go on."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.ddl.held_tables import Hold
from pipeline.position.progress import Progress
from projections.serve.query import ask

STILL, MOVES = "current/shop.public.still", "current/shop.public.moves"
WHY = Hold(order=(5, 1), reason="its values were computed anew (USING)", from_epoch=3)


@pytest.fixture
def shop(lake: Lake) -> Lake:
    """Four epochs of two tables; one of them stands still since the third."""
    tables, manifest = Tables(), Manifest(lake, Tables())
    writer = ArrowWriter(tables)
    at: dict[str, TableAt] = {}
    for number in range(1, 5):
        epoch = Epoch(number)
        manifest.bind(Bound(epoch=epoch, run_id="t", batch_id=0, start={}, end={}))
        for name in (STILL, MOVES):
            if name == MOVES or number < WHY.from_epoch:
                version = writer.append(
                    lake.path(name), pa.table({"n": [number]}), Guard(name, epoch)
                )
                at[name] = TableAt(version=version, as_of_epoch=number)
        held = {"shop": {"public.still": WHY}} if number >= WHY.from_epoch else {}
        manifest.commit(
            Committed(
                epoch=epoch,
                run_id="t",
                batch_id=0,
                end={},
                progress=Progress(held=held).to_json(),
                heads={},
                cuts={},
                pending_from={},
                tables=dict(at),
                counts={},
                timings_ms={},
                at=datetime.now(UTC),
            )
        )
    return lake


def test_p5_a_query_takes_the_newest_epoch_that_all_its_tables_have(shop: Lake) -> None:
    both = "SELECT count(*) FROM current.shop.public.still, current.shop.public.moves"
    answer = ask(shop, both)
    assert (answer.epoch, answer.rows.to_pylist()) == (2, [{"count_star()": 4}])
    alone = ask(shop, "SELECT max(n) AS n FROM current.shop.public.moves")
    assert (alone.epoch, alone.rows.to_pylist()) == (4, [{"n": 4}])


def test_p5_a_later_epoch_is_refused_with_the_reason_and_the_command(shop: Lake) -> None:
    with pytest.raises(NotFound) as refused:
        ask(shop, "SELECT * FROM current.shop.public.still", epoch=Epoch(3))
    assert "shop.public.still is held since epoch 3: its values" in refused.value.message
    assert "penstock source resnapshot shop --tables public.still --yes" in refused.value.remedy
    assert ask(shop, "SELECT * FROM current.shop.public.still", epoch=Epoch(2)).rows.num_rows == 2


def test_what_was_kept_before_there_were_holds_has_none() -> None:
    kept = Progress(held={"shop": {"public.still": WHY}}).to_json()
    assert Progress.from_json(kept).held == {"shop": {"public.still": WHY}}
    assert Progress.from_json(Progress().to_json().replace('"held":{}', '"x":{}')).held == {}
    assert replace(WHY, from_epoch=0).at(3) == WHY
