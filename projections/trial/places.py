"""Where the tests of projections are, and who computes what only Spark computes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernel.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from projections.sql.operators.shape import Plan

SUFFIX = ".test"


def tests_at(places: Sequence[Path]) -> Iterator[Path]:
    """Yield the test files that places name: files, those beside SQL files, or all of a folder.

    Raises `NotFound` for a place without tests, `InvalidRequest` for another kind of file.
    """
    for place in places:
        if place.is_dir():
            files = sorted(place.rglob(f"*{SUFFIX}"))
            if not files:
                raise NotFound(
                    f"{place} has no tests",
                    remedy=f"Write them beside the projection: NAME{SUFFIX} for NAME.sql.",
                )
            yield from files
            continue
        file = place.with_suffix(SUFFIX) if place.suffix == ".sql" else place
        if not file.exists():
            raise NotFound(
                f"there is no test file {file}",
                remedy=f"Write one: the tests of NAME.sql are in NAME{SUFFIX}.",
            )
        if file.suffix != SUFFIX:
            raise InvalidRequest(
                f"{place} is neither a test file nor SQL",
                remedy=f"Name NAME{SUFFIX}, NAME.sql or a folder.",
            )
        yield file


def computed_on(spark: SparkSession, plan: Plan, views: dict[str, pa.Table]) -> pa.Table:
    """Compute all rows of a plan in a session, over the views of its inputs."""
    from lake.collecting import RESULT, collected
    from projections.run.matchers import register_functions

    for name, rows in views.items():
        spark.createDataFrame(rows).createOrReplaceTempView(name)
    register_functions(spark, plan.tree)
    return collected(spark.sql(plan.rows_sql), RESULT)
