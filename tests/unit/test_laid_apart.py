"""Builds of many slices read their inputs once: these are laid apart on the local disk before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kernel import failpoints
from kernel.errors import Conflict, NotFound, StorageFull
from lake.tables import Tables
from projections.run.catalog import LIVE, PROJECTION, Entry
from projections.run.laid_rows import LaidRows
from projections.run.whole_rows import WholeRows
from replay.book import ReplayBook, State
from replay.build import Builder
from replay.cancel import cancel
from replay.driver_slices import DriverSlices
from replay.planning import plan_replay
from replay.progress import BuildProgress
from replay.slices import Whole, build_of
from replay.subject import subject_of
from tests.support.services.small_disk import fill, small_disk
from tests.unit.test_driver_builds import TYPED, WEIGHT, SparkNeeded, Visits

SLICES = 5
FILES = 4
"""Each is a piece of its own here."""


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("replay.driver_slices.LEAST_BYTES", 0)
    monkeypatch.setattr("replay.driver_slices.MEASURED_BYTES", 0)
    monkeypatch.setattr("projections.run.whole_rows.PIECE_BYTES", 1)
    yield
    failpoints.disarm()


@pytest.fixture
def visits(tmp_path: Path) -> Visits:
    return some(Visits(tmp_path / "lake"))


def some(made: Visits) -> Visits:
    # The first file has no column `weight` yet; bounds of files say nothing of the second one's.
    made.come([{"person": "ann"}, {"person": "bob"}, {"person": None}])
    made.come([{"person": "ann", "weight": 2.5}, {"person": "bob", "weight": float("nan")}], WEIGHT)
    made.come([{"person": "ann", "weight": 3.0, "_late": True}], WEIGHT)
    made.come([{"person": f"p{n % 40}", "weight": n / 7} for n in range(200)], WEIGHT)
    return made


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the views that are made of inputs, and the pieces that are laid apart."""
    seen: Counter[str] = Counter()

    def counting(name: str, was: Callable[..., Any]) -> Callable[..., Any]:
        def counted(self: WholeRows, *given: Any) -> Any:
            seen[name] += 1
            return was(self, *given)

        return counted

    for name in ("_make_view", "lay"):
        monkeypatch.setattr(WholeRows, name, counting(name, getattr(WholeRows, name)))
    return seen


class AClock:
    """Time that passes where somebody waits, or is told to."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.waited = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.waited += seconds


def left() -> list[Path]:
    """Return what lies in folders that this process spills into."""
    spilled = Path(tempfile.gettempdir()).glob("penstock-spill-*/laid-*")
    return [*spilled]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.parametrize("name", ["persons", "newest"])
def test_p6_slices_of_inputs_that_were_laid_apart_give_the_whole(
    visits: Visits, looks: Counter[str], scratch: Path, name: str
) -> None:
    visits.builder().build(name)
    whole = visits.built(name)
    cancel(visits.site, name)
    looks.clear()
    seen: list[BuildProgress] = []
    done = visits.builder(seen.append).build(name, slices=SLICES)
    assert str(visits.built(name, done.generation)) == str(whole)
    assert looks == {"lay": FILES, "_make_view": FILES}, "slices read no inputs themselves"
    told = [each.laid for each in seen if each.laid is not None]
    assert told[-1] == 206
    assert told == sorted(told)
    assert (seen[-1].laid, seen[-1].done) == (None, 206)
    assert not left()
    assert any("206 laid apart" in each.line for each in seen)


def test_p6_a_build_that_dies_while_inputs_are_laid_apart_is_gone_on_with(
    visits: Visits, looks: Counter[str], scratch: Path
) -> None:
    for failpoint, hit in (
        (failpoints.REPLAY_AFTER_PIECE, 2),
        (failpoints.REPLAY_AFTER_SLICE, 1),
        (failpoints.REPLAY_BEFORE_SLICE, 2),
    ):
        failpoints.arm(failpoint, hit=hit)
        with pytest.raises(failpoints.Crash):
            visits.builder().build("persons", slices=SLICES)
        failpoints.disarm()
        assert not left()
        looks.clear()
    seen: list[BuildProgress] = []
    done = visits.builder(seen.append).build("persons")
    assert done.state is State.BUILT
    assert looks["lay"] == 0, "too few slices are left"
    assert min(each.slice for each in seen) >= 2, "those that are there are not computed again"
    whole = visits.built("persons")
    assert sum(row["n"] for row in whole) == 204
    assert float(str(done.detail["seconds"])) > 0


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_pause_while_inputs_are_laid_apart_ends_behind_the_piece(
    visits: Visits, looks: Counter[str], scratch: Path, pieces: int
) -> None:
    asked: list[int] = []

    def pauses(progress: BuildProgress) -> None:
        if looks["lay"] == pieces and progress.laid and not asked:
            asked.append(progress.laid)
            builder._book.pause("persons")

    builder = visits.builder(pauses)
    assert builder.build("persons", slices=SLICES).state is State.PAUSED
    assert looks["lay"] == pieces
    assert not left()
    assert visits.builder().resume("persons").state is State.BUILT
    assert sum(row["n"] for row in visits.built("persons")) == 204


def test_a_cancelled_build_lays_nothing_more_apart(
    visits: Visits, looks: Counter[str], scratch: Path
) -> None:
    def cancels(progress: BuildProgress) -> None:
        if progress.laid:
            cancel(visits.site, "persons")

    with pytest.raises(Conflict, match="cancelled"):
        visits.builder(cancels).build("persons", slices=SLICES)
    assert looks["lay"] == 1
    assert not left()


def test_a_scratch_disk_that_becomes_full_stops_a_build_which_goes_on_when_there_is_room(
    visits: Visits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: Counter[str]
) -> None:
    with small_disk(tmp_path / "disk", 16) as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        fillers: list[Path] = []

        def fills(progress: BuildProgress) -> None:
            if progress.laid and not fillers:
                fillers.append(fill(disk, leave_bytes=0))

        with pytest.raises(StorageFull, match="generation 2 of persons stopped") as told:
            visits.builder(fills).build("persons", slices=SLICES)
        assert "laid apart" in str(told.value)
        assert "No space left on device" in str(told.value)
        assert "penstock replay resume persons" in told.value.remedy
        assert not left()
        fillers[0].unlink()
        assert visits.builder().resume("persons").state is State.BUILT
    assert sum(row["n"] for row in visits.built("persons")) == 204


def test_where_inputs_find_no_room_each_slice_looks_at_them(
    visits: Visits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: Counter[str]
) -> None:
    monkeypatch.setattr("projections.run.laid_rows.LaidRows.free_bytes", 1_000)
    assert visits.builder().build("persons", slices=SLICES).state is State.BUILT
    assert looks == {"lay": 1, "_make_view": 1 + SLICES}
    assert sum(row["n"] for row in visits.built("persons")) == 204


def test_a_small_table_that_is_read_first_does_not_tell_how_much_room_all_take(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, looks: Counter[str], scratch: Path
) -> None:
    sizes: list[int] = []

    def free(laid: LaidRows) -> int:
        sizes.append(laid.bytes)
        return 5 * laid.bytes  # Too few behind the first file, and enough once half is read.

    builder = visits.builder()
    size = builder._bytes_of(subject_of(visits.site, "persons"))
    monkeypatch.setattr("replay.driver_slices.MEASURED_BYTES", size // 2)
    monkeypatch.setattr(LaidRows, "free_bytes", property(free))
    # It looks with each piece, at the same.
    monkeypatch.setattr(DriverSlices, "_has_reserve", lambda *_: True)
    assert builder.build("persons", slices=SLICES).state is State.BUILT
    assert looks["lay"] == FILES
    assert len(sizes) == 1


def test_slices_stay_here_where_what_is_laid_apart_takes_more_than_its_inputs(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, looks: Counter[str], scratch: Path
) -> None:
    builder, was = visits.builder(), LaidRows.add
    size = builder._bytes_of(subject_of(visits.site, "persons"))

    def packed_less_tightly(laid: LaidRows, *given: Any) -> bool:
        done = was(laid, *given)
        laid.bytes += size
        return done

    monkeypatch.setattr(LaidRows, "add", packed_less_tightly)
    builder._builds.most_bytes = -(-size // SLICES)  # What a slice of the inputs' files has.
    assert builder.build("persons", slices=SLICES).state is State.BUILT
    assert looks == {"lay": FILES, "_make_view": FILES}


def test_what_fails_while_it_is_laid_apart_is_told_by_the_slice_that_has_it(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, looks: Counter[str], scratch: Path
) -> None:
    text = "SELECT error('no such row')"
    monkeypatch.setattr("projections.run.whole_rows.whole", lambda *_: text)
    monkeypatch.setattr(WholeRows, "_query", lambda *_: text)
    with pytest.raises(SparkNeeded):
        visits.builder().build("persons", slices=SLICES)
    assert looks["lay"] == 1
    assert not left()


def test_few_looks_and_short_inputs_are_not_laid_apart(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, looks: Counter[str]
) -> None:
    visits.builder().build("persons", slices=3)
    monkeypatch.setattr("replay.driver_slices.LEAST_BYTES", 10**9)
    visits.builder().build("newest", slices=SLICES)
    assert looks["lay"] == 0


def test_the_reserve_of_a_disk_is_no_room(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, looks: Counter[str], scratch: Path
) -> None:
    monkeypatch.setattr(LaidRows, "free_bytes", 10**9)
    builder = visits.builder(reserve_bytes=10**9 - 1_000)
    assert builder.build("persons", slices=SLICES).state is State.BUILT
    assert looks == {"lay": 1, "_make_view": 1 + SLICES}
    cancel(visits.site, "persons")
    looks.clear()
    assert visits.builder(reserve_bytes=10**9 + 1).build("persons", slices=SLICES)
    assert looks == {"_make_view": SLICES}


def test_a_disk_that_comes_to_its_reserve_stops_a_build_which_goes_on_when_there_is_room(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, looks: Counter[str], scratch: Path
) -> None:
    free = [3 * 2**30]
    monkeypatch.setattr(LaidRows, "free_bytes", property(lambda _: free[0]))

    def fills(progress: BuildProgress) -> None:
        if progress.laid:
            free[0] = 2**30

    with pytest.raises(StorageFull, match="generation 2 of persons stopped") as told:
        visits.builder(fills, reserve_bytes=2 * 2**30).build("persons", slices=SLICES)
    assert "1024 MiB free at" in str(told.value)
    assert "2048 MiB are kept in reserve" in str(told.value)
    assert "penstock replay resume persons" in told.value.remedy
    assert looks["lay"] == 1
    assert not left()
    free[0] = 3 * 2**30
    assert visits.builder(reserve_bytes=2 * 2**30).resume("persons").state is State.BUILT
    assert sum(row["n"] for row in visits.built("persons")) == 204


def test_a_plan_says_how_much_is_laid_apart_at_most(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, scratch: Path
) -> None:
    """Of windows that overlap, each row once for each of them."""
    visits.come([{"person": f"p{n}", "weight": n / 7} for n in range(10_000)], WEIGHT)
    text = """
CREATE PROJECTION hours WITH (key = 'person, window_start') AS
SELECT person, window_start, COUNT(*) AS n, SUM(weight) AS weight FROM STREAM events.visit
GROUP BY person, HOP(occurred_at, '1 hour', '24 hours');
"""
    entry = Entry(kind=PROJECTION, name="hours", generation=1, status=LIVE, text=text)
    visits.made.deployed.put([entry])
    took: list[int] = []
    release = DriverSlices.release

    def released(slices: DriverSlices) -> None:
        if slices._laid is not None:
            took.append(slices._laid.bytes)
        release(slices)

    monkeypatch.setattr(DriverSlices, "release", released)
    monkeypatch.setattr("replay.slices.ROWS_HERE", 2_500)
    monkeypatch.setattr("replay.driver_slices._most_at_once", lambda *_: 1)
    planned = plan_replay(visits.site, "hours")
    assert planned.slices == SLICES
    visits.builder().build("hours", slices=SLICES)
    size = visits.made.tables.open(visits.made.lake.path(TYPED)).get_add_actions()
    assert took[0] > sum(pa.table(size)["size_bytes"].to_pylist()), "more than their files"
    assert planned.scratch_bytes is not None
    assert took[0] <= planned.scratch_bytes < 100 * took[0]


def test_of_slices_that_are_there_nothing_is_laid_apart_and_the_others_are_as_large_as_ever(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, looks: Counter[str], scratch: Path
) -> None:
    sizes: list[int] = []
    most = DriverSlices.most_at_once

    def asked(slices: DriverSlices, whole: Whole) -> int:
        if slices._laid is not None:
            sizes.append(slices._bytes(whole))
        return most(slices, whole)

    monkeypatch.setattr(DriverSlices, "most_at_once", asked)
    monkeypatch.setattr(Builder, "_bytes_of", lambda *_: 10**8)
    failpoints.arm(failpoints.REPLAY_AFTER_SLICE, hit=2 * SLICES)
    with pytest.raises(failpoints.Crash):
        visits.builder().build("persons", slices=3 * SLICES)
    (fresh,) = {*sizes}
    sizes.clear()
    assert visits.builder().build("persons").state is State.BUILT
    (resumed,) = {*sizes}
    assert 0.8 * fresh < resumed < 1.25 * fresh


def test_an_input_that_is_gone_when_it_is_laid_apart_is_nothing_to_go_on_with(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, scratch: Path
) -> None:
    """As by a slice: the same command again would meet the same."""

    def gone(*_: object) -> None:
        raise NotFound("version 3 of history/x is not kept any more")

    monkeypatch.setattr(WholeRows, "lay", gone)
    with pytest.raises(Conflict, match="cannot be gone on with: version 3 of history/x") as told:
        visits.builder().build("persons", slices=SLICES)
    assert "penstock replay cancel persons" in told.value.remedy
    assert not left()


def test_what_laying_apart_took_is_known_where_a_rate_is_limited(
    visits: Visits, monkeypatch: pytest.MonkeyPatch, looks: Counter[str], scratch: Path
) -> None:
    """The waits between two pieces are no part of it; nor is it lost with the process."""
    clock, lay = AClock(), WholeRows.lay
    monkeypatch.setattr("replay.course.time", clock)

    def slow(*given: Any) -> bool:
        clock.now += 7.0
        return lay(*given)

    monkeypatch.setattr(WholeRows, "lay", slow)
    failpoints.arm(failpoints.REPLAY_BEFORE_SLICE)
    with pytest.raises(failpoints.Crash):
        visits.builder().build("persons", slices=SLICES, rate=1.0)
    assert clock.waited > FILES
    kept = build_of(ReplayBook(visits.made.lake, Tables()).newest("persons", State.BUILDING).detail)
    assert kept is not None
    assert kept.laying_s == pytest.approx(FILES * 7.0, abs=0.5)


_CHILD = """
import sys
from pathlib import Path
from kernel import failpoints
from projections.run import whole_rows
from replay import driver_slices
from tests.unit.test_driver_builds import Visits
driver_slices.LEAST_BYTES = driver_slices.MEASURED_BYTES = 0
whole_rows.PIECE_BYTES = 1
failpoints.arm(failpoints.REPLAY_AFTER_PIECE, "kill", hit=2)
Visits(Path(sys.argv[1])).builder().build("persons", slices=5)
"""


def test_p6_a_process_that_is_killed_while_it_lays_inputs_apart_is_gone_on_with(
    visits: Visits, looks: Counter[str], scratch: Path
) -> None:
    command = [sys.executable, "-c", _CHILD, visits.made.lake.root.removeprefix("file://")]
    environment = os.environ | {"TMPDIR": str(scratch)}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    assert len(left()) == 1, "what it had laid apart lies there"
    seen: list[BuildProgress] = []
    done = visits.builder(seen.append).build("persons")
    assert (done.state, done.generation, done.detail["slices"]) == (State.BUILT, 2, SLICES)
    assert looks == {"lay": FILES, "_make_view": FILES}
    assert not left()
    rows = visits.built("persons")
    cancel(visits.site, "persons")
    again = visits.builder().build("persons", slices=1)
    assert str(visits.built("persons", again.generation)) == str(rows)
