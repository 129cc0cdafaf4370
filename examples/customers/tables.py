"""Changes of customers become two tables: the customers as they are, and all their versions."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

from pyspark.sql import DataFrame

from lake.spark_session import start_session
from projections.auto_cdc import Applied, create_auto_cdc_flow
from stack.jars import resolve
from stack.java import find_java


def customers(changes: DataFrame, lake: str) -> dict[str, Applied]:
    """Take changes into both tables; the same ones again change nothing.

    Frame: customer_id, name, city, version (grows with each change of a customer), operation.
    """
    targets: tuple[tuple[Literal[1, 2], str], ...] = (
        (1, "projection/customers"),
        (2, "projection/customer_versions"),
    )
    flows = [
        create_auto_cdc_flow(
            target=target,
            source=changes,
            keys=["customer_id"],
            sequence_by="version",
            apply_as_deletes="operation = 'DELETE'",
            except_column_list=["operation", "version"],
            stored_as_scd_type=scd_type,
            lake=lake,
        )
        for scd_type, target in targets
    ]
    return {flow.target: flow.run() for flow in flows}


def main(feed: str, lake: str) -> None:
    """Read a file of JSON lines and say what became of it."""
    spark = start_session(
        resolve("spark").spark_jars(),
        scratch=Path(mkdtemp()),
        memory="1g",
        java_home=find_java().home,
    )
    for target, done in customers(spark.read.json(feed), lake).items():
        print(f"{target}: {done.changes} changes, {done.refused} refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
