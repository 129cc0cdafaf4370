"""A table that is asked for by epoch or time is the source's at that epoch's cut, tail or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from deltalake import DeltaTable

from kernel.errors import NotFound
from kernel.positions import Epoch
from lake.layout import Lake, current_name
from pipeline.current.fold_policy import FoldPolicy
from projections.serve.query import ask
from tests.support.lake.bulk import HandLake
from tests.support.lake.folding import SOURCE, TABLE, Done, state_of

SQL = f'SELECT * FROM current."{SOURCE}.{TABLE}"'


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(None, marks=pytest.mark.matrix),
        FoldPolicy(direct_bytes=0, freshness_s=3600.0),
    ],
)
def test_p5_each_epoch_and_each_moment_shows_the_sources_state_at_its_cut(
    lake: Lake, policy: FoldPolicy | None
) -> None:
    dice = random.Random(3)
    hand = HandLake(lake, policy=policy)
    hand.copy(*(Done("c", id_, name="first") for id_ in range(8)))
    hand.epoch()
    for number in range(20, 32):
        hand.source.commit(Done("c", number, name="new"), Done("u", number % 8, name=str(number)))
        hand.source.commit(Done("d", number))
        hand.epoch(rows=dice.randint(0, 5), ends=dice.randint(0, 3))
    hand.epoch()
    last = hand.manifest.last()
    assert last is not None
    epochs = hand.manifest.between(Epoch(0), last.epoch)
    assert len({done.cuts[SOURCE] for done in epochs}) > 5
    for done in epochs:
        found = ask(lake, SQL, epoch=done.epoch)
        assert state_of(found.rows) == hand.source.at[done.cuts[SOURCE]], done.epoch
    for before, after in pairwise(epochs):
        moment = before.at + dice.random() * (after.at - before.at)
        assert ask(lake, SQL, at=moment).epoch == before.epoch


def forget(path: str) -> None:
    """Clean a table's log up to its newest version, as Delta does when all of it is old."""
    table = DeltaTable(path)
    table.create_checkpoint()
    for version in range(table.version()):
        (Path(path) / "_delta_log" / f"{version:020}.json").unlink()


def clean(path: str) -> None:
    """Remove the files of the version before the newest, as a vacuum does when they are old."""
    table = DeltaTable(path)
    before = DeltaTable(path, version=table.version() - 1).file_uris()
    for name in {*before} - {*table.file_uris()}:
        Path(name.removeprefix("file://")).unlink()


@pytest.mark.parametrize("lose", [forget, clean])
def test_p4_a_version_that_is_gone_after_a_fold_is_missed_by_nobody(
    lake: Lake, lose: Callable[[str], None]
) -> None:
    """The tail of a table at rest is folded; the newest epoch still names the version before."""
    hand = HandLake(lake, policy=FoldPolicy(direct_bytes=0, freshness_s=3600.0))
    hand.copy(*(Done("c", id_, name="first") for id_ in range(8)))
    hand.epoch()
    for number in (20, 21):
        hand.source.commit(Done("c", number, name="new"), Done("u", 3, name=str(number)))
        hand.epoch()
    last = hand.manifest.last()
    assert last is not None
    base = lake.path(current_name(SOURCE, TABLE))
    hand.current.settle(SOURCE, TABLE)
    assert DeltaTable(base).version() > last.tables[current_name(SOURCE, TABLE)].version
    lose(base)
    found = ask(lake, SQL)
    assert found.epoch == last.epoch
    assert state_of(found.rows) == hand.source.at[last.cuts[SOURCE]]
    with pytest.raises(NotFound, match="is not kept any more"):
        ask(lake, SQL, epoch=Epoch(last.epoch - 1))
    hand.restart()
    hand.source.commit(Done("u", 3, name="last"), Done("d", 20))
    done = hand.epoch()
    assert state_of(ask(lake, SQL).rows) == hand.source.at[done.cuts[SOURCE]]
