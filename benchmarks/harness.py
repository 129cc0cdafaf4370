"""One way to measure and to write down.

A benchmark is a module in this folder with
- `NAME`: what the results are filed under;
- `CONDITIONS`: which ordering and durability the measured work guarantees, in words;
- `run(context)`: one repetition; returns its figures, each named with its unit;
- optionally `BASELINE(context)`: the same work done in the way to compare with, same figures;
- optionally `add_options(parser)`: options of its own, then found in `context.options`;
- optionally `summary(result)`: how its result is printed, where one line per figure is too much.

Repetitions of candidate and baseline alternate (AB, BA, AB, …), so that a machine that slows down
hits both alike; what is compared is the ratio within each pair. Figures are never asserted.
"""

from __future__ import annotations

import json
import statistics
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar, cast

from kernel.errors import InvalidRequest

T = TypeVar("T")
Figures = Mapping[str, float]
"""Measured figures of one repetition, by names that end in their unit: `appends_per_s`."""


def whole_numbers(text: str) -> tuple[int, ...]:
    """Read the value of an option: numbers with commas between them."""
    return tuple(int(each) for each in text.split(","))


class Context:
    """What one benchmark keeps between its repetitions: a scratch folder and opened resources.

    `options` are those of the command line. What is put into `notes` is written with the result.
    """

    def __init__(
        self,
        folder: Path,
        resources: ExitStack,
        *,
        options: Namespace | None = None,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.folder = folder
        self.repetition = 0
        self.options = options or Namespace()
        self.progress = progress
        self.notes: dict[str, object] = {}
        self._resources = resources
        self._opened: dict[str, object] = {}

    def once(self, name: str, open_: Callable[[], AbstractContextManager[T]]) -> T:
        """Open a resource at the first call; the same one is returned until the benchmark ends."""
        if name not in self._opened:
            self._opened[name] = self._resources.enter_context(open_())
        return cast("T", self._opened[name])


class Benchmark(Protocol):
    """A module that measures one thing. It may also have a `BASELINE`, of the same shape as `run`.

    Repetitions are called one after another in one process; a repetition leaves nothing behind
    that changes the next one's figures. An exception ends the benchmark: half a result is none.
    """

    NAME: str
    CONDITIONS: str

    def run(self, context: Context) -> Figures:
        """Do the work once and return its figures."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A figure over all repetitions. `mad` is the median absolute deviation from the median."""

    median: float
    min: float
    max: float
    mad: float
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that is known of one benchmark run. `ratio` is candidate / baseline within each pair."""

    name: str
    conditions: str
    started_at: datetime
    repetitions: int
    warm_ups: int
    figures: Mapping[str, Spread]
    baseline: Mapping[str, Spread]
    ratio: Mapping[str, Spread]
    machine: Mapping[str, object]
    notes: Mapping[str, object]


def spread(values: Sequence[float]) -> Spread:
    """Summarise values of one figure. Raises `ValueError` for none."""
    if not values:
        raise ValueError("no values to summarise")
    median = statistics.median(values)
    return Spread(
        median=median,
        min=min(values),
        max=max(values),
        mad=statistics.median(abs(value - median) for value in values),
        values=tuple(values),
    )


def measure(
    benchmark: Benchmark,
    *,
    repeat: int,
    warm_ups: int,
    folder: Path,
    started_at: datetime,
    machine: Mapping[str, object],
    progress: Callable[[str], None] = lambda line: None,
    options: Namespace | None = None,
) -> Result:
    """Run a benchmark `warm_ups` times unrecorded and `repeat` times recorded.

    `progress` is told one line per recorded repetition, and what the benchmark itself tells.
    Raises `InvalidRequest` when a repetition returns other figures than the ones before it.
    """
    if repeat < 1:
        raise InvalidRequest(f"at least one repetition is needed, found {repeat}")
    baseline: Callable[[Context], Figures] | None = getattr(benchmark, "BASELINE", None)
    ours: list[Figures] = []
    theirs: list[Figures] = []
    with ExitStack() as resources:
        context = Context(folder, resources, options=options, progress=progress)
        for number in range(warm_ups + repeat):
            context.repetition = number
            mine, other = _pair(benchmark.run, baseline, context, turned=number % 2 == 1)
            if number >= warm_ups:
                ours.append(mine)
                theirs += [] if other is None else [other]
                number_of = f"  {number - warm_ups + 1}/{repeat}  "
                brief = hasattr(benchmark, "summary")
                progress(number_of + (f"{len(mine)} figures" if brief else _line(mine, other)))
    return Result(
        name=benchmark.NAME,
        conditions=benchmark.CONDITIONS,
        started_at=started_at,
        repetitions=repeat,
        warm_ups=warm_ups,
        figures=_spreads(ours),
        baseline=_spreads(theirs),
        ratio=_spreads(_ratios(ours, theirs)),
        machine=machine,
        notes=context.notes,
    )


def write(result: Result, *, directory: Path) -> Path:
    """Write a result as `<directory>/<name>-<time>.json` and return the path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{result.name}-{result.started_at:%Y%m%dT%H%M%SZ}.json"
    document = asdict(result) | {"started_at": result.started_at.isoformat()}
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return path


def _pair(
    run: Callable[[Context], Figures],
    baseline: Callable[[Context], Figures] | None,
    context: Context,
    *,
    turned: bool,
) -> tuple[Figures, Figures | None]:
    if baseline is None:
        return run(context), None
    if turned:
        other = baseline(context)
        return run(context), other
    mine = run(context)
    return mine, baseline(context)


def _ratios(ours: Sequence[Figures], theirs: Sequence[Figures]) -> list[Figures]:
    """Return the ratio of each repetition, of the figures of which no baseline is nothing."""
    names = [name for name in (ours[0] if ours else {}) if all(each.get(name) for each in theirs)]
    pairs = zip(ours, theirs, strict=False)
    return [{name: own[name] / other[name] for name in names} for own, other in pairs]


def _spreads(repetitions: Sequence[Figures]) -> dict[str, Spread]:
    if not repetitions:
        return {}
    names = list(repetitions[0])
    for figures in repetitions:
        if set(figures) != set(names):
            raise InvalidRequest(
                f"repetitions returned different figures: {sorted(names)} and {sorted(figures)}",
                remedy="Return the same names from every call of run and of BASELINE.",
            )
    return {name: spread([figures[name] for figures in repetitions]) for name in names}


def _line(ours: Figures, theirs: Figures | None) -> str:
    return ", ".join(
        f"{name} {value:,.1f}" + (f" (baseline {theirs[name]:,.1f})" if theirs else "")
        for name, value in ours.items()
    )
