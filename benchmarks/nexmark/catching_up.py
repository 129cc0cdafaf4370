"""A process that builds the projections of Nexmark's queries, one after the other, and tells.

`python -m benchmarks.nexmark.catching_up FOLDER QUERY…` prints a line of JSON for each: seconds,
processor seconds of this process and its Java, and the rows of the table.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path

from benchmarks.nexmark.auctions_lake import fold_side_input
from benchmarks.replay.usage import usage
from lake.layout import Lake
from lake.spark_session import start_session
from lake.tables import Tables
from replay.build import Builder
from replay.generations import generation_name
from replay.subject import Site
from stack.jars import resolve
from stack.java import find_java


def main(folder: str, *queries: str) -> None:
    """Build each query's projection from its beginning. Spark's start is in no figure."""
    session = start_session(
        resolve("spark").spark_jars(),
        scratch=Path(folder) / "spark",
        memory="2g",
        java_home=find_java().home,
    )
    lake = Lake.at(Path(folder) / "lake")
    _forget_builds(lake)
    fold_side_input(session, lake)
    for query in queries:
        before, began = usage(), time.perf_counter()
        built = Builder(session, Site(lake=lake), lambda progress: None).build(query)
        seconds, after = time.perf_counter() - began, usage()
        told = {
            "query": query,
            "s": seconds,
            "cpu_s": after["all_cpu_s"] - before["all_cpu_s"],
            "rows": _rows_of(lake, query, built.generation),
        }
        print(json.dumps(told), flush=True)


def _forget_builds(lake: Lake) -> None:
    """Begin as the first repetition did: no pipeline compacts the book of builds here."""
    for name in ("replays", "projection"):
        shutil.rmtree(lake.path(name), ignore_errors=True)


def _rows_of(lake: Lake, query: str, generation: int) -> int:
    rows = Tables().read(lake.path(generation_name(query, generation)), columns=["_epoch"])
    return 0 if rows is None else rows.num_rows


if __name__ == "__main__":
    main(*sys.argv[1:])
