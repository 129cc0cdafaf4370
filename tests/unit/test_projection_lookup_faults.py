"""What a lookup cannot read is told to whoever asks for it, and to nobody else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.errors import NotFound, Unavailable
from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import UPSERT, Guard, with_op
from projections.serve import newest_runs
from projections.serve.lookups import Lookups
from projections.serve.row_values import documents, key_of
from replay.generations import live_app
from tests.support.lake.handmade import HandMade, words

BOUND = 300_000


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    """`a` and `b`, with an epoch each."""
    handmade = HandMade(Lake.at(tmp_path / "lake"))
    epoch = handmade.epoch()
    for name in ("a", "b"):
        handmade.deploy(name)
        handmade.run(name, long_rows(50), epoch)
    return handmade


def long_rows(count: int) -> pa.Table:
    return words(*((i, f"{i:05}" * 400) for i in range(count)))


def files_of(made: HandMade, name: str) -> list[Path]:
    table = DeltaTable(made.lake.path(f"projection/{name}"))
    return [Path(uri.removeprefix("file://")) for uri in table.file_uris()]


def held(lookups: Lookups, *names: str) -> set[str]:
    """Ask for the rows of projections; return which are in memory then."""
    for name in names:
        lookups.rows(lookups.look().projections[name])
    return {*lookups.look().rows}


def test_projections_that_outgrow_the_bound_together_are_still_looked_up(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=BOUND)
    assert held(lookups, "a", "b") == {"a", "b"}
    epoch = made.epoch()
    made.run("a", long_rows(100), epoch)
    made.run("b", long_rows(101), epoch)
    assert {*lookups.look().rows} == {"b"}
    assert held(lookups, "a") == {"a"}


def test_rows_that_were_asked_for_last_stay_in_memory(made: HandMade) -> None:
    made.deploy("c")
    made.run("c", long_rows(50), made.epoch())
    lookups = Lookups(made.lake, most_bytes=BOUND)
    assert held(lookups, "a", "b", "a", "c") == {"a", "c"}


def test_one_table_that_cannot_be_read_leaves_the_others_alone(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=BOUND)
    assert held(lookups, "a", "b") == {"a", "b"}
    made.run("a", long_rows(20), made.epoch())
    for path in files_of(made, "a"):
        path.write_bytes(b"PAR1 and nothing else")
    look = lookups.look()
    assert {*look.rows} == {"b"}
    with pytest.raises(Unavailable, match="projection/a cannot be read"):
        lookups.rows(look.projections["a"])
    shutil.rmtree(made.lake.path("projection/a").removeprefix("file://"))
    with pytest.raises(Unavailable, match="projection/a cannot be read"):
        lookups.rows(lookups.look().projections["a"])
    assert held(lookups, "b") == {"b"}


def test_rows_whose_files_are_gone_are_not_found(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=0)
    rows = lookups.rows(lookups.look().projections["a"])
    for path in files_of(made, "a"):
        path.unlink()
    key = key_of("1", [rows.schema.field("id")])
    for read in (lambda: rows.page(None, 5), lambda: rows.find([key])):
        with pytest.raises(NotFound, match="not kept any more"):
            read()


def test_who_broke_off_amid_rows_never_goes_on_in_those_of_another_version(
    made: HandMade,
) -> None:
    """A compaction keeps all rows and their epoch, and has them in another order."""
    made.deploy("report")
    app, path = live_app("report", 1), made.lake.path("projection/report")
    made.run("report", words((1, "x"), (2, "x"), (3, "x")), made.epoch())
    epoch = made.epoch()
    more = with_op(words((4, "x"), (5, "x"), epoch=epoch), UPSERT)
    version = made.writer.merge(path, more, Guard(app, Epoch(epoch)), keys=["id"])
    made.note(app, {"projection/report": version}, epoch)
    lookups = Lookups(made.lake, most_bytes=BOUND)
    served = lookups.look().projections["report"]
    table = DeltaTable(path)
    table.optimize.z_order(["id"])
    table.create_checkpoint()
    log = Path(path.removeprefix("file://")) / "_delta_log"
    for entry in os.listdir(log):
        if entry.endswith(".json") and int(entry[:20]) < table.version():
            (log / entry).unlink()
    with pytest.raises(NotFound, match="not kept any more"):
        next(lookups.all_rows(served, 3))
    # Whoever begins has all of them: the newest version stands for the one that is served.
    found = [change.key["id"] for batch in lookups.all_rows(served, 0) for change in batch]
    assert sorted(map(str, found)) == list("12345")
    assert len(documents(lookups.rows(served).page(None, 9))) == 5


@pytest.mark.parametrize("epochs", [1, 5])
def test_a_lake_that_was_made_again_is_seen_as_it_is(
    made: HandMade, monkeypatch: pytest.MonkeyPatch, epochs: int
) -> None:
    """With fewer epochs than before, and with more: the old ones are not mixed with the new."""
    monkeypatch.setattr(newest_runs, "WHOLE_LOOK_S", 0.0)
    made.epoch()
    lookups = Lookups(made.lake, most_bytes=BOUND)
    assert held(lookups, "a", "b") == {"a", "b"}
    before = lookups.look().projections["a"]
    root = Path(made.lake.root.removeprefix("file://"))
    shutil.rmtree(root)
    assert lookups.look().projections == {}
    again = HandMade(Lake.at(root))
    again.deploy("a")
    for number in range(1, epochs + 1):
        again.run("a", words((number, "anew")), again.epoch())
    look = lookups.look()
    assert {*look.projections} == {"a"}
    assert look.projections["a"].epoch == epochs
    assert look.projections["a"].table_id != before.table_id
    assert shown(lookups) == [{"id": epochs, "word": "anew"}]
    shutil.rmtree(root)
    again = HandMade(Lake.at(root))
    again.deploy("a")
    for number in range(1, 8):
        again.run("a", words((number, "at once")), again.epoch())
    assert shown(lookups) == [{"id": 7, "word": "at once"}]


def shown(lookups: Lookups) -> list[dict[str, object]]:
    return documents(lookups.rows(lookups.look().projections["a"]).page(None, 9))


def test_readers_of_one_step_share_it_and_all_keep_to_the_bound_together(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=450_000)
    before = lookups.look().projections["a"].version
    made.run("a", words(*((i, f"{i:05}" * 401) for i in range(50))), made.epoch())
    served = lookups.look().projections["a"]
    assert before is not None
    assert served.version is not None
    first = lookups.difference(served, before, served.version)
    assert first is not None
    assert 200_000 < first.nbytes < 225_000
    assert lookups.difference(served, before, served.version) is first
    # The step back is read beside it; a third one would be too much.
    back = lookups.difference(served, served.version, before)
    assert back is not None
    made.run("a", words(*((i, f"{i:05}" * 402) for i in range(50))), made.epoch())
    newest = lookups.look().projections["a"]
    assert newest.version is not None
    assert lookups.difference(newest, served.version, newest.version) is None
    del first
    assert lookups.difference(newest, served.version, newest.version) is not None
