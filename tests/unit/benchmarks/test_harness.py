"""How repetitions are paired, summarised and written down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.__main__ import discover, main
from benchmarks.harness import Benchmark, Context, Result, measure, spread, write
from benchmarks.machine import facts
from kernel.errors import InvalidRequest
from tests.architecture.tree import ROOT

STARTED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Scripted:
    """A benchmark whose figures are given, and which notes who was called when."""

    NAME = "scripted"
    CONDITIONS = "none"

    def __init__(self, *values: float) -> None:
        self.values = iter(values)
        self.calls: list[str] = []

    def run(self, context: Context) -> Mapping[str, float]:
        self.calls.append("run")
        return {"rows_per_s": next(self.values)}


class Compared(Scripted):
    NAME = "compared"

    def BASELINE(self, context: Context) -> Mapping[str, float]:
        self.calls.append("baseline")
        return {"rows_per_s": 10.0}


def run(benchmark: Benchmark, tmp_path: Path, *, repeat: int, warm_ups: int = 0) -> Result:
    return measure(
        benchmark,
        repeat=repeat,
        warm_ups=warm_ups,
        folder=tmp_path,
        started_at=STARTED,
        machine={"cores": 2},
    )


def test_warm_ups_are_not_counted(tmp_path: Path) -> None:
    result = run(Scripted(1000.0, 5.0, 1.0, 3.0), tmp_path, repeat=3, warm_ups=1)
    figure = result.figures["rows_per_s"]
    assert (figure.median, figure.min, figure.max, figure.mad) == (3.0, 1.0, 5.0, 2.0)
    assert figure.values == (5.0, 1.0, 3.0)
    assert result.baseline == {}


def test_candidate_and_baseline_take_turns_in_going_first(tmp_path: Path) -> None:
    benchmark = Compared(20.0, 30.0, 40.0)
    result = run(benchmark, tmp_path, repeat=3)
    assert benchmark.calls == ["run", "baseline", "baseline", "run", "run", "baseline"]
    assert result.ratio["rows_per_s"].values == (2.0, 3.0, 4.0)


def test_a_baseline_that_is_once_nothing_has_no_ratio(tmp_path: Path) -> None:
    class OnceNothing(Compared):
        def BASELINE(self, context: Context) -> Mapping[str, float]:
            self.calls.append("baseline")
            return {"rows_per_s": 0.0 if self.calls.count("baseline") == 2 else 10.0}

    result = run(OnceNothing(20.0, 30.0, 40.0), tmp_path, repeat=3)
    assert result.ratio == {}
    assert result.baseline["rows_per_s"].values == (10.0, 0.0, 10.0)


def test_resources_are_opened_once_and_closed_at_the_end(tmp_path: Path) -> None:
    noted: list[str] = []

    @contextmanager
    def opened() -> Iterator[str]:
        noted.append("open")
        yield "connection"
        noted.append("close")

    class Holder(Scripted):
        def run(self, context: Context) -> Mapping[str, float]:
            noted.append(context.once("database", opened))
            return super().run(context)

    run(Holder(1.0, 2.0), tmp_path, repeat=2)
    assert noted == ["open", "connection", "connection", "close"]


def test_other_figures_in_a_repetition_are_refused(tmp_path: Path) -> None:
    class Fickle(Scripted):
        def run(self, context: Context) -> Mapping[str, float]:
            return {f"figure_{context.repetition}": 1.0}

    with pytest.raises(InvalidRequest, match="different figures"):
        run(Fickle(), tmp_path, repeat=2)


def test_no_repetition_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="at least one"):
        run(Scripted(), tmp_path, repeat=0)


def test_result_is_written_with_machine_and_all_values(tmp_path: Path) -> None:
    path = write(run(Compared(20.0, 30.0), tmp_path, repeat=2), directory=tmp_path / "results")
    assert path.name == "compared-20260102T030405Z.json"
    document = json.loads(path.read_text())
    assert document["figures"]["rows_per_s"]["values"] == [20.0, 30.0]
    assert document["ratio"]["rows_per_s"]["median"] == 2.5
    assert document["machine"] == {"cores": 2}
    assert document["conditions"] == "none"


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_spread_does_not_depend_on_order(values: list[float]) -> None:
    forwards, backwards = spread(values), spread(list(reversed(values)))
    assert forwards.median == backwards.median
    assert forwards.min <= forwards.median <= forwards.max
    assert forwards.mad == backwards.mad >= 0


def test_machine_facts_name_neither_host_nor_user() -> None:
    found = facts(ROOT)
    assert set(found) >= {"cpu", "cores", "memory_bytes", "kernel", "python", "java", "packages"}
    assert not {"host", "hostname", "user"} & set(found)


def test_an_unknown_benchmark_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no-such-thing"]) == 2
    assert "no benchmark named no-such-thing" in capsys.readouterr().err


def test_every_benchmark_says_under_which_guarantees_it_ran() -> None:
    for name, benchmark in discover().items():
        assert name == benchmark.NAME
        assert len(benchmark.CONDITIONS.split()) >= 5, f"{name}: state ordering and durability"
