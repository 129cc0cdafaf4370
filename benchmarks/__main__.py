"""Run benchmarks: `python -m benchmarks [NAME …] [--quick] [--repeat N] [--list] …`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import cast

import benchmarks
from benchmarks.harness import Benchmark, Result, measure, write
from benchmarks.machine import facts
from kernel.errors import EXIT_FAILED, EXIT_OK, EXIT_USAGE, PenstockError

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def discover(package: ModuleType = benchmarks) -> dict[str, Benchmark]:
    """Return every benchmark of a package by its name, in alphabetical order."""
    found: dict[str, Benchmark] = {}
    for each in pkgutil.iter_modules(package.__path__):
        if each.name == "__main__":
            continue
        module = importlib.import_module(f"{package.__name__}.{each.name}")
        if hasattr(module, "NAME") and hasattr(module, "CONDITIONS") and hasattr(module, "run"):
            benchmark = cast("Benchmark", module)
            found[benchmark.NAME] = benchmark
    return dict(sorted(found.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the named benchmarks, or all of them, and say where the results lie."""
    known = discover()
    options = _parser(known).parse_args(arguments)
    if options.quick:
        options.repeat, options.warm_ups = 1, 0
    if options.list:
        for name, benchmark in known.items():
            print(f"{name}: {benchmark.CONDITIONS}")
        return EXIT_OK
    if unknown := [name for name in options.names if name not in known]:
        print(f"error: no benchmark named {', '.join(unknown)}", file=sys.stderr)
        print(f"  fix: choose from {', '.join(known)}", file=sys.stderr)
        return EXIT_USAGE
    failed = False
    for name in options.names or known:
        failed |= not _run(known[name], options)
    return EXIT_FAILED if failed else EXIT_OK


def _run(benchmark: Benchmark, options: argparse.Namespace) -> bool:
    print(f"{benchmark.NAME}: {benchmark.CONDITIONS}")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        try:
            result = measure(
                benchmark,
                repeat=options.repeat,
                warm_ups=options.warm_ups,
                folder=Path(folder),
                started_at=datetime.now(UTC),
                machine=facts(ROOT),
                progress=print,
                options=options,
            )
        except PenstockError as error:
            print(f"error: {error.message}\n  fix: {error.remedy}", file=sys.stderr)
            return False
    print(getattr(benchmark, "summary", _summary)(result))
    print(f"  written to {write(result, directory=options.output)}")
    return True


def _summary(result: Result) -> str:
    lines = []
    for name, figure in result.figures.items():
        line = f"  {name}: median {figure.median:,.1f} ({figure.min:,.1f} to {figure.max:,.1f})"
        if name in result.ratio:
            ratio = result.ratio[name]
            line += f", {ratio.median:.2f} of the baseline ({ratio.min:.2f} to {ratio.max:.2f})"
        lines.append(line)
    return "\n".join(lines)


def _parser(known: Mapping[str, Benchmark]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all when left out")
    parser.add_argument("--repeat", type=int, default=5, help="recorded repetitions (5)")
    parser.add_argument("--warm-ups", type=int, default=1, help="unrecorded repetitions before (1)")
    parser.add_argument(
        "--quick", action="store_true", help="one short repetition, to see that it runs"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="where results are written")
    parser.add_argument("--list", action="store_true", help="show what there is and stop")
    for benchmark in known.values():
        if add_options := getattr(benchmark, "add_options", None):
            add_options(parser)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
