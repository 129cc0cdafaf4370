"""What Spark's executors hand to this process: rows of a frame, below a bound that has a name.

Nothing else takes rows out of a frame, so that the list of what may come here is this file's.
Spark itself refuses more than `spark.driver.maxResultSize` before any of it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from kernel.errors import TooLarge

_REFUSED = "spark.driver.maxResultSize"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much may come: `what` names it for people."""

    what: str
    most_bytes: int


FEW_ROWS = Limit(what="counts and single rows", most_bytes=2**20)
NAMES_OF_FILES = Limit(what="the names and statistics of an epoch's files", most_bytes=16 * 2**20)
RESULT = Limit(what="a projection's result", most_bytes=512 * 2**20)
FOLDED_HISTORY = Limit(what="the rows of a history that changed", most_bytes=512 * 2**20)
FLOW_CHANGES = Limit(what="the changes of a flow that is small", most_bytes=512 * 2**20)


def small_epoch(most_bytes: int) -> Limit:
    """Return the limit of an epoch that is decoded in this process."""
    return Limit(what="the records of a small epoch", most_bytes=most_bytes)


def collected(frame: DataFrame, limit: Limit) -> pa.Table:
    """Run a frame's plan and return its rows. Raises `TooLarge` when they are beyond the limit."""
    try:
        rows = frame.toArrow()
    except (PySparkException, Py4JJavaError) as error:
        if _REFUSED in str(error):
            raise beyond(limit, "more than spark.driver.maxResultSize") from error
        raise
    if rows.nbytes > limit.most_bytes:
        raise beyond(limit, f"{rows.nbytes} bytes")
    return rows


def beyond(limit: Limit, found: str) -> TooLarge:
    """Return the error of rows that are beyond a limit, for whoever has counted them."""
    return TooLarge(f"{limit.what}: {found}, where {limit.most_bytes} bytes may come to the driver")
