"""A table that is asked for by epoch or time is the source's at that epoch's cut, tail or not."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from kernel.positions import Epoch
from projections.log.layout import Lake
from projections.serve.query import ask
from projections.state.installs import hold
from projections.state.tail import FoldPolicy
from tests.bulk import HandLake
from tests.folding import SOURCE, TABLE, Done, state_of

SQL = f'SELECT * FROM current."{SOURCE}.{TABLE}"'


@pytest.mark.parametrize("policy", [None, FoldPolicy(direct_bytes=0, freshness_s=3600.0)])
def test_p5_each_epoch_and_each_moment_shows_the_sources_state_at_its_cut(
    lake: Lake, policy: FoldPolicy | None
) -> None:
    dice = random.Random(3)
    hand = HandLake(lake, policy=policy)
    hold(lake, hand.tables, SOURCE)
    hand.source.commit(*(Done("c", id_, name="first") for id_ in range(8)))
    hand.announce(hand.stage(releases=True))
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
