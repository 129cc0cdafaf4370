"""Builds of many slices read their inputs once: these are laid apart on the local disk before."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kernel import failpoints
from kernel.errors import Conflict, StorageFull
from projections.run.laid_rows import LaidRows
from projections.run.whole_rows import WholeRows
from replay.book import State
from replay.cancel import cancel
from replay.progress import BuildProgress
from replay.subject import subject_of
from tests.support.services.small_disk import fill, small_disk
from tests.unit.test_driver_builds import WEIGHT, SparkNeeded, Visits

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
