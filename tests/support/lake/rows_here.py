"""Rows of the parts of a step, made in the calling thread as executors would make them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import pyarrow as pa

from lake.collecting import Limit
from lake.executor_rows import BucketRows, PartBuckets, PartRows, _heard, _Joined, _Parts, _Split


class RowsHere:
    """See `RowTasks`; what is made by is picklable, as it has to be."""

    def of_parts(self, task: PartRows, parts: int, limit: Limit) -> Mapping[int, pa.Table] | None:
        """See `RowTasks`."""
        run = _Parts(pickle.loads(pickle.dumps(task)))
        return _heard([row for number in range(parts) for row in run.of(number)])

    def of_buckets(
        self,
        task: PartBuckets,
        parts: int,
        join: BucketRows,
        buckets: int,
        limit: Limit,
        take: Callable[[pa.Table], None],
    ) -> bool:
        """See `RowTasks`."""
        split, joined = pickle.loads(pickle.dumps((_Split(task), _Joined(join))))
        sent = [row for number in range(parts) for row in split.of(number)]
        found = _heard(list(joined.of(sent)))
        for answer in (found or {}).values():
            take(answer)
        return found is not None
