"""`penstock replay apply` is killed in its own process; the same command goes on where it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kernel import failpoints
from lake.layout import Lake
from lake.tables import Tables
from projections.serve.savepoints import create
from replay.book import ReplayBook, State
from replay.build import Builder
from replay.slices import build_of
from replay.starts import Start
from replay.verify import verify
from tests.support.lake.small_lake import SmallLake, some_departures
from tests.support.services.waiting import until

NAME = "delays"
SLICES = 4
MAIN = "from apps.cli import main; main()"


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    made = SmallLake(spark, Lake.at(tmp_path / "lake"))
    made.deploy(NAME)
    for first in (1, 41):
        made.epoch(some_departures(first, first, 40))
        made.run(NAME)
        if first == 1:
            create(made.lake, "before")
    return made


def applying(workspace: Path, armed: str, *options: str) -> subprocess.Popen[bytes]:
    how = options or ("--slices", str(SLICES))
    command = ["replay", "apply", NAME, *how, "--workspace", str(workspace)]
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *command],
        env={**os.environ, "PENSTOCK_FAILPOINTS": armed},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def done_in_the_book(small: SmallLake) -> int:
    rows = ReplayBook(small.lake, Tables()).of(NAME)
    build = build_of(rows[-1].detail) if rows else None
    return build.done if build is not None else 0


def resumed(small: SmallLake) -> Builder:
    return Builder(
        small.spark, small.site, lambda _: None, record_every_s=0.0, abandoned_after=timedelta(0)
    )


@pytest.mark.parametrize(
    ("failpoint", "hit", "done"),
    [
        pytest.param(failpoints.REPLAY_BEFORE_SLICE, 1, 0, marks=pytest.mark.matrix),
        (failpoints.REPLAY_AFTER_SLICE, 2, 1),
        pytest.param(failpoints.REPLAY_BEFORE_SLICE, SLICES, 3, marks=pytest.mark.matrix),
        pytest.param(failpoints.REPLAY_AFTER_BUILD, 1, SLICES, marks=pytest.mark.matrix),
    ],
)
def test_p6_a_build_whose_process_is_killed_is_gone_on_with(
    small: SmallLake, tmp_path: Path, failpoint: str, hit: int, done: int
) -> None:
    before = small.rows(f"projection/{NAME}")
    process = applying(tmp_path, f"{failpoint}=kill@{hit}")
    assert process.wait(timeout=180) == -signal.SIGKILL
    assert done_in_the_book(small) == done
    assert small.rows(f"projection/{NAME}") == before
    built = resumed(small).build(NAME)
    assert (built.generation, built.state) == (2, State.BUILT)
    assert verify(small.site, NAME).equal


@pytest.mark.matrix
@pytest.mark.parametrize(
    "failpoint",
    [
        failpoints.REPLAY_BEFORE_SLICE,
        failpoints.REPLAY_AFTER_SLICE,
        failpoints.PROJECTION_BEFORE_COMMIT,
        failpoints.PROJECTION_AFTER_COMMIT,
        failpoints.REPLAY_AFTER_BUILD,
    ],
)
def test_p6_a_build_from_a_savepoint_whose_process_is_killed_is_gone_on_with(
    small: SmallLake, tmp_path: Path, failpoint: str
) -> None:
    before = small.rows(f"projection/{NAME}")
    process = applying(tmp_path, f"{failpoint}=kill", "--from-savepoint", "before")
    assert process.wait(timeout=180) == -signal.SIGKILL
    assert small.rows(f"projection/{NAME}") == before
    built = resumed(small).build(NAME, start=Start(savepoint="before"))
    assert (built.generation, built.state, built.epoch) == (2, State.BUILT, 2)
    assert verify(small.site, NAME).equal


@pytest.mark.matrix
def test_p6_a_process_that_slept_while_another_went_on_changes_nothing(
    small: SmallLake, tmp_path: Path
) -> None:
    process = applying(tmp_path, f"{failpoints.REPLAY_BEFORE_SLICE}=stop@2")
    try:
        until(
            lambda: done_in_the_book(small) == 1, "the first slice is in the book", deadline_s=120
        )
        until(lambda: is_stopped(process.pid), "the process sleeps", deadline_s=120)
        resumed(small).build(NAME)
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=180) not in (0, -signal.SIGKILL)
    assert ReplayBook(small.lake, Tables()).of(NAME)[-1].state is State.BUILT
    assert verify(small.site, NAME).equal


@pytest.mark.matrix
def test_p6_a_build_into_another_lake_whose_process_is_killed_is_gone_on_with(
    small: SmallLake, tmp_path: Path
) -> None:
    sandbox = tmp_path / "sandbox"
    options = ("--slices", str(SLICES), "--lake", str(sandbox))
    process = applying(tmp_path, f"{failpoints.REPLAY_AFTER_SLICE}=kill@2", *options)
    assert process.wait(timeout=180) == -signal.SIGKILL
    there = replace(small.site, into=Lake.named(sandbox))
    built = Builder(small.spark, there, lambda _: None, abandoned_after=timedelta(0)).build(NAME)
    assert (built.generation, built.state, built.epoch) == (1, State.BUILT, 2)
    assert verify(there, NAME).equal
    assert ReplayBook(small.lake, Tables()).of(NAME) == []


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
