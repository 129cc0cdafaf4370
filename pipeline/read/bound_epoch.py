"""The epoch that was bound and not committed: made at the next start, over exactly its offsets.

A lane is left out of it whose records cannot be had just now (its registry is away, Kafka lost
them), and goes on by itself, from where the epoch began: all the others have theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

from kernel.errors import StoreDiverged
from kernel.positions import Offsets
from lake.table_columns import DECODED
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.read.batch_plan import part_from
from pipeline.read.epoch_records import EpochRecords


class UnfinishedEpoch:
    """A bound epoch, of which Kafka still has what lies from `there` on, but for `lost` lanes.

    `lanes` are all that there are, `lane_of` says whose a topic is.
    """

    def __init__(
        self,
        bound: Bound,
        there: Offsets,
        lost: Mapping[str, Exception],
        *,
        ingest: Ingest,
        records: EpochRecords,
        lanes: Collection[str],
        lane_of: Callable[[str], str],
    ) -> None:
        self._bound = bound
        self._there = there
        self._lost = lost
        self._ingest = ingest
        self._records = records
        self._lanes = lanes
        self._lane_of = lane_of

    def finish(self, without: Collection[str]) -> tuple[Committed, dict[str, Exception]]:
        """Make the epoch but for the lanes `without`; return it, and which ones more it leaves out.

        Raises what keeps a lane from it where it cannot be left out: see `_left_out`.
        """
        refused = {name: error for name, error in self._lost.items() if name not in without}
        if refused:
            self._refuse_all(refused, without, next(iter(refused.values())))
        try:
            return self._made({*without, *refused}), refused
        except StoreDiverged:
            raise
        except Exception as error:
            refused |= self._undecodable({*without, *refused}, error)
            self._refuse_all(refused, without, error)
            return self._made({*without, *refused}), refused

    def _refuse_all(
        self, refused: Collection[str], without: Collection[str], error: Exception
    ) -> None:
        """Raise an `error` where its lanes cannot be left out.

        They are all that there is to be read, or the log has rows of the epoch already: then it is
        made over exactly its offsets, or it would have some of them twice.
        """
        all_of_them = len(refused) >= len({*self._lanes} - {*without})
        if not refused or all_of_them or self._ingest.in_log(self._bound.epoch):
            raise error

    def _made(self, without: Collection[str]) -> Committed:
        """Make the epoch from what is there, but for lanes that are left out."""
        bound, lane_of = self._bound, self._lane_of
        left_out = [topic for topic in bound.end if lane_of(topic) in without]
        read = {topic: at for topic, at in self._there.items() if topic not in left_out}
        start, end = part_from(bound, read)
        if not end:
            return self._ingest.run_epoch(bound, DECODED.empty_table, without=left_out)
        return self._ingest.run_epoch(
            bound,
            partial(self._records.decoded, start, end) if self._records.small(start, end) else None,
            stage=self._records.stage(start, end),
            without=left_out,
        )

    def _undecodable(self, without: Collection[str], error: Exception) -> dict[str, Exception]:
        """Return the lanes of which records cannot be decoded now, of an epoch that failed."""
        if self._ingest.in_log(self._bound.epoch):
            raise error
        found: dict[str, Exception] = {}
        for lane in sorted({self._lane_of(topic) for topic in self._there} - {*without}):
            own = {topic: at for topic, at in self._there.items() if self._lane_of(topic) == lane}
            try:
                self._records.try_out(*part_from(self._bound, own))
            except Exception as own_error:
                found[lane] = own_error
        if not found:
            raise error
        return found
