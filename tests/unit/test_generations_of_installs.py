"""Staged rows stay as long as a version that is kept refers to them, or somebody may need them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.upkeep.compaction import vacuum
from pipeline.installs.install_book import hold
from pipeline.installs.old_generations import remove_old_generations
from pipeline.position.progress import Progress
from tests.support.lake.bulk import NAME, HandLake, some
from tests.support.lake.folding import SOURCE, Done

DAY = timedelta(days=1)


@pytest.fixture
def hand(lake: Lake) -> HandLake:
    """A table that was copied twice."""
    found = HandLake(lake)
    hold(lake, found.tables, SOURCE)
    found.source.commit(*some(*range(10)))
    for number in range(2):
        found.announce(found.stage(releases=number == 0))
        found.source.commit(Done("u", number, name="later"))
        found.epoch()
    return found


def tidied(hand: HandLake, *, later: timedelta) -> list[str]:
    last = hand.manifest.last()
    assert last is not None
    return remove_old_generations(
        hand.lake,
        Tables(),
        taken=Progress.from_json(last.progress).installs,
        kept=dict(last.tables),
        retention=DAY,
        now=datetime.now(UTC) + later,
    )


def there(hand: HandLake) -> set[str]:
    return {path.name for path in Path(hand.lake.path(NAME), "_gen").iterdir()}


def test_what_a_kept_version_refers_to_stays(hand: HandLake) -> None:
    assert tidied(hand, later=timedelta(0)) == []
    assert there(hand) == {"i1", "i2"}


def test_what_no_kept_version_refers_to_goes(hand: HandLake) -> None:
    assert tidied(hand, later=2 * DAY) == ["i1"]
    assert there(hand) == {"i2"}
    assert hand.state() == hand.source.state


def test_what_waits_for_ingest_stays(hand: HandLake) -> None:
    waiting = hand.stage()
    hand.announce(waiting)

    assert tidied(hand, later=2 * DAY) == ["i1"]
    assert there(hand) == {"i2", waiting.id}


def test_a_vacuum_of_the_table_leaves_staged_rows_alone(hand: HandLake) -> None:
    staged = hand.stage()
    at = {NAME: TableAt(version=DeltaTable(hand.lake.path(NAME)).version(), as_of_epoch=2)}
    vacuum(hand.lake, Tables(), at, retention=timedelta(0))
    hand.announce(staged)
    hand.source.commit(Done("u", 5, name="last"))
    hand.epoch()

    assert hand.state() == hand.source.state
