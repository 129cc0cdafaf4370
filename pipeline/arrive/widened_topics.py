"""Changes that come once more in another partition, because partitions were added to their topic.

A connector that starts again sends its last changes once more. The mark of their partition
recognises them, as long as a key stays in its partition. Partitions that are added move keys: a
change may then have come in one partition and come again in another, in either order. For a topic
that has more partitions than at first sight, what a mark of any of its partitions has passed is
therefore looked for in the log, and among the rows of its own batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Offsets, TopicId
from lake.table_columns import CHANGE, MESSAGE
from pipeline.position.progress import Mark

_SAME = ["table", "transaction_id", "lsn", "operation", "key"]
IDENTITY = [*_SAME, "total_order"]
"""Columns that name a change, in a batch as in the log. A keyless row is named by its
`total_order` as well; a keyed one is not, as that number begins anew amid a transaction."""

Logged = Callable[[str, pa.Array], pa.Table | None]
"""Returns the `IDENTITY` columns of a source's earlier log rows of some transactions."""


def widened(end: Offsets, topics: Mapping[str, TopicId]) -> frozenset[str]:
    """Return the topics that have more partitions than at first sight."""
    return frozenset(
        topic
        for topic, places in end.items()
        if topic in topics and len(places) > topics[topic].partitions
    )


def without_moved(
    decoded: pa.Table, topics: Collection[str], marks: Mapping[str, Mark], logged: Logged
) -> pa.Table:
    """Drop changes of these topics that the log or an earlier row of the batch has already."""
    numbered = decoded.append_column("row", pa.array(range(decoded.num_rows), pa.int64()))
    drop = moved_rows(numbered, topics, marks, logged)
    if not drop:
        return decoded
    return decoded.filter(pc.invert(pc.is_in(numbered["row"], pa.array(drop, pa.int64()))))


def moved_rows(
    numbered: pa.Table, topics: Collection[str], marks: Mapping[str, Mark], logged: Logged
) -> list[int]:
    """Return the numbers (`row`) of changes that the log or an earlier row of the batch has."""
    drop: list[int] = []
    for topic in sorted(topics):
        rows = numbered.filter(
            (pc.field("topic") == topic)
            & pc.is_in(pc.field("kind"), pa.array([CHANGE, MESSAGE]))
            & ~pc.field("snapshot")
        )
        if rows.num_rows:
            drop += _moved(rows, _furthest(topic, marks), logged)
    return drop


def _moved(rows: pa.Table, furthest: int, logged: Logged) -> list[int]:
    """Return the numbers of the rows of one topic that are repeated."""
    source = rows["source"][0].as_py()
    named = _named(rows)
    suspects = named.filter(pc.less_equal(rows["commit_order"], furthest))
    found: list[int] = []
    if suspects.num_rows:
        known = logged(source, pc.unique(suspects["transaction_id"]))
        if known is not None and known.num_rows:
            found = _known(suspects, known)
    return found + _twice(named)


def repeated(rows: pa.Table, known: pa.Table | None) -> list[int]:
    """Return the numbers (`row`) of changes that `known` has, or that an earlier one repeats.

    `known` has the `IDENTITY` columns.
    """
    named = _named(rows)
    found = [] if known is None or not known.num_rows else _known(named, known)
    return found + _twice(named)


def _known(named: pa.Table, known: pa.Table) -> list[int]:
    keys = [*_SAME, "tie"]
    seen = set(map(tuple, zip(*_lists(_named(known), keys), strict=True)))
    each = zip(*_lists(named, keys), named["row"].to_pylist(), strict=True)
    return [row for *key, row in each if tuple(key) in seen]


def _twice(named: pa.Table) -> list[int]:
    firsts = named.group_by([*_SAME, "tie"]).aggregate([("row", "min")])["row_min"]
    again = pc.invert(pc.is_in(named["row"], firsts))
    return list(pc.filter(named["row"], again).to_pylist())


def _named(rows: pa.Table) -> pa.Table:
    keyless = pc.is_null(rows["key"])
    tie = pc.if_else(keyless, rows["total_order"], pa.scalar(None, pa.int64()))
    return rows.append_column("tie", tie)


def _lists(rows: pa.Table, names: Collection[str]) -> list[list[object]]:
    return [rows[name].to_pylist() for name in names]


def _furthest(topic: str, marks: Mapping[str, Mark]) -> int:
    """Return the greatest place that a partition of a topic was read up to."""
    own = (mark.order for place, mark in marks.items() if place.rpartition("/")[0] == topic)
    return max(own, default=-1)
