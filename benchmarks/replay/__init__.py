"""What replays cost as their tables grow: building one, comparing two, deriving.

`live` alone has a stack: what a replay costs those who read meanwhile.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping

from benchmarks.harness import Context, Figures
from benchmarks.replay import building, deriving, live, swapping, verifying

NAME = "replay"
CONDITIONS = (
    "two Delta tables of six columns on a local disk, compared as `replay verify` does, each in a "
    "process of its own: equal, with one row in a hundred different, with every row different; "
    "by the command's process, and by executors of a Spark session on the same cores (its start "
    "counts); "
    "a keyed projection built from a typed table of 16 columns as `replay apply` does, with two "
    "cores: the newest row of each of rows/15 keys, sums by key and day, each row with the version "
    "of a captured table as of its time (3 versions of each key), sessions, and a pattern; "
    "the typed and the current table of a captured table made anew of its raw log, Debezium's "
    "envelopes in Avro of six columns, five changes of each key, by one process without Spark; "
    "generations of the newest row of each key swapped in one after another, while a process each "
    "looks up 20 keys, reads all rows by name with DuckDB and by path with deltalake and DuckDB; "
    "no pipeline runs beside; "
    "live, only where it is asked for: a whole stack under the load of the benchmark "
    "`projections`, and the freshness of its five projections while one is built again and again"
)


def add_options(parser: ArgumentParser) -> None:
    """Add the sizes."""
    group = parser.add_argument_group("replay")
    group.add_argument(
        "--replay-rows", type=int, nargs="+", default=[1_000_000, 5_000_000], metavar="N"
    )
    group.add_argument(
        "--replay-of",
        nargs="+",
        choices=_PARTS,
        default=[p for p in _PARTS if p != "live"],
        help="only these",
    )
    group.add_argument(
        "--replay-queries",
        nargs="+",
        choices=[*building.QUERIES],
        default=[*building.QUERIES],
        help="build: only these",
    )
    group.add_argument("--replay-swaps", type=int, default=swapping.SWAPS, metavar="N")


def run(context: Context) -> Figures:
    """Build from tables of all sizes, and compare pairs of them, once."""
    figures: dict[str, float] = {}
    for rows in context.options.replay_rows:
        for part in context.options.replay_of:
            for told, found in _PARTS[part](context, rows):
                figures |= {f"{part}.{rows}.{told}.{name}": value for name, value in found.items()}
                context.progress(f"  {part} {rows:,} rows, {told}: {dict(found)}")
    return figures


def _verified(context: Context, rows: int) -> Iterator[tuple[str, Figures]]:
    for case, every in verifying.CASES.items():
        for where in ("driver", "executors"):
            on_executors = where == "executors"
            found = verifying.measure(context.folder, rows, every, on_executors=on_executors)
            yield f"{case}.{where}", found


def _built(context: Context, rows: int) -> Iterator[tuple[str, Figures]]:
    for query in context.options.replay_queries:
        yield query, building.measure(context.folder, rows, query)


def _swapped(context: Context, rows: int) -> Iterator[tuple[str, Figures]]:
    yield swapping.NAME, swapping.measure(context.folder, rows, context.options.replay_swaps)


def _derived(kind: str) -> Callable[[Context, int], Iterator[tuple[str, Figures]]]:
    def found(context: Context, rows: int) -> Iterator[tuple[str, Figures]]:
        yield "driver", deriving.measure(context.folder, rows, kind)

    return found


_PARTS: Mapping[str, Callable[[Context, int], Iterator[tuple[str, Figures]]]] = {
    "build": _built,
    "verify": _verified,
    **{kind: _derived(kind) for kind in deriving.KINDS},
    "swap": _swapped,
    "live": live.measured,
}
