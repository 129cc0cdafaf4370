"""A savepoint that a build begins with stays until that is done, though it has expired."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from apps.cli import build
from apps.pipeline.upkeep import upkeep_of
from apps.settings import load
from kernel import failpoints
from kernel.errors import Conflict
from kernel.positions import Epoch
from lake.layout import Lake
from lake.savepoint_states import savepoints_of
from lake.tables import Tables
from projections.serve.savepoints import create
from replay.book import ReplayBook, State
from replay.build import Builder
from replay.cancel import cancel
from tests.support.lake.handmade import HandMade, NoSpark
from tests.unit.test_base_rules import KEPT, NAME, lived

PAST = timedelta(seconds=-1)


def builder(made: HandMade) -> Builder:
    return Builder(NoSpark(), made.site, lambda _: None, abandoned_after=timedelta(0))


def kept(made: HandMade) -> list[str]:
    """Do what upkeep does each hour; return the savepoints that are left."""
    keeper = upkeep_of(load(Path(made.lake.root).parent), made.lake, None)
    keeper._vacuum()
    assert keeper.troubles == {}
    return [each.name for each in savepoints_of(made.lake)]


@pytest.mark.parametrize("ends", ["cancelled", "built"])
def test_an_expired_savepoint_stays_while_a_build_begins_with_it(lake: Lake, ends: str) -> None:
    made = lived(lake)
    create(made.lake, "kept", epoch=Epoch(2), expires_at=datetime.now(UTC) + PAST)
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE)
    with pytest.raises(failpoints.Crash):
        builder(made).build(NAME, start=KEPT)
    assert kept(made) == ["kept"]
    for words in (("drop", "kept"), ("create", "kept")):
        command = ["savepoint", *words, "--workspace", str(Path(made.lake.root).parent)]
        refused = CliRunner().invoke(build(), command).exception
        assert isinstance(refused, Conflict)
        assert refused.message == (
            f"generation 2 of {NAME} begins with savepoint kept, and is building"
        )
        assert f"penstock replay cancel {NAME}" in refused.remedy
    if ends == "built":
        book = ReplayBook(made.lake, Tables())
        book.record(book.newest(NAME, State.BUILDING).now(State.BUILT, epoch=Epoch(3)))
    else:
        cancel(made.site, NAME)
    assert kept(made) == []


def test_a_build_whose_base_goes_meanwhile_tells_the_way_out(lake: Lake) -> None:
    """Another engine's VACUUM does not know of savepoints."""
    made = lived(lake)
    create(made.lake, "kept", epoch=Epoch(2))
    root = made.lake.path(f"projection/{NAME}")
    files = DeltaTable(root, version=DeltaTable(root).version() - 1).file_uris()

    def vacuumed() -> None:
        for file in files:
            Path(file).unlink()

    with pytest.raises(Conflict, match="generation 2 of report cannot be gone on with") as told:
        builder(made).build(NAME, start=KEPT, agreed=vacuumed)
    way_out = f"penstock replay cancel {NAME}, then penstock replay apply {NAME}"
    assert told.value.remedy == way_out
    (stopped,) = ReplayBook(made.lake, Tables()).of(NAME)
    assert stopped.state is State.STOPPED
    assert "are not kept any more" in str(stopped.detail["error"])
