"""Pages about epochs say what the manifest says, although they read it by other means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from kernel.errors import NotFound
from kernel.positions import Epoch, TopicId
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest_rows import Bound, Committed
from projections.serve.epochs import epoch_at, newest_epochs
from service.lake_documents import epoch_document
from service.render import dump
from tests.support.lake.handmade import HandMade, words


def shown(found: Committed) -> Committed:
    """Return what of an epoch is for others than the pipeline."""
    return replace(found, progress="")


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """Return a lake of three epochs and a fourth that is bound only."""
    made = HandMade(Lake.at(tmp_path))
    for number in (1, 2, 3):
        logs = {"current/shop.public.orders": words((number, "w"))}
        made.epoch(logs=logs, head=number, end={"events": {"0": number}})
    made.manifest.bind(Bound(epoch=Epoch(4), run_id="t", batch_id=0, start={}, end={}))
    return made


def test_pages_have_what_the_manifest_has(made: HandMade) -> None:
    first, second, third = (made.manifest.at(Epoch(number)) for number in (1, 2, 3))
    assert newest_epochs(made.lake, limit=2) == [shown(third), shown(second)]
    assert newest_epochs(made.lake, limit=9, before=2) == [shown(first)]
    assert newest_epochs(made.lake, limit=9, before=1) == []
    assert epoch_at(made.lake, 2) == shown(second)
    assert epoch_document(second) == epoch_document(epoch_at(made.lake, 2))
    assert "progress" not in epoch_document(second)


def test_an_epoch_says_of_each_topic_which_one_it_was(made: HandMade) -> None:
    page = replace(epoch_at(made.lake, 2), topics={"events.order": TopicId("Wm", 2)})
    shown = json.loads(dump(epoch_document(page)))
    assert shown["topics"] == {"events.order": {"id": "Wm", "partitions": 2}}


def test_an_epoch_that_is_bound_only_is_not_there(made: HandMade, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="epoch 4 is not committed"):
        epoch_at(made.lake, 4)
    assert newest_epochs(Lake.at(tmp_path / "other"), limit=9) == []


def test_an_epoch_of_before_the_newest_columns_is_shown(made: HandMade, tmp_path: Path) -> None:
    kept = Tables().read(made.lake.epochs)
    assert kept is not None
    old = Lake.at(tmp_path / "old")
    rows: pa.Table = kept.drop_columns(["installs", "held", "topics"])
    ArrowWriter(Tables()).append(old.epochs, rows, Guard("old", Epoch(1)))
    assert epoch_at(old, 3) == shown(made.manifest.at(Epoch(3)))
