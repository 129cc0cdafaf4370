"""A driver on a cluster, as a process of its own: prints where executors find Penstock.

Its words are the master, a folder for scratch, and settings of Spark as JSON. A process has one
session of Spark, and tests have theirs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from apps.pipeline.session import start_session, warm
from projections.log.driver import FEW_ROWS, collected
from stack.jars import resolve
from stack.java import find_java


def main() -> None:
    """Ask a task on each executor, and print the answers as JSON."""
    master, scratch, settings = sys.argv[1:]
    spark = start_session(
        resolve("spark").spark_jars(),
        scratch=Path(scratch),
        memory="512m",
        java_home=find_java().home,
        master=master,
        asked=json.loads(settings),
    )
    warm(spark)

    def told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import sys

        import apps.pipeline.kafka

        found = {
            "module": apps.pipeline.kafka.__file__,
            "cwd": os.getcwd(),
            "python": sys.executable,
            "path": sys.path,
            "environment": os.environ.get("PYTHONPATH", ""),
        }
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"found": json.dumps(found)}])

    rows = collected(spark.range(0, 2, 1, 2).mapInArrow(told, "found string"), FEW_ROWS)
    print(json.dumps([json.loads(text) for text in rows["found"].to_pylist()]))
    spark.stop()


if __name__ == "__main__":
    main()
