"""The records of an epoch, of which each lane's are decoded for themselves.

A lane whose records cannot be decoded is left out of the epoch, before a row of it is written, and
the others have theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa

from kernel.errors import TooLarge
from kernel.positions import Offsets
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.log.log_task import TOLD, Facts
from pipeline.log.staged_rows import Stage, Staged
from pipeline.read.epoch_records import EpochRecords


class LaneRecords:
    """What an epoch is bound to. `refused` has, once decoded, the lanes that could not be.

    Where lanes are not `apart` from each other, what fails for one fails for all.
    """

    def __init__(
        self,
        records: EpochRecords,
        bound: Bound,
        *,
        lane_of: Callable[[str], str],
        apart: bool,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """`then` is called once the records of an epoch are decoded here, of all its lanes."""
        self._records = records
        self._bound = bound
        self._start, self._end = bound.start, bound.end
        self._lane_of = lane_of
        self._apart = apart
        self._then = then
        self.refused: Mapping[str, Exception] = {}
        self._late: frozenset[str] = frozenset()

    def made(
        self, ingest: Ingest, *, may_rest: bool, refuse: Callable[[str, Exception, bool], None]
    ) -> tuple[Committed | None, Offsets]:
        """Make the epoch; return it, None where it said nothing, and how far it has read.

        `refuse` is called for each lane that is left out, when nothing of the epoch is written
        yet: with why, and whether it is only late.
        """
        bound = self._bound
        decode = self._decoded if self._records.small(bound.start, bound.end) else None
        if may_rest and decode is not None:
            decoded = decode()
            if not self.refused and ingest.pass_by(bound, decoded):
                return None, bound.end
            decode = partial(_same, decoded)

        def left_out() -> list[str]:
            for lane, error in self.refused.items():
                refuse(lane, error, lane in self._late)
            return self._topics_refused()

        done = ingest.run_epoch(bound, decode, stage=self._stage(), left_out=left_out)
        out = self._topics_refused()
        return done, {topic: at for topic, at in bound.end.items() if topic not in out}

    def _topics_refused(self) -> list[str]:
        return [topic for topic in self._end if self._lane_of(topic) in self.refused]

    def _decoded(self) -> pa.Table:
        """Return the rows as `DECODED`, without lanes that are refused. Raises `TooLarge`."""
        if not self._apart:
            return self._records.decoded(self._start, self._end)
        found = self._records.by_lane(self._start, self._end, self._lane_of)
        self.refused, self._late = found.refused, found.late
        if not found.refused:
            self._then()
        return found.rows

    def _stage(self) -> Stage | None:
        """Return what has executors decode and write them; None where they may not."""
        stage = self._records.stage(self._start, self._end)
        return self._staged if self._apart and stage is not None else stage

    def _staged(self, facts: Facts) -> Staged:
        """Have executors do it; where they cannot, all that is not of a lane at fault once more."""
        stage = self._records.stage(self._start, self._end)
        assert stage is not None, "executors may be asked"
        try:
            return stage(facts)
        except TooLarge:
            raise
        except Exception:
            found = self._records.undecodable(self._start, self._end, self._lane_of)
            if not found:
                raise
            self.refused = found
            end = {t: at for t, at in self._end.items() if self._lane_of(t) not in found}
            rest = self._records.stage({t: self._start[t] for t in end}, end)
            if not end or rest is None:
                return Staged.of(facts, TOLD.empty_table())
            return rest(facts)


def _same(rows: pa.Table) -> pa.Table:
    return rows
