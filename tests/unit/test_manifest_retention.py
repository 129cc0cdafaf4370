"""The manifest forgets old epochs, and nothing that somebody has still to read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.upkeep.compaction import compact
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import TYPED, Projected
from pipeline.commit.retention import derived_names, forget_epochs
from pipeline.ddl.held_tables import NO_ORDER, Hold
from tests.unit.test_manifest import bound, committed

WEEK = timedelta(days=7)
LATER = datetime.now(UTC) + 2 * WEEK


def filled(lake: Lake, epochs: int, *, held_from: int | None = None) -> Manifest:
    """Make a manifest with a projection that stopped at epoch 2, and typed tables that did not."""
    manifest = Manifest(lake, Tables())
    hold = Hold(order=NO_ORDER, reason="it fails", from_epoch=held_from or 1)
    for number in range(1, epochs + 1):
        manifest.bind(bound(number, number))
        manifest.commit(committed(number))
        names = ["projection/old/g1"] if number <= 2 else []
        for name in (*names, TYPED):
            at = {f"{name}/x": TableAt(version=number, as_of_epoch=number)}
            held = {"typed/y": hold} if held_from and name == TYPED else {}
            manifest.project(Projected(epoch=Epoch(number), name=name, tables=at, held=held))
    return manifest


def remembered(manifest: Manifest) -> list[int]:
    return [done.epoch for done in manifest.between(Epoch(0), Epoch(99))]


def test_epochs_beyond_the_retention_are_forgotten_but_for_the_last_of_each_table(
    lake: Lake,
) -> None:
    manifest = filled(lake, 9)
    before = manifest.projected()
    assert forget_epochs(lake, retention=WEEK) == 0
    removed = forget_epochs(lake, retention=WEEK, now=LATER)
    # Three rows of each of seven epochs, and of epoch 1 the projection's.
    assert removed == 3 * 7 + 1
    assert remembered(manifest) == [2, 9]
    assert manifest.projected() == before
    assert derived_names(lake) == {"projection/old/g1/x", f"{TYPED}/x"}
    last = manifest.last()
    assert last is not None
    assert last.epoch == 9
    assert forget_epochs(lake, retention=WEEK, now=LATER) == 0


def test_what_a_held_table_has_still_to_read_stays(lake: Lake) -> None:
    manifest = filled(lake, 9, held_from=6)
    forget_epochs(lake, retention=WEEK, now=LATER)
    assert remembered(manifest) == [2, 5, 6, 7, 8, 9]


def test_a_manifest_that_is_too_large_forgets_sooner_but_nothing_of_the_last_hour(
    lake: Lake,
) -> None:
    manifest = filled(lake, 9)
    assert forget_epochs(lake, retention=WEEK, most_bytes=1) == 0
    hours = datetime.now(UTC) + timedelta(hours=2)
    forget_epochs(lake, retention=WEEK, most_bytes=2**30, now=hours)
    assert len(remembered(manifest)) == 9
    forget_epochs(lake, retention=WEEK, most_bytes=1, now=hours)
    assert remembered(manifest) == [2, 9]


def test_an_epoch_goes_on_while_others_are_forgotten(lake: Lake) -> None:
    manifest = filled(lake, 40)
    compact(lake, Tables(), ["epochs"])
    forget_epochs(lake, retention=WEEK, now=LATER)
    manifest.bind(bound(41, 41))
    manifest.commit(committed(41))
    last = manifest.last()
    assert last is not None
    assert last.epoch == 41
