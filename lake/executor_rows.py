"""Rows that Spark's executors make of the parts of a step, below a bound that has a name.

A task makes rows of one part. They come to the driver as they are, or go first, by the number of a
bucket, to tasks that make one answer of what all parts say of that bucket. Rows travel as bytes of
Arrow, whatever their types: Spark moves few large values, and needs no types of its own for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from lake.collecting import Limit, collected
from lake.executor_tasks import declined, told
from lake.row_bytes import packed, unpacked

_TOLD = pa.schema(
    [
        ("number", pa.int64()),
        ("rows", pa.binary()),
        ("declined", pa.bool_()),
        ("error", pa.binary()),
    ]
)
_SHAPE = from_arrow_schema(_TOLD)


PartRows = Callable[[int], pa.Table]
"""Makes rows of one part of a step, by its number. Picklable."""

PartBuckets = Callable[[int], Mapping[int, pa.Table]]
"""Makes rows of one part, apart by the number of their bucket; of each the same columns. Picklable.
"""

BucketRows = Callable[[pa.Table], pa.Table]
"""Makes one answer of what all parts say of a bucket, in no order. Picklable."""


class RowTasks(Protocol):
    """Has rows made of the parts of a step, in any order, some at the same moment.

    The first error of ours is raised. Raise `TooLarge` for rows beyond the limit.
    """

    def of_parts(self, task: PartRows, parts: int, limit: Limit) -> Mapping[int, pa.Table] | None:
        """Return the rows of each part, by its number.

        None where a task failed with an error that is none of ours.
        """
        ...

    def of_buckets(
        self,
        task: PartBuckets,
        parts: int,
        join: BucketRows,
        buckets: int,
        limit: Limit,
        take: Callable[[pa.Table], None],
    ) -> bool:
        """Give `take` the answer for each bucket of which a part says anything.

        Answers for a few buckets at a time come over; `limit` holds for each time. False, and
        nothing taken, where a task failed with an error that is none of ours.
        """
        ...


class SparkRows:
    """Has tasks of Spark's executors make the rows; `start` gives the session once it is needed."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start

    @cached_property
    def _spark(self) -> SparkSession:
        return self._start()

    def of_parts(self, task: PartRows, parts: int, limit: Limit) -> Mapping[int, pa.Table] | None:
        """See `RowTasks`."""
        if parts == 0:
            return {}
        numbers = self._spark.range(0, parts, 1, parts)
        handed = numbers.mapInArrow(_Each(_Parts(task).of), _SHAPE)
        return _heard(collected(handed, limit).to_pylist())

    def of_buckets(
        self,
        task: PartBuckets,
        parts: int,
        join: BucketRows,
        buckets: int,
        limit: Limit,
        take: Callable[[pa.Table], None],
    ) -> bool:
        """See `RowTasks`. Answers wait on the disks of the executors."""
        numbers = self._spark.range(0, parts, 1, parts)
        sent = numbers.mapInArrow(_Each(_Split(task).of), _SHAPE)
        by_bucket = sent.repartitionById(buckets, F.col("number").cast("int"))
        answers = by_bucket.mapInArrow(_Joined(join), _SHAPE).persist(StorageLevel.DISK_ONLY)
        try:
            sizes = answers.select("number", F.length("rows").alias("size"), "declined", "error")
            looked = collected(sizes, limit).to_pylist()
            if declined(looked):
                return False
            for few in _portions(looked, limit.most_bytes // 2):
                rows = answers.select("number", "rows").where(F.col("number").isin(few))
                for answer in collected(rows, limit)["rows"].to_pylist():
                    take(unpacked(answer))
            return True
        finally:
            answers.unpersist()


def _portions(looked: Sequence[Mapping[str, Any]], most_bytes: int) -> Iterator[list[int]]:
    """Yield the numbers of buckets whose answers come over at a time; a large one comes alone."""
    few: list[int] = []
    held = 0
    for row in looked:
        if few and held + row["size"] > most_bytes:
            yield few
            few, held = [], 0
        few.append(row["number"])
        held += row["size"]
    if few:
        yield few


@dataclass(frozen=True, slots=True)
class _Parts:
    task: PartRows

    def of(self, number: int) -> list[dict[str, object]]:
        return told(number, lambda: [{"rows": bytes(packed(self.task(number)))}])


@dataclass(frozen=True, slots=True)
class _Split:
    task: PartBuckets

    def of(self, number: int) -> list[dict[str, object]]:
        def split() -> list[dict[str, object]]:
            made = self.task(number)
            return [
                {"bucket": bucket, "rows": bytes(packed(rows))} for bucket, rows in made.items()
            ]

        rows = told(number, split)
        for row in rows:
            row["number"] = row.pop("bucket", 0)  # An error is told in the first one.
        return rows


@dataclass(frozen=True, slots=True)
class _Each:
    """The function that `mapInArrow` runs: it takes numbers of parts."""

    of: Callable[[int], list[dict[str, object]]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist(self.of(number), schema=_TOLD)


@dataclass(frozen=True, slots=True)
class _Joined:
    """The function that `mapInArrow` runs over all that parts say of a bucket."""

    join: BucketRows

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in batch.to_pylist()]
        for row in self.of(rows):
            yield pa.RecordBatch.from_pylist([row], schema=_TOLD)

    def of(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, object]]:
        said: dict[int, list[bytes]] = defaultdict(list)
        for row in rows:
            if row.get("rows") is None:
                yield dict(row)
            else:
                said[row["number"]].append(row["rows"])
        for bucket, parts in sorted(said.items()):

            def joined(parts: Sequence[bytes] = tuple(parts)) -> list[dict[str, object]]:
                return [{"rows": bytes(packed(self.join(pa.concat_tables(map(unpacked, parts)))))}]

            yield from told(bucket, joined)


def _heard(rows: Sequence[Mapping[str, Any]]) -> dict[int, pa.Table] | None:
    rows = [{"declined": None, "error": None, **row} for row in rows]
    if declined(rows):
        return None
    return {row["number"]: unpacked(row["rows"]) for row in rows}
