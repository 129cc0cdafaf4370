"""The first rows of a projection by the pipeline's own loop, of more than a round reads at once."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel import failpoints
from kernel.errors import LeaseLost, Unavailable
from kernel.positions import Epoch
from lake import storage, streamed_writes
from lake.datasets import schema_of
from lake.handles import Handle
from lake.staged_files import StagedFiles
from lake.streamed_writes import append_parts, overwrite_parts
from lake.table_settings import TABLE_SETTINGS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.executor import Executor, ExecutorChoice
from projections.run import whole_tables
from projections.run.catalog import DROPPED
from projections.run.projection_rounds import Projecting
from projections.run.runs_beside import RunsBeside
from projections.run.whole_rows import WholeRows
from schemas.registry import MemoryRegistry
from tests.support.lake.handmade import NoSpark
from tests.unit.test_projection_rounds import Rounds

BY_KEYS = """
CREATE PROJECTION made WITH (key = 'person') AS
SELECT person, COUNT(*) AS n, MAX(occurred_at) AS at FROM STREAM events.visit GROUP BY person;
"""
NEWEST = """
CREATE PROJECTION made WITH (key = 'person') AS
SELECT person, occurred_at FROM STREAM events.visit;
"""
BY_REGIONS = """
CREATE PROJECTION made WITH (key = 'person') AS
SELECT person, COUNT(*) AS n FROM (SELECT person FROM STREAM events.visit) v GROUP BY person;
"""
Parts = Callable[[Tables, str, Iterator[pa.Table], Guard], object]
KINDS = {"keys": BY_KEYS, "newest": NEWEST, "regions": BY_REGIONS}


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


class Firsts(Rounds):
    """A lake in which a projection is deployed that has no table yet."""

    def __init__(self, place: Path, text: str) -> None:
        super().__init__(place)
        for name in ("numbers", "persons"):
            self.made.deployed.set_status(name, DROPPED)
        self.deploy("made", text)

    def started(self, executor: Executor = Executor.AUTO) -> Projecting:
        return Projecting(
            NoSpark(),
            self.lake,
            MemoryRegistry(),
            on_run=lambda *_: None,
            choice=ExecutorChoice(asked=executor),
            beside=RunsBeside(most=0),
        )

    def step(self) -> None:
        for state in self.projecting.states.values():
            state.due_at = 0.0
        self.projecting.step()

    def made_rows(self) -> list[dict[str, object]]:
        rows = Tables().read(self.lake.path("projection/made"))
        assert rows is not None
        return sorted(rows.to_pylist(), key=repr)


@pytest.fixture
def nothing_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_tables, "SMALL_BYTES", -1)


@pytest.mark.parametrize("parts", ["few", "many"])
@pytest.mark.parametrize("kind", KINDS)
def test_p6_first_rows_of_many_files_need_no_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, parts: str
) -> None:
    calm, large = (Firsts(tmp_path / name, KINDS[kind]) for name in ("calm", "large"))
    for rounds in (calm, large):
        rounds.seen("aabc")
        rounds.seen("ab" * 40)
    calm.step()
    with monkeypatch.context() as patched:
        patched.setattr(whole_tables, "SMALL_BYTES", -1)
        if parts == "many":
            patched.setattr(streamed_writes, "MOST_BYTES", -1)
        large.step()
    assert large.error("made") is calm.error("made") is None
    assert large.made_rows() == calm.made_rows()
    assert large.made_rows()
    columns = [schema_of(DeltaTable(one.lake.path("projection/made"))) for one in (calm, large)]
    assert columns[0].equals(columns[1])
    for rounds in (calm, large):
        rounds.seen("bbd" * 30)
        rounds.step()
    assert large.error("made") is None
    assert large.made_rows() == calm.made_rows()


@pytest.mark.usefixtures("nothing_small")
def test_first_rows_are_for_spark_where_it_is_asked_for(tmp_path: Path) -> None:
    rounds = Firsts(tmp_path, BY_KEYS)
    rounds.projecting = rounds.started(Executor.SPARK)
    rounds.seen("ab")
    rounds.step()
    assert "NoSpark" in (rounds.error("made") or ""), "it was asked to compute"
    rounds.projecting = rounds.started(Executor.DRIVER)
    rounds.step()
    assert len(rounds.made_rows()) == 2


@pytest.mark.usefixtures("nothing_small")
def test_first_rows_that_duckdb_cannot_compute_are_for_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WholeRows, "_query", lambda *_: "SELECT error('no such row')")
    rounds = Firsts(tmp_path, BY_KEYS)
    rounds.seen("ab")
    rounds.step()
    assert "NoSpark" in (rounds.error("made") or "")


@pytest.mark.usefixtures("nothing_small")
@pytest.mark.parametrize(
    "failpoint", [failpoints.PROJECTION_BEFORE_COMMIT, failpoints.PROJECTION_AFTER_COMMIT]
)
def test_p1_a_crash_around_the_commit_of_first_rows_ends_in_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failpoint: str
) -> None:
    monkeypatch.setattr(streamed_writes, "MOST_BYTES", -1)
    rounds = Firsts(tmp_path, BY_KEYS)
    rounds.seen("aab")
    failpoints.arm(failpoint)
    with pytest.raises(failpoints.Crash):
        rounds.step()
    failpoints.disarm()
    rounds.projecting = rounds.started()
    rounds.step()
    assert [(row["person"], row["n"]) for row in rounds.made_rows()] == [("a", 2), ("b", 1)]
    assert len(rounds.made.manifest.history_of("projection/made/g1")) == 1


BUILDING = """
import sys
from pathlib import Path
from kernel import failpoints
from lake import streamed_writes
from lake.layout import Lake
from projections.run import whole_tables
from tests.unit.test_first_builds import BY_KEYS, Firsts
failpoints.arm_from_environment()
whole_tables.SMALL_BYTES = streamed_writes.MOST_BYTES = -1
rounds = Firsts.__new__(Firsts)
rounds.lake = Lake.at(Path(sys.argv[1]))
rounds.projecting = rounds.started()
rounds.projecting.step()
"""


def test_p1_first_rows_whose_process_is_killed_are_made_by_the_next(tmp_path: Path) -> None:
    place = tmp_path / "lake"
    rounds = Firsts(place, BY_KEYS)
    rounds.seen("aab")
    armed = {"PENSTOCK_FAILPOINTS": f"{failpoints.PROJECTION_BEFORE_COMMIT}=kill"}
    command = [sys.executable, "-c", BUILDING, str(place)]
    killed = subprocess.run(command, env=os.environ | armed, timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    table = Tables().open(rounds.lake.path("projection/made"))
    assert table is not None
    assert table.count() == 0
    assert [each for each in storage.files_below(table.table_uri) if ".parquet" in each.name]
    subprocess.run(command, timeout=120, check=True)
    assert [(row["person"], row["n"]) for row in rounds.made_rows()] == [("a", 2), ("b", 1)]


def parts_of(count: int) -> Iterator[pa.Table]:
    return (pa.table({"a": [n], "b": [f"row {n}"]}) for n in range(count))


@pytest.fixture
def all_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed_writes, "MOST_BYTES", -1)


@pytest.mark.usefixtures("all_staged")
def test_parts_replace_rows_columns_and_nothing_else(tmp_path: Path) -> None:
    path, tables = str(tmp_path / "t"), Tables()
    old = pa.table({"a": ["text"], "gone": [1]})
    ArrowWriter(tables).overwrite(path, old, Guard("t", Epoch(1)))
    version, rows = overwrite_parts(tables, path, parts_of(3), Guard("t", Epoch(2)))
    table = DeltaTable(path)
    assert (version, rows) == (table.version(), 3)
    assert sorted(table.to_pyarrow_table().to_pylist(), key=str) == [
        {"a": n, "b": f"row {n}"} for n in range(3)
    ]
    assert table.transaction_version("t") == 2
    assert table.metadata().configuration.items() >= TABLE_SETTINGS.items()
    again = overwrite_parts(tables, path, parts_of(9), Guard("t", Epoch(2)))
    assert again == (version, 0), "the guard was reached"


@pytest.mark.usefixtures("all_staged")
def test_parts_replace_nothing_where_a_rival_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tables = str(tmp_path / "t"), Tables()

    def rival() -> None:
        ArrowWriter(Tables()).append(path, pa.table({"a": [7], "b": ["his"]}), Guard("t", Epoch(1)))

    with pytest.raises(LeaseLost):
        overwrite_parts(tables, path, parts_of(3), Guard("t", Epoch(2)), written=rival)
    assert DeltaTable(path).to_pyarrow_table().to_pylist() == [{"a": 7, "b": "his"}]
    parquet = [each for each in storage.files_below(path) if each.name.endswith(".parquet")]
    assert len(parquet) == 1, "what was staged is taken away"


@pytest.mark.usefixtures("all_staged")
def test_parts_replace_rows_that_were_rearranged_meanwhile(tmp_path: Path) -> None:
    path, tables = str(tmp_path / "t"), Tables()
    for epoch in (1, 2):
        ArrowWriter(tables).append(path, next(parts_of(1)), Guard("t", Epoch(epoch)))

    def compacted() -> None:
        DeltaTable(path).optimize.compact()

    overwrite_parts(tables, path, parts_of(3), Guard("t", Epoch(3)), written=compacted)
    assert DeltaTable(path).count() == 3


@pytest.mark.usefixtures("all_staged")
@pytest.mark.parametrize("write", [append_parts, overwrite_parts])
@pytest.mark.parametrize("error", [OSError("no answer"), KeyboardInterrupt()])
def test_rows_that_were_committed_keep_their_files_whatever_fails_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Parts, error: BaseException
) -> None:
    path = str(tmp_path / "t")
    commit = Handle.create_write_transaction

    def unanswered(table: Handle, *given: Any, **more: Any) -> None:
        commit(table, *given, **more)
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Handle, "create_write_transaction", unanswered)
        with pytest.raises((Unavailable, KeyboardInterrupt)):
            write(Tables(), path, parts_of(3), Guard("t", Epoch(1)))
    write(Tables(), path, parts_of(3), Guard("t", Epoch(1)))
    assert DeltaTable(path).to_pyarrow_table().num_rows == 3


def test_parts_are_held_a_row_group_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lake.staged_files.ROW_GROUP_BYTES", 2**20)
    held = 0
    write = StagedFiles.write

    def noted(files: StagedFiles, rows: pa.Table) -> None:
        nonlocal held
        write(files, rows)
        held = max(held, files._pending_bytes)

    monkeypatch.setattr(StagedFiles, "write", noted)
    part = pa.table({"a": [*range(10_000)], "b": ["x" * 90] * 10_000})
    rows = overwrite_parts(Tables(), str(tmp_path / "t"), iter([part] * 40), Guard("t", Epoch(1)))
    assert rows[1] == 400_000
    assert held < 2**20 + part.nbytes


@pytest.mark.usefixtures("nothing_small")
def test_first_rows_are_computed_beside_the_rounds(tmp_path: Path) -> None:
    rounds = Firsts(tmp_path, BY_REGIONS)
    beside = RunsBeside(slow_ms=math.inf)
    rounds.projecting = Projecting(
        NoSpark(), rounds.lake, MemoryRegistry(), on_run=lambda *_: None, beside=beside
    )
    rounds.seen("aab")
    rounds.step()
    assert rounds.projecting.documents()["made"]["beside_s"] is not None
    (group,) = beside._groups
    assert group.ended.wait(60)
    rounds.step()
    assert rounds.error("made") is None
    assert [(row["person"], row["n"]) for row in rounds.made_rows()] == [("a", 2), ("b", 1)]
